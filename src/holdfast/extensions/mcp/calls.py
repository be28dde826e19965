"""A call of a server's tool: watched for signs of life, cancelled on the server when its run is."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.extensions.mcp.patience import Patience
from holdfast.extensions.mcp.server import McpServer
from holdfast.extensions.mcp.shapes import Progress
from holdfast.extensions.mcp.troubles import CallFailed, Expired, Gone, sentence

__all__ = ["Calls"]

_AFTER = 1.0


class Calls:
    """Those of one workspace. `look_after` is given a server that may have stalled."""

    def __init__(self, patience: Patience, look_after: Callable[[McpServer], None]) -> None:
        self._patience = patience
        self._look_after = look_after

    async def call(self, server: McpServer, tool: str, arguments: Mapping[str, Any], tell: Progress) -> dict[str, Any]:
        """Raises `CallFailed`."""
        try:
            try:
                return await self._once(server, tool, arguments, tell)
            except Expired:
                # It has forgotten us, and has not begun: this is no second time.
                return await self._once(server, tool, arguments, tell)
        except Gone:
            raise CallFailed(await _why_gone(server, tool)) from None

    async def _once(self, server: McpServer, tool: str, arguments: Mapping[str, Any], tell: Progress) -> dict[str, Any]:
        connection = await server.connection()
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        seconds = float(server.settings.call_timeout)

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            nonlocal heard_at
            heard_at = loop.time()
            await tell(progress, total, message)

        def left() -> float | None:
            return heard_at + seconds - loop.time() if seconds else None

        try:
            work = connection.call(tool, arguments, heard)
            return await self._patience.wait(work, left, name=f"{server.name}: {tool}")
        except Expired:
            connection.end("It does not know this connection any more.")
            raise
        except TimeoutError:
            self._look_after(server)
            raise CallFailed(
                f"{tool} of the MCP server {server.name} said nothing for {seconds:g} s and was cancelled. "
                "Whether it did anything is not known."
            ) from None


async def _why_gone(server: McpServer, tool: str) -> str:
    """The owner needs a moment to find out."""
    try:
        async with asyncio.timeout(_AFTER):
            await server.parted()
    except TimeoutError:
        pass
    why = server.standing.reason or sentence(Gone())
    return (
        f"The MCP server {server.name} went away while {tool} was at work. {why} "
        "It is started again when it is needed. Whether the tool did anything is not known."
    )
