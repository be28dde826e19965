"""The stock terminal UI without its rendering: its requests and their timing."""

from stock.client import ChangedWorkspace, StockClient, new_session
from stock.wire import ClientFailure

__all__ = ["StockTui"]


class StockTui(StockClient):
    """One screen. `is_busy` and `queue` are what it shows; it polls them and never derives them from the end of a
    run.
    """

    session_id = ""
    _is_busy = False
    queue: list[str] = []  # noqa: RUF012 - it is replaced, never changed

    async def start(self, *, is_continued: bool = False) -> None:
        await self.bootstrap()
        await self.create()
        await self.call("POST", "/agent/init", {"interactive": True})
        await self.call("GET", "/permissions/skip", into="skip")
        if not (await self.call("GET", "/agent", into="agent"))["is_ready"]:
            raise ClientFailure("the agent is not ready: no prompt could be sent")
        await self.call("GET", "/agent", into="agent")
        await self.call("GET", "/project/needs-init", into="needs_init")
        await self.subscribe()
        opening = [
            self.call("GET", "/skills", into="skills"),
            self.call("GET", "/messages/user", into="messages"),
            self.call("GET", "/lsps", into="lsps"),
            self._load_mcp_states(),
            self.refresh(),
        ]
        if is_continued:
            opening.append(self._continue())
        await self.together(*opening)

    async def _load_mcp_states(self) -> None:
        await self.call("GET", "/mcp/states", into="mcps")
        await self.call("GET", "/mcp/pending-auth", into="logins")

    async def _continue(self) -> None:
        sessions = await self.call("GET", "/sessions", into="sessions")
        await self.load(sessions[0]["id"])

    async def load(self, session: str) -> None:
        """Show a session: the session itself, its files, its messages."""
        self.session_id = self.screen.shown = session
        await self.together(self._send_current_session(), self._load())

    async def _send_current_session(self) -> None:
        await self.call("POST", f"/current-session?client_id={self.id}", {"session_id": self.session_id})

    async def _load(self) -> None:
        place = f"/sessions/{self.session_id}"
        self.screen.session = await self.call("GET", place, into="session")
        await self.call("GET", f"{place}/history", into="files")
        await self.call("GET", f"{place}/filetracker/files", into="paths")
        self.screen.load(await self.call("GET", f"{place}/messages", into="messages"))
        await self.call("GET", f"{place}/messages/user", into="messages")

    async def refresh(self) -> None:
        """Poll again whether the agent is busy."""
        for _ in range(3):
            self._is_busy = (await self.call("GET", "/agent", into="agent"))["is_busy"]
        await self.call("GET", "/permissions/skip", into="skip")
        if self.session_id:
            place = f"/agent/sessions/{self.session_id}/prompts/list"
            self.queue = await self.call("GET", place, into="paths") or []

    def is_busy(self) -> bool:
        return self._is_busy

    async def react(self, label: str) -> None:
        """Only these events make it poll again: a new message, and an agent event for completion or failure."""
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
        """Read events until one with this label has occurred this many times."""
        for _ in range(times):
            if not await self.watch(lambda found: found == label):
                raise ClientFailure(f"the stream ended before {label!r}")

    async def clear_queue(self) -> None:
        await self.call("POST", f"/agent/sessions/{self.session_id}/prompts/clear")
        await self.refresh()

    async def cancel(self) -> None:
        await self.call("POST", f"/agent/sessions/{self.session_id}/cancel")
        await self.refresh()

    async def grant(self, action: str) -> bool:
        """Answer the dialog: the request is returned as received, as far as it was decoded."""
        assert self.screen.dialog is not None
        names = ("id", "session_id", "tool_call_id", "tool_name", "description", "action", "params", "path")
        body = {"permission": {name: self.screen.dialog[name] for name in names}, "action": action}
        return bool((await self.call("POST", "/permissions/grant", body, into="resolved"))["resolved"])

    async def answer(self, *answers: dict[str, object]) -> bool:
        """Answer the form question by question, without naming its batch."""
        assert self.screen.form is not None
        asked = self.screen.form["questions"]
        pairs = zip(asked, answers, strict=True)
        body = {"batch_request_id": "", "responses": [{"request_id": item["id"], **given} for item, given in pairs]}
        return bool((await self.call("POST", "/questions/answer", body, into="resolved"))["resolved"])

    async def dismiss(self) -> bool:
        return bool((await self.call("POST", "/questions/cancel", into="resolved"))["resolved"])

    async def read_stream_end(self) -> None:
        """Read the end of the stream, as sent by a server that exits."""
        if await self.watch(lambda _: False):
            raise ClientFailure("the stream goes on")

    async def reconnect(self) -> None:
        """Subscribe again; create an unknown workspace again first. Then reload the session."""
        try:
            await self.subscribe()
        except ChangedWorkspace:
            await self.create_again()
            await self.call("POST", "/agent/init", {"interactive": True})
            await self.subscribe()
        if self.session_id:
            await self._send_current_session()
            await self.load(self.session_id)
        await self.refresh()
