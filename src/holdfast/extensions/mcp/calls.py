"""Tool calls of MCP servers, with an inactivity timeout. A cancelled run cancels its calls on the server."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.extensions.mcp.patience import Patience, seen
from holdfast.extensions.mcp.server import McpServer
from holdfast.extensions.mcp.shapes import Ask, Progress
from holdfast.extensions.mcp.troubles import CallFailed, Expired, Gone, sentence
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.extensions.mcp.wire import Connection

__all__ = ["Calls"]

_AFTER = 1.0


class Calls:
    """Runs the tool calls of one workspace. `look_after` is called with a server that may have stalled."""

    def __init__(self, patience: Patience, look_after: Callable[[McpServer], None]) -> None:
        self._patience = patience
        self._look_after = look_after

    async def call(
        self, server: McpServer, tool: str, arguments: Mapping[str, Any], tell: Progress, ask: Ask
    ) -> dict[str, Any]:
        """Call a tool and return its result. A call refused for an expired session is repeated once. Raises
        `CallFailed`.
        """
        with suppress(Expired):
            return await self._once(server, tool, arguments, tell, ask)
        try:
            # The server refused the session before it started the tool, so the tool does not run twice.
            return await self._once(server, tool, arguments, tell, ask)
        except Expired:
            raise CallFailed(
                f"The MCP server {server.name} refused {tool} twice: it did not know a session that it had just begun."
            ) from None

    async def _once(
        self, server: McpServer, tool: str, arguments: Mapping[str, Any], tell: Progress, ask: Ask
    ) -> dict[str, Any]:
        connection = await server.connection()
        life = _Life(float(server.settings.call_timeout), tell, ask)
        try:
            work = connection.call(tool, arguments, life.heard, life.asked)
            return await self._patience.wait(work, life.left, name=f"{server.name}: {tool}")
        except Expired:
            connection.end("It does not know this connection any more.")
            raise
        except Gone as error:
            raise CallFailed(await _why_gone(server, connection, tool, error)) from None
        except TimeoutError:
            self._look_after(server)
            raise CallFailed(
                f"{tool} of the MCP server {server.name} said nothing for {life.seconds:g} s and was cancelled. "
                "Whether it did anything is not known."
            ) from None
        finally:
            await life.end()


class _Life:
    """Inactivity timer of a call. Progress resets it, and it is suspended while the user answers an elicitation."""

    def __init__(self, seconds: float, tell: Progress, ask: Ask) -> None:
        self.seconds = seconds
        self._tell = tell
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._questions = TaskOwner()

    async def heard(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward progress and reset the timer."""
        self._heard_at = self._loop.time()
        await self._tell(progress, total, message)

    async def asked(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an elicitation. It is cancelled when the call ends."""
        question = self._questions.start(self._ask(wanted), name="a question of a server of tools", done=seen)
        await asyncio.wait({question})
        self._heard_at = self._loop.time()
        return {"action": "cancel"} if question.cancelled() else question.result()

    def left(self) -> float | None:
        """Return the seconds until the timeout, or None without a limit."""
        if not self.seconds:
            return None
        return self.seconds if len(self._questions) else self._heard_at + self.seconds - self._loop.time()

    async def end(self) -> None:
        """Cancel open elicitations and wait for them."""
        self._questions.cancel_all()
        await self._questions.drain()


async def _why_gone(server: McpServer, connection: "Connection", tool: str, error: Gone) -> str:
    """Describe a lost connection. Waits briefly for the owner task to determine the cause."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_AFTER):
            await server.parted()
    unknown = "Whether the tool did anything is not known."
    if not connection.ended.is_set() and server.standing.state == "connected":
        return f"The MCP server {server.name} broke off its answer to {tool}. {sentence(error)} {unknown}"
    why = server.standing.reason or connection.why or sentence(error)
    return (
        f"The MCP server {server.name} went away while {tool} was at work. {why} "
        f"It is started again when it is needed. {unknown}"
    )
