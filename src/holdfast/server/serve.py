"""Runs the server: sockets, signals, and an orderly shutdown that ends every stream."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence

from holdfast.server.asgi import Application
from holdfast.server.auth import Guard
from holdfast.server.http import HttpServer, Receive, Scope, Send
from holdfast.server.hub import Hub
from holdfast.server.presence import Stop

__all__ = ["LAST_WORDS_SECONDS", "run_server"]

LAST_WORDS_SECONDS = 0.5
"""Seconds that clients get to read the end of their responses during shutdown."""

_log = logging.getLogger("holdfast.server")


class _Front:
    """Authenticates requests over TCP before the application."""

    def __init__(self, application: Application, guard: Guard | None) -> None:
        self._application = application
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["client"] and self._guard is not None:
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
    on_listening: Callable[[], None] = lambda: None,
    handles_signals: bool = True,
) -> None:
    """Serve until a signal or the hub requests a stop. A second signal exits at once. `on_listening` is called when the
    first request can be sent.
    """
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()
    hub.on_leave = leaving.set
    if hub.presence.leaving:
        leaving.set()
    signals = (signal.SIGINT, signal.SIGTERM) if handles_signals else ()
    server = HttpServer(application if guard is None else _Front(application, guard))
    opening = asyncio.gather(hub.open_unfinished())
    hub.web.attach(server, application)
    try:
        for number in signals:
            loop.add_signal_handler(number, _signalled, hub, leaving)
        await server.start(sockets)
        on_listening()
        await hub.web.reopen()
        await leaving.wait()
    finally:
        # Close the workspaces first, which ends the streams; then wait for connections.
        try:
            await hub.close()
        finally:
            await server.stop(LAST_WORDS_SECONDS)
            opening.cancel()
            for number in signals:
                loop.remove_signal_handler(number)


def _signalled(hub: Hub, leaving: asyncio.Event) -> None:
    if leaving.is_set():
        _log.warning("stopping at once; what was running is interrupted at the next start")
        os._exit(1)
    hub.tell(Stop())
    leaving.set()
