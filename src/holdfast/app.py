"""The server, put together: the only file that knows every room."""

import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from holdfast.engine.ports import Models
from holdfast.engine.settings import EngineSettings
from holdfast.outfit import Given, open_app
from holdfast.server.asgi import Application
from holdfast.server.auth import Guard, read_or_make_token
from holdfast.server.handlers import HANDLERS
from holdfast.server.hub import Graces, Hub
from holdfast.server.listen import UnixListener, bind_tcp, note_place
from holdfast.server.observatory import Observatory, own_options
from holdfast.server.serve import run_server
from holdfast.server.stream import stream
from holdfast.workspace.guard_system import give_memory_back, seal

__all__ = ["ServerOptions", "serve"]

_log = logging.getLogger("holdfast.server")


class ServerOptions(msgspec.Struct, frozen=True):
    """`socket` is where it listens; with `tcp` it also does at that host and port, for who has the token."""

    data_dir: Path
    socket: Path
    tcp: tuple[str, int] | None = None
    started_by_client: bool = False
    graces: Graces = Graces()
    settings: EngineSettings = EngineSettings()


async def serve(
    options: ServerOptions,
    models: Models | None = None,
    *,
    listener: socket.socket | None = None,
    take_over: Callable[[], Iterable[socket.socket]] = tuple,
) -> None:
    """Run the server until it is told to stop. Raises a `HoldfastError` that says why it cannot start.

    A `listener` is bound already; `take_over` gives the connections that came while nobody was there to answer.
    """
    seal()
    give_memory_back()
    with ExitStack() as stack:
        if listener is None:
            bound = UnixListener(options.socket)
            stack.callback(bound.close)
            listener = bound.socket
        observatory = Observatory(own_options(options.data_dir))
        stack.callback(observatory.close)
        given = Given(options.settings, models, listen=observatory.listen, socket=options.socket)
        app = open_app(options.data_dir, given)
        # The directory is ours by now.
        note_place(options.data_dir, options.socket)
        hub = Hub(app, options.data_dir, graces=options.graces, leaves_when_idle=options.started_by_client)
        hub.metrics, hub.troubles = observatory.metrics, observatory.troubles
        sockets = [listener]
        guard = None
        if options.tcp is not None:
            tcp = bind_tcp(*options.tcp)
            stack.callback(tcp.close)
            sockets.append(tcp)
            port = tcp.getsockname()[1]
            names = {options.tcp[0], "localhost", "127.0.0.1", "[::1]"}
            guard = Guard(read_or_make_token(options.data_dir), [f"{name}:{port}" for name in names])
            _log.info("listening at %s:%d; the token is in %s", options.tcp[0], port, options.data_dir / "token")
        _log.info("listening at %s, process %d", options.socket, os.getpid())
        await run_server(hub, Application(hub, HANDLERS, stream), sockets, guard, guests=take_over())
