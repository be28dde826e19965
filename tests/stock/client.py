"""A client that behaves like a stock client: the same calls, in the same order, with the same demands on responses."""

import asyncio
import re
import secrets
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from stock.decode import decode
from stock.screen import Screen
from stock.wire import Answer, ClientFailure, ConnectionLost, EventStream, Pool, dial

__all__ = ["ChangedWorkspace", "Exchange", "RequestFailed", "StockClient", "new_session"]

_ENV = ["HOME=/home/stock", "LANG=C.UTF-8", "EDITOR=ed"]
_NAMES = (
    (r"(/workspaces/)[^/?]+", r"\1{w}"),
    (r"(/sessions/)[^/?]+", r"\1{s}"),
    (r"(/clients/)[^/?]+", r"\1{c}"),
    (r"(client_id=)[^&]+", r"\1{c}"),
    (r"(provider_id=)[^&]+", r"\1{p}"),
)


class RequestFailed(Exception):
    """The server refused. A stock client shows the status, or the message of a refused prompt."""

    def __init__(self, request: str, answer: Answer) -> None:
        super().__init__(f"{request}: {answer.status} {answer.body!r}")
        self.status = answer.status


class ChangedWorkspace(RequestFailed):
    """404: the workspace no longer exists; a terminal UI creates it again."""


class Exchange(msgspec.Struct):
    """One request and its response. Those of one `batch` were concurrent."""

    request: str
    body: Any
    batch: int
    status: int = 0
    answer: Any = None


class StockClient:
    """Common parts of `run` and the terminal UI: bootstrap, requests, the stream."""

    def __init__(self, socket: Path, project: Path | str, *, has_proxy: bool = False) -> None:
        self.id = str(uuid.UUID(hex=secrets.token_hex(16)))
        self.log: list[Exchange] = []
        self.screen = Screen()
        self.workspace: dict[str, Any] = {}
        self.stream: EventStream | None = None
        self._socket = socket
        self._project = str(project)
        self._has_proxy = has_proxy
        self._pool = Pool(socket, has_proxy=has_proxy)
        self._batch = 0
        self._depth = 0

    # Requests. Only 200 is a success, and 202 for a prompt.

    async def call(self, method: str, path: str, body: object = None, *, into: str = "") -> Any:  # noqa: ANN401
        """Send a request below the workspace, whose response is decoded as `into`."""
        return await self.ask(method, f"/v1/workspaces/{self.workspace['id']}{path}", body, into=into)

    async def ask(self, method: str, target: str, body: object = None, *, into: str = "") -> Any:  # noqa: ANN401
        answer = await self._exchange(self._pool, method, target, body)
        allowed = {200, 202} if method == "POST" and target.endswith("/agent") else {200}
        if answer.status not in allowed:
            self._refused(f"{method} {target}", answer)
        return decode(into, answer.json()) if into else None

    async def together(self, *calls: Awaitable[object]) -> None:
        """Send concurrent requests."""
        self._batch += self._depth == 0
        self._depth += 1
        try:
            await asyncio.gather(*calls)
        finally:
            self._depth -= 1

    async def _exchange(
        self, pool: Pool, method: str, target: str, body: object = None, kind: str = "application/json"
    ) -> Answer:
        entry = self._begun(method, target, body)
        answer = await pool.ask(method, target, body, kind)
        entry.status = answer.status
        is_json = answer.headers.get("content-type") == "application/json"
        entry.answer = answer.json() if is_json else answer.body.decode()
        return answer

    def _begun(self, method: str, target: str, body: object) -> Exchange:
        self._batch += self._depth == 0
        for pattern, name in _NAMES:
            target = re.sub(pattern, name, target)
        entry = Exchange(f"{method} {target}", body, self._batch)
        self.log.append(entry)
        return entry

    def _refused(self, request: str, answer: Answer) -> None:
        if answer.status == 404 and b"message" not in answer.body:
            raise ClientFailure(f"{request} is not served")
        kind = ChangedWorkspace if answer.status == 404 else RequestFailed
        raise kind(request, answer)

    # Bootstrap

    async def bootstrap(self) -> None:
        """Check whether a server is running, has the right version, and is healthy."""
        await (await dial(self._socket)).close()
        first = Pool(self._socket, has_proxy=self._has_proxy)
        version = decode("version", (await self._exchange(first, "GET", "/v1/version")).json())
        if version["version"] != "devel":
            # Another version: it is requested to exit if idle. It may refuse, and is used nevertheless.
            command = {"command": "shutdown_if_idle"}
            answer = await self._exchange(first, "POST", "/v1/control", command, "text/plain")
            if answer.status in (200, 400):
                raise ClientFailure("the client would now delete the socket and start a server of its own")
        second = Pool(self._socket, has_proxy=self._has_proxy)
        # The stock client waits for half a second, which a busy machine may need for other tests.
        async with asyncio.timeout(20):
            health = await self._exchange(second, "GET", "/v1/health")
        if health.status // 100 != 2 or health.body:
            raise ClientFailure("the server is not well")
        await first.close()
        await second.close()

    async def create(self) -> None:
        body = {"id": "", "path": self._project, "version": "devel", "client_id": self.id, "env": _ENV}
        self.adopt(await self.ask("POST", "/v1/workspaces", body, into="workspace"))

    async def create_again(self) -> None:
        """Create it with the fields of the last response, exactly; others are missing."""
        names = ("path", "data_dir", "debug", "yolo", "channels", "env")
        kept = {name: self.workspace[name] for name in names if name in self.workspace}
        body: dict[str, Any] = {"id": "", "version": "devel", "client_id": self.id, **kept}
        self.adopt(await self.ask("POST", "/v1/workspaces", body, into="workspace"))

    def adopt(self, workspace: dict[str, Any]) -> None:
        """Use the workspace of a response. These four fields are read without a check."""
        config = workspace.get("config") or {}
        options = config.get("options") or {}
        if "tui" not in options or options["tui"] is None or config.get("providers") is None:
            raise ClientFailure("config, options, options.tui or providers is missing: a crash")
        if not any(not provider.get("disable") for provider in config["providers"].values()):
            raise ClientFailure("no provider is set up: the client would not go on")
        self.workspace = workspace

    # The stream.

    async def subscribe(self) -> None:
        target = f"/v1/workspaces/{self.workspace['id']}/events?client_id={self.id}"
        entry = self._begun("GET", target, None)
        answer, stream = await self._pool.listen(target)
        entry.status, entry.answer = answer.status, "stream" if stream else answer.json()
        if stream is None:
            self._refused(f"GET {target}", answer)
        if "transfer-encoding" in answer.headers or "content-length" in answer.headers:
            raise ClientFailure("a body that breaks off is never got over: only the connection may end it")
        if answer.headers.get("connection") != "close" or answer.headers.get("cache-control") != "no-cache":
            raise ClientFailure(f"the headers of the stream: {answer.headers}")
        self.stream = stream

    async def watch(self, is_over: Callable[[str], bool]) -> bool:
        """Read events until one is the last; False if the stream ended before."""
        assert self.stream is not None
        while (event := await self.stream.next()) is not None:
            label = self.screen.see(event)
            await self.react(label)
            if is_over(label):
                return True
        await self.stream.close()
        return False

    async def react(self, label: str) -> None:
        """Perform the client's automatic reaction to an event."""

    async def leave(self) -> None:
        """Cancel the subscription, retire, close every connection."""
        if self.stream is not None:
            await self.stream.close()
        try:
            await self.ask("DELETE", f"/v1/clients/{self.id}")
        except (ConnectionLost, OSError):
            # No server is left to notify; the process ends nevertheless.
            pass
        finally:
            await self._pool.close()


def new_session(title: str) -> dict[str, object]:
    """Build a whole session object, of which only the title is used."""
    return {
        "id": "", "parent_session_id": "", "title": title, "message_count": 0, "prompt_tokens": 0,
        "completion_tokens": 0, "summary_message_id": "", "cost": 0, "created_at": 0, "updated_at": 0,
        "is_busy": False, "attached_clients": 0,
    }  # fmt: skip
