"""JSON-RPC connection to one language server: message framing, and requests over the pipes of its process.

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
from holdfast.domain.surrogates import replace_json_surrogates
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.guard_client import CannotStart
from holdfast.workspace.process.piped_process import GuardedChild

__all__ = [
    "MAX_BODY_BYTES",
    "ConnectionClosed",
    "FrameParser",
    "Incoming",
    "LspConnection",
    "ProtocolError",
    "RequestRefused",
    "RequestTimeout",
    "RpcError",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_response",
]


# Framing, pure: a header with the content length, then the JSON body.

MAX_BODY_BYTES = 32 << 20
_MAX_HEADER_BYTES = 4_096
_HEADER_END = b"\r\n\r\n"


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

    def __init__(self, max_body: int = MAX_BODY_BYTES) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._length = -1
        """Length of the current body; -1 while reading a header."""

    def feed(self, data: bytes) -> list[Incoming]:
        """Add input and return the messages that are now complete. Raises `ProtocolError`."""
        self._buffer += data
        messages: list[Incoming] = []
        while (body := self._next_body()) is not None:
            try:
                messages.append(_decoder.decode(replace_json_surrogates(body)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"It sent a message that is not JSON-RPC: {error}.") from None
        return messages

    def _next_body(self) -> bytes | None:
        if self._length < 0:
            end = self._buffer.find(_HEADER_END)
            if (end if end >= 0 else len(self._buffer)) > _MAX_HEADER_BYTES:
                raise ProtocolError(f"It sent output that is not a message: {_preview(self._buffer)}.")
            if end < 0:
                return None
            self._length = self._parse_header(bytes(self._buffer[:end]))
            del self._buffer[: end + len(_HEADER_END)]
        if len(self._buffer) < self._length:
            return None
        body = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        self._length = -1
        return body

    def _parse_header(self, header: bytes) -> int:
        for line in header.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value)
                if length > self._max_body:
                    raise ProtocolError(f"It sent a message of {length:,} bytes; the limit is {self._max_body:,}.")
                return length
        raise ProtocolError(f"It sent output that is not a message: {_preview(header)}.")


def encode_request(request_id: int, method: str, params: object) -> bytes:
    """Encode a request."""
    return _frame({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def encode_notification(method: str, params: object) -> bytes:
    """Encode a notification."""
    return _frame({"jsonrpc": "2.0", "method": method, "params": params})


def encode_response(id: int | str, result: object) -> bytes:
    """Encode a response."""
    return _frame({"jsonrpc": "2.0", "id": id, "result": result})


def encode_error(id: int | str, code: int, message: str) -> bytes:
    """Encode an error response."""
    return _frame({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def _frame(message: dict[str, Any]) -> bytes:
    body = _encoder.encode(message)
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _preview(data: bytes | bytearray) -> str:
    text = bytes(data[:80]).decode("utf-8", "replace")
    return repr("".join(character if character.isprintable() else " " for character in text).strip())


_CHUNK = 1 << 16
_MAX_QUEUED_BYTES = 32 << 20
_MAX_STDERR_TAIL = 2_000
_STDERR_TIMEOUT = 0.2
_BURST_MESSAGES = 500
_BURST_PAUSE = 0.05
"""Pause in seconds after a burst of messages or output: a flooding server is read slowly."""
_METHOD_NOT_FOUND = -32601
_ERROR_LINE = re.compile(r"(?i)\b(cannot|could not|no such|not found|failed|error)\b.{6}")
"""Lines of stderr that explain more than the end of a stack trace."""


class ConnectionClosed(ToolError):
    """The language server has ended."""


class RequestTimeout(ToolError):
    """The language server did not answer in time."""


class RequestRefused(ToolError):
    """The language server refused."""


class LspConnection:
    """The connection.

    `on_message` receives the notifications and requests of the server; its return value is the result of a request.
    `on_close` is called once, with the reason. `on_stderr` receives stderr output, `trace` all messages.
    """

    def __init__(
        self,
        child: GuardedChild,
        on_message: Callable[[Incoming], object],
        on_close: Callable[[str], None],
        on_stderr: Callable[[str], None] = lambda _: None,
        trace: Callable[[str, str], None] | None = None,
    ) -> None:
        self._child = child
        self._on_message = on_message
        self._on_close = on_close
        self._on_stderr = on_stderr
        self._trace = trace
        self._tasks = TaskOwner()
        self._pending: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_id = 0
        self._outbox: deque[bytes] = deque()
        self._queued_bytes = 0
        self._has_output = asyncio.Event()
        self._stderr_tail = bytearray()
        self.is_closed = False

    def start(self) -> None:
        """Start the reader, writer and watcher tasks."""
        self._tasks.start(self._read(), name="language server: read")
        self._tasks.start(self._write(), name="language server: write")
        errors = self._tasks.start(self._read_stderr(), name="language server: errors")
        self._tasks.start(self._wait_for_exit(errors), name="language server: end")

    # Sending

    def notify(self, method: str, params: object) -> None:
        """Send a notification."""
        self._enqueue(method, encode_notification(method, params))

    async def request(self, method: str, params: object, seconds: float) -> msgspec.Raw:
        """Send a request and return the result. Cancellation is sent to the server. Raises `ConnectionClosed`,
        `RequestTimeout` or `RequestRefused`.
        """
        if self.is_closed:
            raise ConnectionClosed
        self._last_id += 1
        request_id = self._last_id
        response: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = response
        self._enqueue(method, encode_request(request_id, method, params))
        try:
            async with asyncio.timeout(seconds):
                return await response
        except TimeoutError:
            raise RequestTimeout(f"The language server did not answer within {seconds:g} s ({method}).") from None
        finally:
            del self._pending[request_id]
            if not response.done() or response.cancelled():
                self.notify("$/cancelRequest", {"id": request_id})

    def _enqueue(self, method: str, message: bytes) -> None:
        if self.is_closed:
            return
        if self._trace is not None:
            self._trace(f"-> {method}", message.partition(b"\r\n\r\n")[2].decode("utf-8", "replace"))
        self._outbox.append(message)
        self._queued_bytes += len(message)
        self._has_output.set()
        if self._queued_bytes > _MAX_QUEUED_BYTES:
            self._fail("It does not read its input.")

    async def _write(self) -> None:
        stdin = self._child.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            while not self.is_closed:
                await self._has_output.wait()
                self._has_output.clear()
                while self._outbox and not self.is_closed:
                    message = self._outbox.popleft()
                    stdin.write(message)
                    await stdin.drain()
                    self._queued_bytes -= len(message)

    # Receiving

    async def _read(self) -> None:
        frames = FrameParser()
        count = 0
        try:
            while data := await self._child.stdout.read(_CHUNK):
                for message in frames.feed(data):
                    self._handle(message)
                    count += 1
                # Yield to other tasks, even if the server sends without a pause.
                await asyncio.sleep(_BURST_PAUSE if count > _BURST_MESSAGES else 0)
                count = 0 if count > _BURST_MESSAGES else count
        except ProtocolError as error:
            self._fail(str(error))

    def _handle(self, message: Incoming) -> None:
        if self.is_closed:
            return
        if self._trace is not None:
            text = (
                message.error.message
                if message.error
                else bytes(message.params if message.method else message.result).decode()
            )
            self._trace(f"<- {message.method or 'answer'}", text)
        if message.method and message.id is not None:
            result = self._on_message(message)
            is_known = result is not NotImplemented
            reply = (
                encode_response(message.id, result)
                if is_known
                else encode_error(message.id, _METHOD_NOT_FOUND, "not known here")
            )
            self._enqueue(f"answer to {message.method}", reply)
        elif message.method:
            self._on_message(message)
        elif (
            isinstance(message.id, int) and (waiter := self._pending.get(message.id)) is not None and not waiter.done()
        ):
            if message.error is not None:
                waiter.set_exception(RequestRefused(f"The language server refused: {message.error.message[:500]}"))
            else:
                waiter.set_result(message.result)

    async def _read_stderr(self) -> None:
        while data := await self._child.stderr.read(_CHUNK):
            if self._trace is not None:
                self._trace("<- stderr", data.decode("utf-8", "replace"))
            self._on_stderr(data.decode("utf-8", "replace"))
            self._stderr_tail = (self._stderr_tail + data)[-_MAX_STDERR_TAIL:]
            if len(data) == _CHUNK:
                await asyncio.sleep(_BURST_PAUSE)

    # Shutdown

    async def _wait_for_exit(self, errors: asyncio.Task[None]) -> None:
        try:
            code = await self._child.wait()
            await asyncio.wait((errors,), timeout=_STDERR_TIMEOUT)
            self._fail(f"It ended with exit code {code}.")
        except CannotStart as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        if self.is_closed:
            return
        self._mark_closed()
        lines = self._stderr_tail.decode("utf-8", "replace").strip().splitlines()
        explaining = [line for line in lines if _ERROR_LINE.search(line)] or lines[-1:]
        self._on_close(f"{reason} Its last output: {explaining[0].strip()[:300]}" if explaining else reason)

    def _mark_closed(self) -> None:
        self.is_closed = True
        self._has_output.set()
        self._outbox.clear()
        for response in self._pending.values():
            if not response.done():
                response.set_exception(ConnectionClosed())

    async def close(self, shutdown_timeout: float = 0.0) -> None:
        """Kill the process and end all tasks. With `shutdown_timeout` seconds, request a shutdown first."""
        try:
            if shutdown_timeout and not self.is_closed:
                await self._shut_down(shutdown_timeout)
        finally:
            self._mark_closed()
            self._child.kill()
            with contextlib.suppress(CannotStart):
                await self._child.wait()
            self._tasks.cancel_all()
            self._child.close()
            await self._tasks.drain()

    async def _shut_down(self, seconds: float) -> None:
        """Request a shutdown. Errors are ignored, because the process is killed afterwards."""
        with contextlib.suppress(ToolError, TimeoutError):
            await self.request("shutdown", None, seconds)
            self.notify("exit", None)
            async with asyncio.timeout(seconds):
                await self._child.wait()
