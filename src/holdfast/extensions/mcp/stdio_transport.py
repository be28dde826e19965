"""Stdio transport: an MCP server as a child process under the process guard, one JSON message per line.

This module imports `mcp`, which is slow to import. It is imported in a thread when a server is configured.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self, TypeAlias

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from holdfast.domain.errors import HoldfastError, ToolError
from holdfast.domain.surrogates import replace_json_surrogates
from holdfast.extensions.mcp.bounded_waits import RateLimit, retrieve_exception
from holdfast.extensions.mcp.mcp_types import MAX_MESSAGE_BYTES, ConnectionClosed, ConnectionParams, McpStartFailed
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.piped_process import GuardedChild

__all__ = ["ExitReason", "run_program"]

ExitReason: TypeAlias = Callable[[], "asyncio.Future[str]"]
"""Returns a future with a description of how the program ended."""

_CHUNK = 65_536
MAX_UNREAD = 32 * 1024 * 1024
"""Maximum bytes of unread input. A program that exceeds it is disconnected."""
EXIT_GRACE = 0.5
"""Grace period in seconds after its input is closed, and again after the termination signal."""
_CHUNK_PAUSE = 0.02


class _Stream:
    """Context manager methods of both streams."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Do nothing: the pipes are closed with the program."""


class MessageReader(_Stream):
    """Messages from the program. The stream ends with its output."""

    def __init__(self, child: GuardedChild, params: ConnectionParams) -> None:
        self._child = child
        self._write_log = params.write_log
        self._unread = bytearray()
        self._searched = 0
        self._rate_limit = RateLimit()

    def __aiter__(self) -> "MessageReader":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            line = await self._line()
            if line is None:
                raise StopAsyncIteration
            if (message := self._message(line)) is not None:
                return message
            await self._rate_limit.step()

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message. Raises `anyio.EndOfStream`."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _line(self) -> bytes | None:
        """Return the next line, or None at the end. Raises `ConnectionClosed` if the line is too long."""
        # Start after the bytes searched before; otherwise a long line would take quadratic time.
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self._searched > MAX_MESSAGE_BYTES:
                raise ConnectionClosed(f"It sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB.")
            piece = await self._child.stdout.read(_CHUNK)
            if not piece:
                return None
            self._unread += piece
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        return line

    def _message(self, line: bytes) -> SessionMessage | None:
        """Parse a line. Returns None for other output, which is written to the log."""
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(replace_json_surrogates(line), by_name=False))
        except ValueError:
            self._write_log(b"[stdout] " + line[:1_000] + b"\n")
            return None


class Outbox(_Stream):
    """Messages to the program. Sending never blocks; it fails when too much input is unread."""

    def __init__(self, child: GuardedChild) -> None:
        assert child.stdin is not None
        self._stdin = child.stdin

    async def send(self, item: SessionMessage, /) -> None:
        """Queue a message. Raises `anyio.BrokenResourceError`."""
        # Waiting for a server that does not read would block every request of its connection.
        if self._stdin.is_closing() or self._stdin.transport.get_write_buffer_size() > MAX_UNREAD:
            raise anyio.BrokenResourceError
        self._stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")


@asynccontextmanager
async def run_program(params: ConnectionParams) -> AsyncIterator[tuple[MessageReader, Outbox, ExitReason]]:
    """Run the program. Yields its two streams and a function that returns how it ended. The program is stopped
    afterwards.
    """
    try:
        child = await params.spawn(params.command, params.directory, params.environment, has_input=True)
    except (OSError, ValueError, HoldfastError) as error:
        raise McpStartFailed(str(error)) from error
    tasks = TaskOwner()
    copying = tasks.start(_copy_stderr(child, params.write_log), name="MCP server stderr")

    def exit_reason() -> "asyncio.Future[str]":
        return tasks.start(_exit_reason(child), name="MCP server exit", done=retrieve_exception)

    try:
        yield MessageReader(child, params), Outbox(child), exit_reason
    finally:
        try:
            await _shut_down(child)
        finally:
            child.kill()
            try:
                # Read the last output of the program, but do not wait for other processes that hold its pipes.
                await asyncio.wait({copying}, timeout=EXIT_GRACE)
            finally:
                tasks.cancel_all()
                child.close()
            await tasks.drain()


async def _exit_reason(child: GuardedChild) -> str:
    """Describe how the program ended. Raises `McpStartFailed` if it never ran."""
    try:
        code = await child.wait()
    except ToolError as error:
        raise McpStartFailed(str(error)) from error
    return f"It ended with exit code {code}."


async def _copy_stderr(child: GuardedChild, write_log: Callable[[bytes], None]) -> None:
    """Copy stderr to the log, with a pause after each full chunk."""
    while piece := await child.stderr.read(_CHUNK):
        write_log(piece)
        # A full chunk indicates a flood: read it slowly, and leave time for other tasks.
        if len(piece) == _CHUNK:
            await asyncio.sleep(_CHUNK_PAUSE)


async def _shut_down(child: GuardedChild) -> None:
    """Shut down as the protocol specifies: close the input, then terminate, then kill."""
    assert child.stdin is not None
    child.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(EXIT_GRACE):
            with suppress(ToolError):
                await child.wait()
            return
    await child.stop(EXIT_GRACE)
