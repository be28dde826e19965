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
from holdfast.extensions.mcp.detached_wait import RateLimit, seen
from holdfast.extensions.mcp.mcp_types import LARGEST, ConnectionClosed, Plan, StartFailed
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.child_process import GuardedChild

__all__ = ["How", "running"]

How: TypeAlias = Callable[[], "asyncio.Future[str]"]
"""Returns a future with a description of how the program ended."""

_CHUNK = 65_536
MOST_UNREAD = 32 * 1024 * 1024
"""Maximum bytes of unread input. A program that exceeds it is disconnected."""
LEAVING = 0.5
"""Grace period in seconds after its input is closed, and again after the termination signal."""
_BREATH = 0.02


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


class Lines(_Stream):
    """Messages from the program. The stream ends with its output."""

    def __init__(self, child: GuardedChild, plan: Plan) -> None:
        self._child = child
        self._said = plan.said
        self._unread = bytearray()
        self._seen = 0
        self._pace = RateLimit()

    def __aiter__(self) -> "Lines":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            line = await self._line()
            if line is None:
                raise StopAsyncIteration
            if (message := self._message(line)) is not None:
                return message
            await self._pace.step()

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message. Raises `anyio.EndOfStream`."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _line(self) -> bytes | None:
        """Return the next line, or None at the end. Raises `ConnectionClosed` if the line is too long."""
        # Start after the bytes searched before; otherwise a long line would take quadratic time.
        while (end := self._unread.find(b"\n", self._seen)) < 0:
            self._seen = len(self._unread)
            if self._seen > LARGEST:
                raise ConnectionClosed(f"It sent a message of more than {LARGEST >> 20} MiB.")
            piece = await self._child.stdout.read(_CHUNK)
            if not piece:
                return None
            self._unread += piece
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._seen = 0
        return line

    def _message(self, line: bytes) -> SessionMessage | None:
        """Parse a line. Returns None for other output, which is written to the log."""
        if not line.strip():
            return None
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(replace_json_surrogates(line), by_name=False))
        except ValueError:
            self._said(b"[stdout] " + line[:1_000] + b"\n")
            return None


class Outbox(_Stream):
    """Messages to the program. Sending never blocks; it fails when too much input is unread."""

    def __init__(self, child: GuardedChild) -> None:
        assert child.stdin is not None
        self._stdin = child.stdin

    async def send(self, item: SessionMessage, /) -> None:
        """Queue a message. Raises `anyio.BrokenResourceError`."""
        if self._stdin.is_closing() or self._stdin.transport.get_write_buffer_size() > MOST_UNREAD:
            raise anyio.BrokenResourceError
        self._stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")


@asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[tuple[Lines, Outbox, How]]:
    """Run the program. Yields its two streams and a function that returns how it ended. The program is stopped
    afterwards.
    """
    try:
        child = await plan.spawn(plan.command, plan.directory, plan.environment, has_input=True)
    except (OSError, ValueError, HoldfastError) as error:
        raise StartFailed(str(error)) from error
    tasks = TaskOwner()
    listening = tasks.start(_listen(child, plan.said), name="what a server of tools prints")

    def ended() -> "asyncio.Future[str]":
        return tasks.start(_how(child), name="how a server of tools ended", done=seen)

    try:
        yield Lines(child, plan), Outbox(child), ended
    finally:
        try:
            await _leave(child)
        finally:
            child.kill()
            try:
                # Read the last output of the program, but do not wait for other processes that hold its pipes.
                await asyncio.wait({listening}, timeout=LEAVING)
            finally:
                tasks.cancel_all()
                child.close()
            await tasks.drain()


async def _how(child: GuardedChild) -> str:
    """Describe how the program ended. Raises `StartFailed` if it never ran."""
    try:
        code = await child.wait()
    except ToolError as error:
        raise StartFailed(str(error)) from error
    return f"It ended with exit code {code}."


async def _listen(child: GuardedChild, said: Callable[[bytes], None]) -> None:
    """Copy stderr to the log, with a pause after each full chunk."""
    while piece := await child.stderr.read(_CHUNK):
        said(piece)
        if len(piece) == _CHUNK:
            await asyncio.sleep(_BREATH)


async def _leave(child: GuardedChild) -> None:
    """Shut down as the protocol specifies: close the input, then terminate, then kill."""
    assert child.stdin is not None
    child.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(LEAVING):
            with suppress(ToolError):
                await child.wait()
            return
    await child.stop(LEAVING)
