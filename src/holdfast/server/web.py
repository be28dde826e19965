"""The page's port: opened when somebody asks for a link, and again after a restart while pages may come back.

Until then nothing of it is loaded.
"""

import asyncio
import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.domain.errors import Conflict, HoldfastError
from holdfast.server.listen import AddressTaken, bind_tcp

if TYPE_CHECKING:
    from holdfast.server.house import House, Note
    from holdfast.server.http import Asgi, HttpServer

__all__ = ["PortRefused", "Web"]

_log = logging.getLogger("holdfast.server")


class PortRefused(Conflict):
    """The page cannot be opened at this port: choose another one with --port, or none."""


class Web:
    """`house` is None while the port is closed."""

    def __init__(self, data_dir: Path) -> None:
        self.house: House | None = None
        self._path = data_dir / "web.json"
        self._server: HttpServer | None = None
        self._application: Asgi | None = None
        self._opening: asyncio.Future[None] | None = None

    def attach(self, server: "HttpServer", application: "Asgi") -> None:
        """What is served, and how."""
        self._server, self._application = server, application

    async def open(self, port: int = 0) -> "House":
        """The open port; 0 means any. It stays where it is as long as it is open: a page belongs to its port."""
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

    async def _open(self, port: int) -> "House":
        assert self._server is not None, "a server that answers is attached"
        module = await asyncio.to_thread(import_module, "holdfast.server.house")
        house: House = await asyncio.to_thread(module.House, self._application, self._path)
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
        """No page is known any more, and none gets in."""
        house, self.house = self.house, None
        if house is not None and self._server is not None:
            self._server.leave(house.front)
        self._path.unlink(missing_ok=True)

    async def reopen(self) -> None:
        """After a restart: at the same port, for the pages that were there. Mostly a look for a file that is not."""
        if not self._path.exists():
            return
        module = await asyncio.to_thread(import_module, "holdfast.server.house")
        try:
            note: Note = module.read_note(self._path)
            if module.is_worth_it(note):
                (await self.open(note.port)).recall(note)
                return
        except (HoldfastError, OSError) as error:
            _log.warning("pages that were open cannot come back: %s", error)
        self._path.unlink(missing_ok=True)
