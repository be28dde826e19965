"""The cost of one piece of a model's response on its way from the provider's socket: paced, and in a burst.

The provider is a separate process. "Alone" means that the parts are not used; "end to end", that they pass through the
engine to the socket of one reader, which is a separate process too. The limit is a relay that copies the same bytes
from one socket to the other without parsing them. When paced, each piece arrives alone and wakes every process; all
figures include this wake-up, which is the largest share on many machines. For comparison the last rows have the same
bytes read by httpx2 and decoded by msgspec.
"""

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import httpx2
import msgspec
import uvloop

from bench.figures import Figure, Goal
from bench.in_process import WorkspaceUnderTest, sessions, workspace_under_test
from holdfast.bus.bus import Bus
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.runs import Prompt
from holdfast.domain.settings import Selection
from holdfast.http11.sse import frame
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.shared_http_clients import close_connections
from holdfast.tasks import TaskOwner

__all__ = ["measure"]

PACED, BURST = 1_000, 5_000
PAUSE = 0.0004
"""Seconds between two pieces: quicker than any model, slow enough that each comes by itself."""
ROUNDS = 5

_PROVIDER = """
import asyncio, json, sys
count, pause = int(sys.argv[1]), float(sys.argv[2])
def packed(data):
    return b"%x\\r\\n%s\\r\\n" % (len(data), data)
def piece(number):
    choice = {"index": 0, "delta": {"content": f" w{number % 10000:04}"}, "logprobs": None, "finish_reason": None}
    said = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m"}
    said["choices"] = [choice]
    return packed(b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\\n\\n")
pieces = [piece(number) for number in range(count)]
end = packed(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\\n\\ndata: [DONE]\\n\\n') + b"0\\r\\n\\r\\n"
head = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
async def serve(reader, writer):
    try:
        while True:
            asked = await reader.readuntil(b"\\r\\n\\r\\n")
            lines = asked.lower().split(b"\\r\\n")
            await reader.readexactly(sum(int(line[15:]) for line in lines if line.startswith(b"content-length:")))
            writer.write(head)
            if pause:
                loop = asyncio.get_running_loop()
                due = loop.time()
                for data in pieces:
                    writer.write(data)
                    due += pause
                    while loop.time() < due:
                        await asyncio.sleep(0)
            else:
                writer.write(b"".join(pieces))
            writer.write(end)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

_READER = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("ready", flush=True)
connection, _ = server.accept()
while connection.recv(65536):
    pass
"""


class OneModel:
    """Provides the same model to every run."""

    def __init__(self, model: CompatibleModel) -> None:
        self._model = model

    async def large(self) -> CompatibleModel:
        return self._model

    async def small(self) -> CompatibleModel:
        return self._model

    async def renewed(self, _: object) -> None:
        return None


@contextmanager
def provider(count: int, pause: float) -> Iterator[str]:
    with _process(_PROVIDER, str(count), str(pause)) as line:
        yield f"http://127.0.0.1:{line}/v1"


@contextmanager
def _process(script: str, *arguments: str) -> Iterator[str]:
    """Start a process and return it with its first output line."""
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _model(url: str) -> CompatibleModel:
    return CompatibleModel(ModelInfo("bench", "m", context_window=200_000), ModelAccess(url, "a-key"), Selection())


def _request() -> ModelRequest:
    asked = Message((TextPart(Text("Go on.")),), MessageId("m"), "user", SessionId("s"), "", "", 0, 0)
    return ModelRequest(SessionId("s"), "Be brief.", (asked,))


async def _alone(url: str) -> float:
    began = time.process_time()
    async for _ in _model(url).stream(_request()):
        pass
    return time.process_time() - began


async def _floor(url: str, client: httpx2.AsyncClient) -> float:
    """Read with httpx2 and decode with msgspec, without subscribers."""
    decoder = msgspec.json.Decoder()
    began, rest = time.process_time(), b""
    async with client.stream("POST", f"{url}/chat/completions", json={}) as response:
        async for data in response.aiter_raw():
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                if event != b"data: [DONE]":
                    decoder.decode(event[6:])
    return time.process_time() - began


class _Relay(asyncio.Protocol):
    """Relays bytes without parsing them."""

    def __init__(self, to: asyncio.WriteTransport | None) -> None:
        self._to = to
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self._to is not None:
            self._to.write(data)
        if data.endswith(b"0\r\n\r\n") and not self.is_over.done():
            self.is_over.set_result(None)


async def _relayed(url: str, to: asyncio.WriteTransport | None) -> float:
    port = urlsplit(url).port
    assert port is not None
    transport, relay = await asyncio.get_running_loop().create_connection(lambda: _Relay(to), "127.0.0.1", port)
    began = time.process_time()
    transport.write(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    await relay.is_over
    spent = time.process_time() - began
    transport.close()
    return spent


async def _adapter(count: int, pause: float) -> tuple[float, float, float]:
    """Return microseconds per piece: of the adapter, of a relay without a reader, and of httpx2."""
    with provider(count, pause) as url:
        async with httpx2.AsyncClient(timeout=60) as client:
            await _alone(url)
            await _floor(url, client)
            gc.collect()
            rounds = [(await _alone(url), await _relayed(url, None), await _floor(url, client)) for _ in range(ROUNDS)]
        await close_connections()
    ours, bare, theirs = zip(*rounds, strict=True)
    return _per_piece(ours, count), _per_piece(bare, count), _per_piece(theirs, count)


def _per_piece(seconds: Sequence[float], count: int) -> float:
    return median(seconds) / count * 1e6


async def _write(bus: Bus, path: Path) -> None:
    """Write joined frames to a socket, as the server does for a reader."""
    _, writer = await asyncio.open_unix_connection(str(path))
    received = bus.subscribe(None)
    while frames := await received.take():
        writer.write(b"".join(frame(item.body, item.number) for item in frames))
        await writer.drain()
    writer.close()


@asynccontextmanager
async def _with_reader(url: str) -> AsyncIterator[WorkspaceUnderTest]:
    readers = TaskOwner()
    async with workspace_under_test(OneModel(_model(url))) as on:
        path = on.path / "reader.sock"
        with _process(_READER, str(path)):
            readers.start(_write(on.workspace.bus, path), name="reader")
            yield on
            readers.cancel_all()
            await readers.drain()


async def _turn(on: WorkspaceUnderTest, session: SessionId) -> float:
    began = time.process_time()
    run = await on.workspace.inputs.submit(Prompt(session, "Tell me about it, at length.", delivery="queue"))
    await on.ends.of(run.run_id)
    await on.workspace.engine.wait_until_idle(session)
    return time.process_time() - began


@asynccontextmanager
async def _nowhere(on: WorkspaceUnderTest) -> AsyncIterator[asyncio.WriteTransport]:
    """Return the socket of a second reader, for the relay."""
    path = on.path / "relay.sock"
    with _process(_READER, str(path)):
        _, writer = await asyncio.open_unix_connection(str(path))
        yield writer.transport
        writer.close()


async def _end_to_end(count: int, pause: float) -> tuple[float, float]:
    with provider(count, pause) as url:
        async with _with_reader(url) as on, _nowhere(on) as reader:
            first, *rest = await sessions(on, ROUNDS + 1)
            await _turn(on, first)
            await _relayed(url, reader)
            gc.collect()
            pairs = [(await _turn(on, session), await _relayed(url, reader)) for session in rest]
        await close_connections()
    ours, bare = zip(*pairs, strict=True)
    return _per_piece(ours, count), _per_piece(bare, count)


def measure() -> list[Figure]:
    paced, burst = uvloop.run(_adapter(PACED, PAUSE)), uvloop.run(_adapter(BURST, 0.0))
    through, flood = uvloop.run(_end_to_end(PACED, PAUSE)), uvloop.run(_end_to_end(BURST, 0.0))
    to_nowhere, relay = "the same bytes, read", "the same bytes, relayed unread"
    beside = "httpx2 reads, msgspec decodes"
    return [
        Figure("provider to reader, paced", through[0], "µs", through[1], relay, Goal(60)),
        Figure("provider to reader, in a burst", flood[0], "µs", flood[1], relay, Goal(25)),
        Figure("lean adapter alone, paced", paced[0], "µs", paced[1], to_nowhere),
        Figure("lean adapter alone, in a burst", burst[0], "µs", burst[1], to_nowhere),
        Figure("lean adapter to httpx2, paced", paced[0], "µs", paced[2], beside),
        Figure("lean adapter to httpx2, in a burst", burst[0], "µs", burst[2], beside),
    ]
