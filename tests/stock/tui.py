"""The stock terminal UI, without its drawing: what it asks for, and when."""

from stock.client import ChangedWorkspace, StockClient, new_session
from stock.wire import Confused

__all__ = ["StockTui"]


class StockTui(StockClient):
    """One screen. `is_busy` and `queue` tell what it shows; it learns that by asking, never from an end of a run."""

    session_id = ""
    _is_busy = False
    queue: list[str] = []  # noqa: RUF012 - it is replaced, never changed

    async def start(self, *, is_continued: bool = False) -> None:
        await self.bootstrap()
        await self.create()
        await self.call("POST", "/agent/init", {"interactive": True})
        await self.call("GET", "/permissions/skip", into="skip")
        if not (await self.call("GET", "/agent", into="agent"))["is_ready"]:
            raise Confused("the agent is not ready: no prompt could be sent")
        await self.call("GET", "/agent", into="agent")
        await self.call("GET", "/project/needs-init", into="needs_init")
        await self.subscribe()
        opening = [
            self.call("GET", "/skills", into="skills"),
            self.call("GET", "/messages/user", into="messages"),
            self.call("GET", "/lsps", into="lsps"),
            self._look_at_mcp(),
            self.refresh(),
        ]
        if is_continued:
            opening.append(self._continue())
        await self.together(*opening)

    async def _look_at_mcp(self) -> None:
        await self.call("GET", "/mcp/states", into="mcps")
        await self.call("GET", "/mcp/pending-auth", into="logins")

    async def _continue(self) -> None:
        sessions = await self.call("GET", "/sessions", into="sessions")
        await self.load(sessions[0]["id"])

    async def load(self, session: str) -> None:
        """Show a session: the session itself, its files, its messages."""
        self.session_id = self.screen.shown = session
        await self.together(self._tell_current(), self._load())

    async def _tell_current(self) -> None:
        await self.call("POST", f"/current-session?client_id={self.id}", {"session_id": self.session_id})

    async def _load(self) -> None:
        place = f"/sessions/{self.session_id}"
        self.screen.session = await self.call("GET", place, into="session")
        await self.call("GET", f"{place}/history", into="files")
        await self.call("GET", f"{place}/filetracker/files", into="paths")
        self.screen.load(await self.call("GET", f"{place}/messages", into="messages"))
        await self.call("GET", f"{place}/messages/user", into="messages")

    async def refresh(self) -> None:
        """Look again whether the agent is busy."""
        for _ in range(3):
            self._is_busy = (await self.call("GET", "/agent", into="agent"))["is_busy"]
        await self.call("GET", "/permissions/skip", into="skip")
        if self.session_id:
            place = f"/agent/sessions/{self.session_id}/prompts/list"
            self.queue = await self.call("GET", place, into="paths") or []

    def is_busy(self) -> bool:
        return self._is_busy

    async def react(self, label: str) -> None:
        """Only these make it look again: a new message, and the agent's own word that it is done or has failed."""
        if label.startswith(("message created", "agent_event")):
            await self.refresh()

    async def send(self, text: str) -> None:
        await self.call("GET", "/agent", into="agent")
        calls = []
        if not self.session_id:
            made = await self.call("POST", "/sessions", new_session("New Session"), into="session")
            self.session_id = made["id"]
            calls.append(self.load(self.session_id))
        body = {"session_id": self.session_id, "prompt": text}
        calls.append(self.call("POST", "/agent", body))
        calls.append(self.call("GET", f"/sessions/{self.session_id}/messages/user", into="messages"))
        await self.together(*calls)
        await self.refresh()

    async def see(self, label: str, times: int = 1) -> None:
        """Go on until an event of this kind has come so many times."""
        for _ in range(times):
            if not await self.watch(lambda found: found == label):
                raise Confused(f"the stream ended before {label!r}")

    async def clear_queue(self) -> None:
        await self.call("POST", f"/agent/sessions/{self.session_id}/prompts/clear")
        await self.refresh()

    async def cancel(self) -> None:
        await self.call("POST", f"/agent/sessions/{self.session_id}/cancel")
        await self.refresh()

    async def grant(self, action: str) -> bool:
        """Answer the dialog: the request goes back as it came, as far as it was understood."""
        assert self.screen.dialog is not None
        names = ("id", "session_id", "tool_call_id", "tool_name", "description", "action", "params", "path")
        body = {"permission": {name: self.screen.dialog[name] for name in names}, "action": action}
        return bool((await self.call("POST", "/permissions/grant", body, into="resolved"))["resolved"])

    async def answer(self, *answers: dict[str, object]) -> bool:
        """Answer the form, question by question; which batch that is, it does not say."""
        assert self.screen.form is not None
        asked = self.screen.form["questions"]
        pairs = zip(asked, answers, strict=True)
        body = {"batch_request_id": "", "responses": [{"request_id": item["id"], **given} for item, given in pairs]}
        return bool((await self.call("POST", "/questions/answer", body, into="resolved"))["resolved"])

    async def dismiss(self) -> bool:
        return bool((await self.call("POST", "/questions/cancel", into="resolved"))["resolved"])

    async def see_the_end(self) -> None:
        """The stream ends, as streams of servers that go do."""
        if await self.watch(lambda _: False):
            raise Confused("the stream goes on")

    async def reconnect(self) -> None:
        """Subscribe again; if the workspace is unknown now, create it again first. Then load the session again."""
        try:
            await self.subscribe()
        except ChangedWorkspace:
            await self.create_again()
            await self.call("POST", "/agent/init", {"interactive": True})
            await self.subscribe()
        if self.session_id:
            await self._tell_current()
            await self.load(self.session_id)
        await self.refresh()
