"""A provider for tests: a real HTTP server on a real socket that says what a script tells it to, on six wires.

It knows nothing of the adapters. Which wire a request speaks is told by its path. It keeps what it was asked,
and it sees when the other side hangs up.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Self, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from holdfast.tasks import TaskOwner
from model_server import anthropic, bedrock, chat, gemini, mistral, responses
from model_server.discovery import answer_about_models
from model_server.script import Item, Reply

__all__ = ["WIRES", "Asked", "ModelServer", "Wire"]

Wire: TypeAlias = Literal["chat", "responses", "anthropic", "gemini", "mistral", "bedrock"]
Script: TypeAlias = Callable[["Asked"], Reply]
_MISTRAL = "/mistral"

WIRES: dict[Wire, Callable[[Reply], Iterator[Item]]] = {
    "chat": chat.items,
    "responses": responses.items,
    "anthropic": anthropic.items,
    "gemini": gemini.items,
    "mistral": mistral.items,
    "bedrock": bedrock.items,
}
"""What each wire makes of a script."""


class Asked:
    """One request as it came, and what became of its connection."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes, connection: int) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.connection = connection
        """Which connection it came on, counted from 1."""
        self.answered = asyncio.Event()
        """The answer was sent to its end."""
        self.hung_up = asyncio.Event()
        """The other side closed the connection before the answer was sent to its end."""

    @property
    def wire(self) -> Wire | None:
        path = urlsplit(self.path).path
        if path.endswith("/chat/completions"):
            # Two vendors, one path: the dialect is told by where the server says it is.
            return "mistral" if path.startswith(_MISTRAL) else "chat"
        if path.endswith("/responses"):
            return "responses"
        if path.endswith("/messages"):
            return "anthropic"
        if ":streamGenerateContent" in path:
            return "gemini"
        return "bedrock" if path.endswith("/converse-stream") else None

    @property
    def json(self) -> dict[str, object]:
        return msgspec.json.decode(self.body, type=dict[str, object])


class ModelServer:
    """`script` gives a reply for each request to a model: a function of it, or replies in order, the last for ever.

    `models` are the ids it lists, with their context sizes; it lists them as OpenAI, Ollama and LM Studio do.
    """

    def __init__(self, script: Script | Iterable[Reply] = (), *, models: Mapping[str, int] | None = None) -> None:
        self._script = script if callable(script) else _in_order(list(script))
        self._models = dict(models or {})
        self._tasks = TaskOwner()
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._count = 0
        self.is_closed = False
        self._arrived = asyncio.Event()
        self.asked: list[Asked] = []
        self.pages: dict[str, object] = {}
        """What else it answers, by path: a place that gives out tokens, for example."""
        self.problems: list[str] = []
        """What went wrong in the server itself; a test that is done looks here."""

    @property
    def connections(self) -> int:
        """How many connections were ever made."""
        return self._count

    @property
    def open_connections(self) -> int:
        return len(self._lines)

    @property
    def root(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def base_url(self, wire: Wire = "chat") -> str:
        """What a user would write as `base_url`."""
        if wire == "mistral":
            return f"{self.root}{_MISTRAL}/v1"
        return f"{self.root}/v1" if wire in ("chat", "responses") else self.root

    async def request(self, number: int = 0) -> Asked:
        """Request number `number`, counted from 0, as soon as it has come."""
        while len(self.asked) <= number:
            self._arrived.clear()
            await self._arrived.wait()
        return self.asked[number]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Line(self), "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self.is_closed = True
        self._server.close()
        self._tasks.cancel_all()
        for line in tuple(self._lines):
            line.drop()
        await self._tasks.drain()
        await self._server.wait_closed()
        if kind is None:
            assert not self.problems, self.problems

    def drop_all(self) -> None:
        """Close every connection, as a server does that has waited long enough."""
        for line in tuple(self._lines):
            line.drop()

    # From the connections

    def joined(self, line: "_Line") -> int:
        self._lines.add(line)
        self._count += 1
        return self._count

    def left(self, line: "_Line") -> None:
        self._lines.discard(line)

    def take(self, line: "_Line", asked: Asked) -> asyncio.Task[None]:
        self.asked.append(asked)
        self._arrived.set()
        return self._tasks.start(self._answer(line, asked), name="answer", done=self._note)

    async def _answer(self, line: "_Line", asked: Asked) -> None:
        if asked.wire is None:
            page = self.pages.get(asked.path)
            about = msgspec.json.encode(page) if page is not None else None
            about = about or answer_about_models(asked.path, asked.body, self._models)
            line.send_whole(404 if about is None else 200, (), about or b'{"error":{"message":"no such path"}}')
            asked.answered.set()
            return
        await _play(line, self._script(asked), asked.wire)
        asked.answered.set()

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.problems.append(repr(error))


class _Line(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._received = b""
        self._asked: Asked | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no children of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._number = self._server.joined(self)
        if self._server.is_closed:
            self.drop()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._server.left(self)
        if self._asked is not None and not self._asked.answered.is_set():
            self._asked.hung_up.set()
            if self._task is not None:
                self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, rest = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        if len(rest) < size:
            return
        self._received = rest[size:]
        method, path, _ = first.split(" ")
        self._asked = Asked(method, path, headers, rest[:size], self._number)
        self._task = self._server.take(self, self._asked)

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def send_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers)]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def send_whole(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        given = {name.lower() for name, _ in headers}
        kind = [] if "content-type" in given else [("content-type", "application/json")]
        self.send_head(status, [*headers, *kind, ("content-length", str(len(body)))])
        self.send(body)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _play(line: _Line, reply: Reply, wire: Wire) -> None:
    if reply.before_head is not None:
        await reply.before_head()
    if reply.body is not None:
        line.send_whole(reply.status, reply.headers, reply.body)
        return
    kind = "application/vnd.amazon.eventstream" if wire == "bedrock" else "text/event-stream"
    line.send_head(reply.status, [("content-type", kind), ("transfer-encoding", "chunked"), *reply.headers])
    count = 0
    for item in reply.raw if reply.raw is not None else WIRES[wire](reply):
        if callable(item):
            await item()
            continue
        if count == reply.cut_after:
            break
        count += 1
        for piece in reply.pieces(item) if reply.pieces is not None else (item,):
            line.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            # The other side, on the same loop, reads each piece by itself.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    if reply.cut_after is not None and not reply.ends_politely:
        line.drop()
    else:
        line.send(b"0\r\n\r\n")


def _in_order(replies: list[Reply]) -> Script:
    def script(_: Asked) -> Reply:
        return replies.pop(0) if len(replies) > 1 else replies[0]

    return script
