"""A server without sockets for commands that run in this process: scripted answers, errors and streams."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from client.scripted_server import frame_of
from holdfast.cli import server_connection
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import StreamedEvent
from holdfast.http11.sse import SseEvent, SseReader

__all__ = ["FakeServer", "FakeStream", "SentRequest", "event"]

LOCATION = ServerLocation(ServerAddress(path="/fake"), "", can_be_started=True)


def event(item: StreamedEvent, number: int | None = None) -> SseEvent:
    """Return an event as a stream delivers it."""
    (found,) = SseReader().feed(frame_of(item, number))
    return found


class SentRequest(msgspec.Struct, frozen=True):
    """A request as the client sent it; `W` replaces the path of the workspace."""

    method: str
    path: str
    query: dict[str, Any]
    body: Any
    timeout: float | None
    can_repeat: bool

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


class FakeStream:
    """Delivers its items; an exception among them is raised in its place. It ends properly after the last one."""

    def __init__(self, items: Iterable[SseEvent | Exception]) -> None:
        self._items = deque(items)
        self.is_over = False
        self.is_closed = False

    def __enter__(self) -> "FakeStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[SseEvent]:
        while found := self.receive():
            yield from found

    def receive(self, timeout: float | None = None, *, wake: int | None = None) -> list[SseEvent]:
        if not self._items:
            self.is_over = True
            return []
        item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        return [item]

    def close(self) -> None:
        self.is_over = self.is_closed = True


class _FakeClient:
    def __init__(self, server: "FakeServer") -> None:
        self.address = ServerAddress(path="/fake")
        self.server = None
        self._server = server

    def request(
        self,
        method: str,
        path: str,
        query: Any = (),  # noqa: ANN401
        body: bytes | None = None,
        *,
        timeout: float | None = None,
        can_repeat: bool = False,
    ) -> tuple[int, bytes]:
        shown = path.replace("/v1/workspaces/w", "W")
        content = None if body is None else json.loads(body)
        given = {name: value for name, value in query if value is not None}
        return self._server.answer(SentRequest(method, shown, given, content, timeout, can_repeat))

    def stream(self, path: str, query: Any = ()) -> FakeStream:  # noqa: ANN401
        return self._server.open_stream(dict(query))

    def close(self) -> None:
        """Nothing to close."""


Answer = Exception | tuple[int, object] | object


class FakeServer:
    """`answers` are by method and path; a list is used up, one for each request, and its last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:  # noqa: ANN401
        self.answers: dict[str, Answer] = {"POST /v1/workspaces": {"id": "w"}, **more}
        self.requests: list[SentRequest] = []
        self.streams: list[list[SseEvent | Exception] | Exception] = []
        self.opened_streams: list[FakeStream] = []
        self.since: list[int] = []
        self.pauses: list[float] = []
        self.connects = 0
        self.finds: Callable[[], bool] = lambda: True
        monkeypatch.setattr(server_connection, "find", self._find)
        monkeypatch.setattr(server_connection, "find_or_start", self._start)
        monkeypatch.setattr(server_connection, "replace_outdated", lambda _: False)
        self.starts = 0

    def connection(self, location: ServerLocation = LOCATION) -> ServerConnection:
        """Return an open connection, whose requests so far are forgotten."""
        made = ServerConnection(location, "/work")
        made.open(self.pauses.append)
        self.requests.clear()
        self.connects = 0
        return made

    def sent(self) -> list[str]:
        return [request.name for request in self.requests]

    def _find(self, *_: object) -> _FakeClient | None:
        self.connects += 1
        return _FakeClient(self) if self.finds() else None

    def _start(self, *_: object, **__: object) -> _FakeClient:
        self.starts += 1
        return _FakeClient(self)

    def answer(self, request: SentRequest) -> tuple[int, bytes]:
        self.requests.append(request)
        found = self.answers.get(request.name, (404, {"message": f"There is no {request.name}."}))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, Exception):
            raise found
        status, body = found if isinstance(found, tuple) else (200, found)
        return status, body if isinstance(body, bytes) else msgspec.json.encode(body)

    def open_stream(self, query: dict[str, Any]) -> FakeStream:
        self.since.append(query["since"])
        items = self.streams.pop(0)
        if isinstance(items, Exception):
            raise items
        self.opened_streams.append(FakeStream(items))
        return self.opened_streams[-1]
