"""JSON-RPC connection to one language server over the pipes of its process.

Sending never blocks: messages are queued, and one task writes them. A server that does not read, sends an invalid
message, or exits is treated as gone, and pending requests fail immediately.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.surrogates import whole_json
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.child_process import GuardedChild
from holdfast.workspace.process.guard import CannotStart

__all__ = [
    "LONGEST",
    "ConnectionClosed",
    "FrameParser",
    "Incoming",
    "LspConnection",
    "ProtocolError",
    "RequestRefused",
    "RequestTimeout",
    "RpcError",
    "answer",
    "notice",
    "question",
    "refusal",
]


# LSP framing of JSON-RPC messages: a header with the content length, then the body. Pure.

LONGEST = 32 << 20
_LONGEST_HEAD = 4_096
_END = b"\r\n\r\n"


class ProtocolError(Exception):
    """The input does not follow the protocol."""


class RpcError(msgspec.Struct, frozen=True):
    """The error of a response."""

    code: int = 0
    message: str = ""


class Incoming(msgspec.Struct, frozen=True):
    """An incoming message: a request has a method and an id, a notification a method, a response an id."""

    method: str = ""
    id: int | str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: RpcError | None = None


_decoder = msgspec.json.Decoder(Incoming)
_encoder = msgspec.json.Encoder()


class FrameParser:
    """Incremental parser for messages."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._unread = bytearray()
        self._length = -1
        """Length of the current body; -1 while reading a header."""

    def feed(self, data: bytes) -> list[Incoming]:
        """Add input and return the messages that are now complete. Raises `ProtocolError`."""
        self._unread += data
        heard: list[Incoming] = []
        while (body := self._body()) is not None:
            try:
                heard.append(_decoder.decode(whole_json(body)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"It sent a message that is no JSON-RPC: {error}.") from None
        return heard

    def _body(self) -> bytes | None:
        if self._length < 0:
            end = self._unread.find(_END)
            if (end if end >= 0 else len(self._unread)) > _LONGEST_HEAD:
                raise ProtocolError(f"It sent something else than messages: {_shown(self._unread)}.")
            if end < 0:
                return None
            self._length = self._read_head(bytes(self._unread[:end]))
            del self._unread[: end + len(_END)]
        if len(self._unread) < self._length:
            return None
        body = bytes(self._unread[: self._length])
        del self._unread[: self._length]
        self._length = -1
        return body

    def _read_head(self, head: bytes) -> int:
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
                if length > self._longest:
                    raise ProtocolError(f"It sent a message of {length:,} bytes; at most {self._longest:,} are taken.")
                return length
        raise ProtocolError(f"It sent something else than messages: {_shown(head)}.")


def question(number: int, method: str, params: object) -> bytes:
    """Encode a request."""
    return _framed({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notice(method: str, params: object) -> bytes:
    """Encode a notification."""
    return _framed({"jsonrpc": "2.0", "method": method, "params": params})


def answer(to: int | str, result: object) -> bytes:
    """Encode a response."""
    return _framed({"jsonrpc": "2.0", "id": to, "result": result})


def refusal(to: int | str, code: int, message: str) -> bytes:
    """Encode an error response."""
    return _framed({"jsonrpc": "2.0", "id": to, "error": {"code": code, "message": message}})


def _framed(message: dict[str, Any]) -> bytes:
    body = _encoder.encode(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _shown(data: bytes | bytearray) -> str:
    text = bytes(data[:80]).decode("utf-8", "replace")
    return repr("".join(character if character.isprintable() else " " for character in text).strip())


# JSON-RPC connection to one language server over the pipes of its process.

_CHUNK = 1 << 16
_MOST_WAITING = 32 << 20
_LAST_WORDS = 2_000
_FOR_LAST_WORDS = 0.2
_BURST = 500
_BREATH = 0.05
"""Pause in seconds after a burst of messages or output: a flooding server is read slowly."""
_UNKNOWN_METHOD = -32601
_TELLING = re.compile(r"(?i)\b(cannot|could not|no such|not found|failed|error)\b.{6}")
"""Lines of stderr that explain more than the end of a stack trace."""


class ConnectionClosed(ToolError):
    """The language server has ended."""


class RequestTimeout(ToolError):
    """The language server did not answer in time."""


class RequestRefused(ToolError):
    """The language server refused."""


class LspConnection:
    """The connection. `hear` receives notifications and requests of the server, and its return value is the response.
    `gone` is called once, with the reason. `printed` receives stderr output; `trace`, if set, receives all messages.
    """

    def __init__(
        self,
        child: GuardedChild,
        hear: Callable[[Incoming], object],
        gone: Callable[[str], None],
        printed: Callable[[str], None] = lambda _: None,
        trace: Callable[[str, str], None] | None = None,
    ) -> None:
        self._child = child
        self._hear = hear
        self._gone = gone
        self._printed = printed
        self._trace = trace
        self._tasks = TaskOwner()
        self._answers: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._count = 0
        self._outbox: deque[bytes] = deque()
        self._waiting = 0
        self._has_mail = asyncio.Event()
        self._said = bytearray()
        self.is_over = False

    def start(self) -> None:
        """Start the reader, writer and watcher tasks."""
        self._tasks.start(self._read(), name="language server: read")
        self._tasks.start(self._write(), name="language server: write")
        errors = self._tasks.start(self._keep_errors(), name="language server: errors")
        self._tasks.start(self._watch(errors), name="language server: end")

    # Sending

    def tell(self, method: str, params: object) -> None:
        """Send a notification."""
        self._post(method, notice(method, params))

    async def ask(self, method: str, params: object, seconds: float) -> msgspec.Raw:
        """Send a request and return the result. Cancellation is sent to the server. Raises `ConnectionClosed`,
        `RequestTimeout` or `RequestRefused`.
        """
        if self.is_over:
            raise ConnectionClosed
        self._count += 1
        number = self._count
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._post(method, question(number, method, params))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"The language server did not answer within {seconds:g} s ({method}).") from None
        finally:
            del self._answers[number]
            if not answer.done() or answer.cancelled():
                self.tell("$/cancelRequest", {"id": number})

    def _post(self, method: str, message: bytes) -> None:
        if self.is_over:
            return
        if self._trace is not None:
            self._trace(f"-> {method}", message.partition(b"\r\n\r\n")[2].decode("utf-8", "replace"))
        self._outbox.append(message)
        self._waiting += len(message)
        self._has_mail.set()
        if self._waiting > _MOST_WAITING:
            self._end("It does not read what it is told.")

    async def _write(self) -> None:
        stdin = self._child.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            while not self.is_over:
                await self._has_mail.wait()
                self._has_mail.clear()
                while self._outbox and not self.is_over:
                    message = self._outbox.popleft()
                    stdin.write(message)
                    await stdin.drain()
                    self._waiting -= len(message)

    # Receiving

    async def _read(self) -> None:
        frames = FrameParser()
        count = 0
        try:
            while data := await self._child.stdout.read(_CHUNK):
                for heard in frames.feed(data):
                    self._take(heard)
                    count += 1
                # Yield to other tasks, even if the server sends without a pause.
                await asyncio.sleep(_BREATH if count > _BURST else 0)
                count = 0 if count > _BURST else count
        except ProtocolError as error:
            self._end(str(error))

    def _take(self, heard: Incoming) -> None:
        if self.is_over:
            return
        if self._trace is not None:
            said = (
                heard.error.message if heard.error else bytes(heard.params if heard.method else heard.result).decode()
            )
            self._trace(f"<- {heard.method or 'answer'}", said)
        if heard.method and heard.id is not None:
            result = self._hear(heard)
            known = result is not NotImplemented
            reply = answer(heard.id, result) if known else refusal(heard.id, _UNKNOWN_METHOD, "not known here")
            self._post(f"answer to {heard.method}", reply)
        elif heard.method:
            self._hear(heard)
        elif isinstance(heard.id, int) and (waiter := self._answers.get(heard.id)) is not None and not waiter.done():
            if heard.error is not None:
                waiter.set_exception(RequestRefused(f"The language server refused: {heard.error.message[:500]}"))
            else:
                waiter.set_result(heard.result)

    async def _keep_errors(self) -> None:
        while data := await self._child.stderr.read(_CHUNK):
            if self._trace is not None:
                self._trace("<- stderr", data.decode("utf-8", "replace"))
            self._printed(data.decode("utf-8", "replace"))
            self._said = (self._said + data)[-_LAST_WORDS:]
            if len(data) == _CHUNK:
                await asyncio.sleep(_BREATH)

    # Shutdown

    async def _watch(self, errors: asyncio.Task[None]) -> None:
        try:
            code = await self._child.wait()
            await asyncio.wait((errors,), timeout=_FOR_LAST_WORDS)
            self._end(f"It ended with exit code {code}.")
        except CannotStart as error:
            self._end(str(error))

    def _end(self, why: str) -> None:
        if self.is_over:
            return
        self._cut()
        words = self._said.decode("utf-8", "replace").strip().splitlines()
        telling = [line for line in words if _TELLING.search(line)] or words[-1:]
        self._gone(f"{why} Its last words: {telling[0].strip()[:300]}" if telling else why)

    def _cut(self) -> None:
        self.is_over = True
        self._has_mail.set()
        self._outbox.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionClosed())

    async def close(self, polite: float = 0.0) -> None:
        """Kill the process and end all tasks. With `polite` seconds, request a shutdown first."""
        try:
            if polite and not self.is_over:
                await self._part(polite)
        finally:
            self._cut()
            self._child.kill()
            with contextlib.suppress(CannotStart):
                await self._child.wait()
            self._tasks.cancel_all()
            self._child.close()
            await self._tasks.drain()

    async def _part(self, seconds: float) -> None:
        """Request a shutdown. Errors are ignored, because the process is killed afterwards."""
        with contextlib.suppress(ToolError, TimeoutError):
            await self.ask("shutdown", None, seconds)
            self.tell("exit", None)
            async with asyncio.timeout(seconds):
                await self._child.wait()
