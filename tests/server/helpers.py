"""The real server on a real socket, in the event loop of the test or in a process, with helpers for both."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.client import Client
from holdfast.client.events import StreamEvent
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import locate
from holdfast.domain.events import RunComplete, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart, TextDelta
from holdfast.domain.settings import Options
from holdfast.engine.ports import Model, Models, Tools
from holdfast.engine.settings import EngineSettings
from holdfast.http11.client_messages import ResponseHead, ResponseParser
from holdfast.http11.sse import SseEvent, SseReader
from holdfast.protocol.bodies import AgentMessage, PromptAccepted
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.server.http.application import Application
from holdfast.server.http.connection import HttpServer
from holdfast.server.http.listen import UnixListener, bind_tcp
from holdfast.server.http.token_auth import TokenAuth, read_or_make_token
from holdfast.server.presence import Stop
from holdfast.server.routes.handlers import HANDLERS
from holdfast.server.serve import run_server
from holdfast.server.streams.event_stream import stream
from holdfast.server.telemetry.observers import Observers
from holdfast.server.workspace_manager import GracePeriods, WorkspaceManager
from holdfast.testing.gates import start
from holdfast.testing.harness import FixedModels
from scratch import scratch_directory

__all__ = [
    "QUICK",
    "SERVE",
    "EchoModel",
    "FeedModel",
    "RawResponse",
    "RawStream",
    "Server",
    "ServerDirectory",
    "ServerProcess",
    "collect_run_ends",
    "exchange",
    "in_process_server",
    "open_raw",
    "raw_request",
    "read_until",
    "run_ended",
    "send_prompt",
    "server_directory",
    "server_process",
]

QUICK = EngineSettings(titles=False, grace=0.3, closing=0.5, cancel_write=10.0)
"""A slow disk must not turn a cancel into a 503 here; the tests of the engine cover that case."""
SERVE = (sys.executable, "-P", "-m", "holdfast", "serve")
_TIMEOUT = 20.0


class RawResponse(msgspec.Struct, frozen=True):
    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever came
        return json.loads(self.body)


class EchoModel:
    """Model that answers every prompt with `echo: ` and the prompt, word by word."""

    def __init__(self) -> None:
        self.model = ScriptedModel(lambda request: Step((Say(f"echo: {text_of(request.messages[-1])}"),)))

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    @property
    def requests(self) -> list[ModelRequest]:
        return self.model.requests

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        async for part in self.model.stream(request):
            yield part


class FeedModel(EchoModel):
    """Model that streams the items of `words`, one delta each; None ends the response."""

    def __init__(self) -> None:
        super().__init__()
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        self.asked = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        self.asked.set()
        while (word := await self.words.get()) is not None:
            yield TextDelta(word)
        async for part in ScriptedModel([Step(())]).stream(request):
            yield part


class ServerDirectory:
    """A short directory path with a socket, data and projects."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = root / "run" / "s"
        self.data = root / "data"

    def project(self, name: str = "project") -> str:
        path = self.root / name
        path.mkdir(exist_ok=True)
        return str(path)

    @property
    def address(self) -> ServerAddress:
        return ServerAddress(path=str(self.socket))


@asynccontextmanager
async def server_directory() -> AsyncIterator[ServerDirectory]:
    with scratch_directory() as root:
        yield ServerDirectory(root)


class Server:
    """A running server, accessible to clients and, through its manager, to the test."""

    def __init__(
        self,
        directory: ServerDirectory,
        manager: WorkspaceManager,
        application: Application,
        observers: Observers,
        stack: AsyncExitStack,
    ) -> None:
        self.directory = directory
        self.manager = manager
        self.application = application
        self.observers = observers
        self.address = directory.address
        self.tcp: ServerAddress = ServerAddress()
        self.over: asyncio.Task[None] | None = None
        self._stack = stack

    async def client(self, address: ServerAddress | None = None) -> Client:
        return await self._stack.enter_async_context(Client(address or self.address, seconds=_TIMEOUT))

    async def stop(self) -> None:
        if self.over is not None and not self.over.done():
            self.manager.apply(Stop())
        if self.over is not None:
            await self.over

    async def open_workspace(self, project: str = "project") -> tuple[Client, WorkspaceId]:
        """Open a workspace with a new client."""
        client = await self.client()
        return client, (await client.create_workspace(self.directory.project(project))).id


@asynccontextmanager
async def in_process_server(
    directory: ServerDirectory,
    models: Model | FixedModels | None = None,
    *,
    graces: GracePeriods | None = None,
    leaves_when_idle: bool = False,
    with_tcp: bool = False,
    settings: EngineSettings = QUICK,
    tools: Tools | None = None,
    warms_guard: bool = False,
    observers: Observers | None = None,
) -> AsyncIterator[Server]:
    """Run the real server in this loop.

    It is stopped at the end unless it has already stopped. The process guard starts with the first command, because
    most tests run none.
    """
    chosen: Models = models if isinstance(models, FixedModels) else FixedModels(models or EchoModel())
    async with AsyncExitStack() as stack:
        listener = UnixListener(directory.socket)
        stack.callback(listener.close)
        manager = WorkspaceManager(
            ServerServices(directory.data, ServiceOverrides(settings, chosen, tools, warms_guard=warms_guard)),
            graces=graces or GracePeriods(),
            leaves_when_idle=leaves_when_idle,
        )
        watching = observers or Observers(Options())
        application = Application(manager, watching, HttpServer(), HANDLERS, stream)
        server = Server(directory, manager, application, watching, stack)
        sockets, guard = [listener.socket], None
        if with_tcp:
            tcp = bind_tcp("127.0.0.1", 0)
            stack.callback(tcp.close)
            sockets.append(tcp)
            port = tcp.getsockname()[1]
            token = read_or_make_token(directory.data)
            guard = TokenAuth(token, [f"127.0.0.1:{port}", f"localhost:{port}"])
            server.tcp = ServerAddress(host="127.0.0.1", port=port, token=token)
        listening = asyncio.Event()
        running = run_server(manager, application, sockets, guard, on_listening=listening.set, handles_signals=False)
        server.over = start(running)
        stack.push_async_callback(server.stop)
        await listening.wait()
        yield server


class ServerProcess:
    """`holdfast serve` in a process, with the built-in scripted model."""

    def __init__(self, directory: ServerDirectory, process: asyncio.subprocess.Process, log: Path) -> None:
        self.directory = directory
        self.process = process
        self.log = log

    async def wait(self) -> int:
        async with asyncio.timeout(_TIMEOUT):
            return await self.process.wait()


@asynccontextmanager
async def server_process(directory: ServerDirectory, *options: str) -> AsyncIterator[ServerProcess]:
    """Start `holdfast serve` and wait until it answers on its socket."""
    log = directory.root / "log"
    directory.socket.parent.mkdir(mode=0o700, exist_ok=True)
    command = [*SERVE, "--data-dir", str(directory.data)]
    command += options or ("--host", f"unix://{directory.socket}")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory.root), "HOLDFAST_HOST": ""}
    with log.open("ab") as file:
        running = await asyncio.create_subprocess_exec(*command, stdout=file, stderr=file, env=environment)
    try:
        async with asyncio.timeout(_TIMEOUT):
            found = locate(None, str(directory.data), environment).address if options else directory.address
            await _wait_for_response(found, running)
        yield ServerProcess(directory, running, log)
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def _wait_for_response(address: ServerAddress, running: asyncio.subprocess.Process) -> None:
    while running.returncode is None:
        try:
            answer = await exchange(address, b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")
        except OSError:
            await asyncio.sleep(_poll_interval())
            continue
        if answer.status == 200:
            return
    raise AssertionError("the server has ended")


def _poll_interval() -> float:
    """Return the polling interval: the process does not report when it is ready."""
    return 0.01


async def open_raw(address: ServerAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    return await asyncio.open_connection(address.host, address.port)


async def exchange(address: ServerAddress, request: bytes) -> RawResponse:
    """Send exactly these bytes and read one response."""
    reader, writer = await open_raw(address)
    try:
        writer.write(request)
        response = ResponseParser("HEAD" if request.startswith(b"HEAD ") else "GET")
        body = b""
        async with asyncio.timeout(_TIMEOUT):
            while not response.is_done:
                data = await reader.read(65536)
                body += response.feed(data) if data else b""
                if not data:
                    response.end()
        assert response.head is not None
        return RawResponse(response.head, body)
    finally:
        writer.transport.abort()


def raw_request(path: str, method: str = "GET", body: bytes | None = None, headers: Sequence[str] = ()) -> bytes:
    """Build a request without any additional headers."""
    lines = [f"{method} {path} HTTP/1.1", *headers]
    if not any(line.lower().startswith("host:") for line in headers):
        lines.insert(1, "Host: holdfast.localhost")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class RawStream:
    """An event stream as bytes. `raw` is the body so far, `wire` includes the head."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.response = ResponseParser()
        self.sse = SseReader()
        self.raw = b""
        self.wire = b""
        self.events: list[SseEvent] = []
        self.is_over = False

    @classmethod
    async def open(cls, address: ServerAddress, path: str, headers: Sequence[str] = ()) -> "RawStream":
        reader, writer = await open_raw(address)
        stream = cls(reader, writer)
        writer.write(raw_request(path, headers=headers))
        while stream.response.head is None:
            await stream.more()
        return stream

    async def more(self) -> None:
        async with asyncio.timeout(_TIMEOUT):
            data = await self.reader.read(65536)
        self.wire += data
        if data:
            body = self.response.feed(data)
            self.raw += body
            self.events += self.sse.feed(body)
        else:
            self.response.end()
        self.is_over = self.response.is_done or not data

    async def until(self, condition: Callable[[SseEvent], object]) -> SseEvent:
        seen = 0
        while True:
            for event in self.events[seen:]:
                if condition(event):
                    return event
            seen = len(self.events)
            assert not self.is_over, "the stream is over"
            await self.more()

    async def rest(self) -> bytes:
        """Read to the end of the body, which `ResponseParser` checks."""
        while not self.is_over:
            await self.more()
        return self.raw

    def close(self) -> None:
        self.writer.transport.abort()


async def read_until(
    items: AsyncIterator[StreamEvent], condition: Callable[[StreamEvent], object]
) -> list[StreamEvent]:
    """Read items up to and including the first one that meets the condition."""
    seen: list[StreamEvent] = []
    async with asyncio.timeout(_TIMEOUT):
        async for item in items:
            seen.append(item)
            if condition(item):
                return seen
    raise AssertionError("the stream ended before it came")


def run_ended(run: RunId | str) -> Callable[[StreamEvent], bool]:
    def is_end(item: StreamEvent) -> bool:
        return isinstance(item.event, RunCompleteEvent) and item.event.change.object.run_id == run

    return is_end


async def collect_run_ends(
    client: Client, workspace: WorkspaceId, runs: Sequence[str], since: int = 0
) -> list[RunComplete]:
    """Return the ends of these runs in the order of publication; each must occur exactly once."""
    ends: list[RunComplete] = []
    missing = set(runs)
    async with client.events(workspace, since=since) as events:

        def note(item: StreamEvent) -> bool:
            if isinstance(item.event, RunCompleteEvent):
                ends.append(item.event.change.object)
                missing.discard(item.event.change.object.run_id)
            return not missing

        await read_until(events, note)
    return ends


async def send_prompt(
    client: Client, workspace: WorkspaceId, session: SessionId, text: str, run: str = ""
) -> PromptAccepted:
    return await client.send_prompt(workspace, AgentMessage(session, text, RunId(run)))
