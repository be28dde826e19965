"""The port of the web page: opened when a link is requested, and after a restart while pages may return.

Its modules are imported on first use.
"""

import asyncio
import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.domain.errors import Conflict, HoldfastError
from holdfast.server.http.listen import AddressTaken, bind_tcp

if TYPE_CHECKING:
    from holdfast.server.http.connection import Asgi, HttpServer
    from holdfast.server.web.web_app import SavedPages, WebSessions

__all__ = ["PortRefused", "WebListener"]

_log = logging.getLogger("holdfast.server")


class PortRefused(Conflict):
    """The page cannot be opened at this port: choose another one with --port, or none."""


class WebListener:
    """Opens and closes the port. `house` is None while the port is closed."""

    def __init__(self, data_dir: Path) -> None:
        self.house: WebSessions | None = None
        self._path = data_dir / "web.json"
        self._server: HttpServer | None = None
        self._application: Asgi | None = None
        self._opening: asyncio.Future[None] | None = None

    def attach(self, server: "HttpServer", application: "Asgi") -> None:
        """Set the HTTP server and the application that the port serves."""
        self._server, self._application = server, application

    async def open(self, port: int = 0) -> "WebSessions":
        """Open the port; 0 means any. An open port does not change: pages are bound to it."""
        while self._opening is not None:
            await asyncio.shield(self._opening)
        if self.house is not None:
            if port in (0, self.house.front.port):
                return self.house
            raise PortRefused(
                f"The page is open at port {self.house.front.port}: holdfast web --close closes it first."
            )
        self._opening = asyncio.get_running_loop().create_future()
        try:
            self.house = await self._open(port)
            return self.house
        finally:
            self._opening.set_result(None)
            self._opening = None

    async def _open(self, port: int) -> "WebSessions":
        assert self._server is not None, "a server that answers is attached"
        module = await asyncio.to_thread(import_module, "holdfast.server.web.web_app")
        house: WebSessions = await asyncio.to_thread(module.WebSessions, self._application, self._path)
        try:
            listener = bind_tcp(module.HOST, port)
        except AddressTaken as error:
            raise PortRefused(str(error)) from None
        house.front.port = listener.getsockname()[1]
        try:
            await self._server.listen(listener, house.front)
        except BaseException:
            listener.close()
            raise
        _log.info("the page is open at http://%s:%d/", module.HOST, house.front.port)
        return house

    def close(self) -> None:
        """Close the port and forget all pages."""
        house, self.house = self.house, None
        if house is not None and self._server is not None:
            self._server.leave(house.front)
        self._path.unlink(missing_ok=True)

    async def reopen(self) -> None:
        """Open the same port after a restart, for the pages of the previous server. Usually there is no file, and
        nothing is done.
        """
        if not self._path.exists():
            return
        module = await asyncio.to_thread(import_module, "holdfast.server.web.web_app")
        try:
            note: SavedPages = module.read_note(self._path)
            if module.is_worth_it(note):
                (await self.open(note.port)).recall(note)
                return
        except (HoldfastError, OSError) as error:
            _log.warning("pages that were open cannot come back: %s", error)
        self._path.unlink(missing_ok=True)
