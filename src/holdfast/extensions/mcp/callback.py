"""OAuth redirect endpoint: a loopback HTTP listener that is open for the duration of a login."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit

from holdfast.extensions.mcp.troubles import LoginFailed

__all__ = ["PATH", "Callback", "waiting_room"]

PATH = "/callback"
_HOST = "127.0.0.1"
_LONGEST = 16 * 1024
_PATIENCE = 10.0
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast</title>
<style>body{{font:18px/1.5 system-ui,sans-serif;max-width:32em;margin:20vh auto;padding:0 1em;color:#223;
background:#f7f6f2}}@media(prefers-color-scheme:dark){{body{{color:#dde;background:#16181d}}}}</style></head>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""
_WELCOME = ("You are logged in", "You can close this page and go back to Holdfast.")
_REFUSED = ("The login did not succeed", "Go back to Holdfast: it says why, and lets you try again.")
_NOTHING = ("There is nothing here", "This page only waits for the end of a login.")


class Callback:
    """The parameters of the first redirect."""

    def __init__(self, port: int) -> None:
        self.uri = f"http://{_HOST}:{port}{PATH}"
        self._came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def values(self) -> dict[str, str]:
        """Wait for the redirect and return its parameters. Raises `LoginFailed` if the login was refused."""
        values = await asyncio.shield(self._came)
        if error := values.get("error"):
            why = values.get("error_description") or error
            raise LoginFailed(f"The login was refused: {' '.join(why.split())[:200]}")
        return values

    def take(self, target: str) -> tuple[int, tuple[str, str]]:
        """Handle a request target and return the status and the page. Only the first redirect counts."""
        parts = urlsplit(target)
        values = {name: given[0] for name, given in parse_qs(parts.query).items()}
        if parts.path != PATH or not ({"code", "error"} & values.keys()):
            return 404, _NOTHING
        if not self._came.done():
            self._came.set_result(values)
        return 200, _REFUSED if "error" in values else _WELCOME


@asynccontextmanager
async def waiting_room(port: int) -> AsyncIterator[Callback]:
    """Listen for the redirect during the block. Port 0 selects a free port. Raises `LoginFailed` if
    the port is in use.
    """
    room: Callback

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, *_ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
                status, (title, text) = room.take(target) if method == "GET" else (405, _NOTHING)
                page = _PAGE.format(title=title, text=text).encode()
                lines = (
                    f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}",
                    "Content-Type: text/html; charset=utf-8",
                    f"Content-Length: {len(page)}",
                    "Cache-Control: no-store",
                    "Referrer-Policy: no-referrer",
                    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",
                    "Connection: close",
                )
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + page)
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(serve, _HOST, port, limit=_LONGEST)
    except OSError as error:
        raise LoginFailed(
            f"Port {port} of this machine is taken ({error.strerror}): set another oauth_callback_port."
        ) from None
    room = Callback(server.sockets[0].getsockname()[1])
    try:
        yield room
    finally:
        server.close()
        # A browser that keeps its connection open must not delay the end of the login.
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await server.wait_closed()
