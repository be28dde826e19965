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
    from holdfast.runtime.open_store import SharedState
    from holdfast.server.http.connection import Asgi, HttpServer
    from holdfast.server.web.web_app import SavedPages, WebSessions

__all__ = ["PortRefused", "WebListener"]

_log = logging.getLogger("holdfast.server")


class PortRefused(Conflict):
    """The page cannot be opened at this port: choose another one with --port, or none."""


class WebListener:
    """Opens and closes the port, at which `server` serves the page and, to admitted pages, the application."""

    def __init__(
        self, data_dir: Path, server: "HttpServer", application: "Asgi", shared: "SharedState | None" = None
    ) -> None:
        """`shared` contains the sign-ins of a cluster."""
        self.sessions: WebSessions | None = None
        """The admitted pages; None while the port is closed."""
        self._path = data_dir / "web.json"
        self._server = server
        self._application = application
        self._opening: asyncio.Future[None] | None = None
        self._sign_ins = None if shared is None else shared.sign_ins
        if shared is not None:
            shared.documents.listeners.append(self._end_sign_ins)

    async def open(self, port: int = 0) -> "WebSessions":
        """Open the port; 0 means any. An open port does not change: pages are bound to it."""
        while self._opening is not None:
            await asyncio.shield(self._opening)
        if self.sessions is not None:
            if port in (0, self.sessions.app.port):
                return self.sessions
            raise PortRefused(
                f"The page is open at port {self.sessions.app.port}: holdfast web --close closes it first."
            )
        self._opening = asyncio.get_running_loop().create_future()
        try:
            self.sessions = await self._open(port)
            return self.sessions
        finally:
            self._opening.set_result(None)
            self._opening = None

    async def _open(self, port: int) -> "WebSessions":
        module = await asyncio.to_thread(import_module, "holdfast.server.web.web_app")
        sessions: WebSessions = await asyncio.to_thread(
            module.WebSessions, self._application, self._path, shared=self._sign_ins
        )
        try:
            listener = bind_tcp(module.HOST, port)
        except AddressTaken as error:
            raise PortRefused(str(error)) from None
        sessions.app.port = listener.getsockname()[1]
        try:
            await self._server.listen(listener, sessions.app)
        except BaseException:
            listener.close()
            raise
        _log.info("the page is open at http://%s:%d/", module.HOST, sessions.app.port)
        return sessions

    def close(self) -> None:
        """Close the port and forget all pages."""
        sessions, self.sessions = self.sessions, None
        if sessions is not None:
            self._server.leave(sessions.app)
        self._path.unlink(missing_ok=True)

    async def sign_out(self) -> None:
        """Forget all pages at all nodes of a cluster. Raises a `HoldfastError` if the store cannot be changed."""
        if self._sign_ins is not None:
            module = await asyncio.to_thread(import_module, "holdfast.server.web.web_app")
            await asyncio.to_thread(self._sign_ins.update, lambda _: module.NO_SIGN_INS)

    def _end_sign_ins(self) -> None:
        """End the connections of pages that were signed out at another node; the others return by themselves."""
        if self.sessions is not None and self.sessions.forget_signed_out():
            self._server.abort_connections(self.sessions.app)

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
                (await self.open(note.port)).restore(note)
                return
        except (HoldfastError, OSError) as error:
            _log.warning("pages of the previous server cannot return: %s", error)
        self._path.unlink(missing_ok=True)
