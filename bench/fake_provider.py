"""`python -m bench.fake_provider`: a provider on the OpenAI chat wire that answers at once, as a process of its own.

The last `words=COUNT [pause=MILLISECONDS] [each=GROUP] [stamped] [watched]` of a request determines the response: COUNT
tokens, without a pause in one write, and with a pause one by one or in groups. A token begins with "@", which occurs
nowhere else in an event stream. A stamped token, or one after a pause, is the time of its sending on the monotonic
clock, which all processes of a machine share. If a watched response with pauses ends early, the time at which its
connection was closed is printed.
"""

import asyncio
import re
import time
from functools import cache
from typing import cast

import uvloop

from holdfast.tasks import TaskOwner

__all__ = ["SMALL_MODEL", "main"]

SMALL_MODEL = "small"
"""The model that writes titles: its responses are short, whatever the request."""

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ORDER = re.compile(rb"words=(\d+)(?: pause=(\d+))?(?: each=(\d+))?( stamped)?( watched)?")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_SMALL = re.compile(f'"model": ?"{SMALL_MODEL}"'.encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _token(text: str) -> bytes:
    choice = f'{{"index":0,"delta":{{"content":"{text} "}},"logprobs":null,"finish_reason":null}}'
    output = f'{{"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{choice}]}}'
    return _chunk(f"data: {output}\n\n".encode())


_END = (
    _chunk(b'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    + b"0\r\n\r\n"
)


@cache
def _tokens(count: int) -> bytes:
    return b"".join(_token(f"@{number % 10_000:04}") for number in range(count))


def _stamp() -> str:
    return f"@{time.monotonic():.9f}"


class _Connection(asyncio.Protocol):
    """One connection. A request that follows waits until the client has read the response before it."""

    def __init__(self) -> None:
        self._received = b""
        self._tasks = TaskOwner()
        self._is_watched = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._tasks.cancel_all()
        if self._is_watched:
            print(f"{time.monotonic():.9f}", flush=True)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, rest = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(rest) >= size:
            self._received = rest[size:]
            self._respond(rest[:size])

    def _respond(self, body: bytes) -> None:
        orders = _ORDER.findall(body)
        count, pause, group, is_stamped, is_watched = orders[-1] if orders else (b"1", *[b""] * 4)
        if _SMALL.search(body):
            self._write(_HEAD + _token("Title") + _END)
        elif pause:
            self._is_watched = bool(is_watched)
            self._tasks.start(
                self._pace(int(count), int(pause) / 1e3, int(group or 1)), name="pace", done=lambda _: None
            )
        elif is_stamped:
            self._write(_HEAD + b"".join(_token(_stamp()) for _ in range(int(count))) + _END)
        else:
            self._write(_HEAD + _tokens(int(count)) + _END)

    async def _pace(self, count: int, pause: float, group: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        self._write(_HEAD)
        for _ in range(0, count, group):
            due += pause
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._write(b"".join(_token(_stamp()) for _ in range(group)))
        self._write(_END)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Print the port and serve until the process is terminated."""
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
