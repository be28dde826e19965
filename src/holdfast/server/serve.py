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

__all__ = ["run_server"]

_log = logging.getLogger("holdfast.server")


class _Protocol(HttpToolsProtocol):
    """A connection. Over the unix socket only our own user is let in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            uid = peer_uid(connection)
            if uid is not None and uid != os.getuid():
                transport.close()
                return
        super().connection_made(transport)  # type: ignore[arg-type]


class _Server(uvicorn.Server):
    """Ends the work, and with it the streams, before it waits for connections to end."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._hub.close()
        await super().shutdown(sockets)


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
    hub: Hub, application: Application, sockets: Sequence[socket.socket], guard: Guard | None = None
) -> None:
    """Serve until a signal or the hub says stop. A second signal stops at once."""
    config = uvicorn.Config(
        _Front(application, guard),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=90,
    )
    server = _Server(config, hub)

    def leave() -> None:
        server.should_exit = True

    hub.on_leave = leave
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _signalled, server)
    opening = asyncio.gather(hub.open_unfinished())
    try:
        await server._serve(list(sockets))
    finally:
        opening.cancel()


def _signalled(server: uvicorn.Server) -> None:
    if server.should_exit:
        _log.warning("stopping at once; what was running is interrupted at the next start")
        os._exit(1)
    server.should_exit = True
