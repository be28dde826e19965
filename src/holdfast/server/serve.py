"""The running server: uvicorn on sockets that we bound, with an end that leaves no stream hanging."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.server.asgi import Application, Receive, Scope, Send
from holdfast.server.auth import Guard
from holdfast.server.hub import Hub
from holdfast.server.listen import peer_uid
from holdfast.server.presence import Stop

__all__ = ["LAST_WORDS_SECONDS", "run_server"]

LAST_WORDS_SECONDS = 0.5
"""How long, after the work has ended, a reader may take for what it was sent."""

_LARGEST_HEAD = 64 * 1024

_log = logging.getLogger("holdfast.server")


class _Protocol(HttpToolsProtocol):
    """A connection. Over the unix socket only our own user is let in.

    Whether a request came over the unix socket is told by the family of its own socket, never by who its peer is
    said to be: the peer of a connection that was reset has no name any more.
    """

    _head_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = transport.get_extra_info("socket")
        is_local = connection is not None and connection.family == socket.AF_UNIX
        is_welcome = not is_local or _is_our_own(connection)
        super().connection_made(transport)  # type: ignore[arg-type]
        self.client = None if is_local else self.client or ("", 0)
        if not is_welcome:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._head_size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > _LARGEST_HEAD:
            self.transport.abort()


def _is_our_own(connection: socket.socket) -> bool:
    try:
        uid = peer_uid(connection)
    except OSError:
        return False
    return uid is None or uid == os.getuid()


class _Server(uvicorn.Server):
    """Ends the work, and with it the streams, before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._hub.close()
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._hang_up)
        await super().shutdown(sockets)

    def _hang_up(self) -> None:
        """Whoever still does not read what it was sent is not waited for."""
        for connection in tuple(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _Front:
    """Lets requests over TCP in only past the guard."""

    def __init__(self, application: Application, guard: Guard | None) -> None:
        self._application = application
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("client") and self._guard is not None:
            refusal = self._guard.refusal(scope)
            if refusal is not None:
                await self._guard.refuse(send, *refusal)
                return
        await self._application(scope, receive, send)


async def run_server(
    hub: Hub,
    application: Application,
    sockets: Sequence[socket.socket],
    guard: Guard | None = None,
    *,
    handles_signals: bool = True,
) -> None:
    """Serve until a signal or the hub says stop. A second signal stops at once."""
    config = uvicorn.Config(
        _Front(application, guard),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=90,
    )
    server = _Server(config, hub)

    def leave() -> None:
        server.should_exit = True

    hub.on_leave = leave
    if hub.presence.leaving:
        leave()
    if handles_signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, _signalled, hub, server)
    opening = asyncio.gather(hub.open_unfinished())
    try:
        await server._serve(list(sockets))
    finally:
        opening.cancel()


def _signalled(hub: Hub, server: uvicorn.Server) -> None:
    if server.should_exit:
        _log.warning("stopping at once; what was running is interrupted at the next start")
        os._exit(1)
    hub.tell(Stop())
    server.should_exit = True
