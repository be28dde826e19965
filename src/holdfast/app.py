"""The server, put together: the only file that knows every room."""

import logging
import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from holdfast.engine.ports import Models
from holdfast.engine.settings import EngineSettings
from holdfast.lockfile import write_owner
from holdfast.outfit import Given, open_app
from holdfast.server.asgi import Application
from holdfast.server.auth import Guard, is_exposed, read_or_make_token
from holdfast.server.handlers import HANDLERS
from holdfast.server.hub import Graces, Hub
from holdfast.server.listen import UnixListener, bind_tcp
from holdfast.server.observatory import Observatory, own_options
from holdfast.server.serve import run_server
from holdfast.server.stream import stream
from holdfast.workspace.guard_system import give_memory_back, seal

__all__ = ["ServerOptions", "serve"]

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_log = logging.getLogger("holdfast.server")


class ServerOptions(msgspec.Struct, frozen=True):
    """`socket` is where it listens; with `tcp` it also does at that host and port, for who has the token."""

    data_dir: Path
    socket: Path
    tcp: tuple[str, int] | None = None
    started_by_client: bool = False
    graces: Graces = Graces()
    settings: EngineSettings = EngineSettings()


async def serve(options: ServerOptions, models: Models | None = None, *, listener: socket.socket | None = None) -> None:
    """Run the server until it is told to stop. Raises a `HoldfastError` that says why it cannot start.

    A `listener` is bound already, and does not listen yet.
    """
    seal()
    give_memory_back()
    with ExitStack() as stack:
        if listener is None:
            bound = UnixListener(options.socket, options.data_dir)
            stack.callback(bound.close)
            listener = bound.socket
        observatory = Observatory(own_options(options.data_dir))
        stack.callback(observatory.close)
        given = Given(options.settings, models, listen=observatory.listen, socket=options.socket)
        sockets = [listener]
        guard = None
        app = open_app(options.data_dir, given)
        try:
            hub = Hub(app, options.data_dir, graces=options.graces, leaves_when_idle=options.started_by_client)
            hub.metrics, hub.troubles = observatory.metrics, observatory.troubles
            if options.tcp is not None:
                tcp, guard = _over_tcp(options.tcp, options.data_dir, stack)
                sockets.append(tcp)
            application = Application(hub, HANDLERS, stream)
        except BaseException:
            # From here on the running server closes it.
            await app.close()
            raise
        await run_server(hub, application, sockets, guard, on_listening=lambda: _announce(options))


def _over_tcp(place: tuple[str, int], data_dir: Path, stack: ExitStack) -> tuple[socket.socket, Guard]:
    tcp = bind_tcp(*place)
    stack.callback(tcp.close)
    port = tcp.getsockname()[1]
    token = read_or_make_token(data_dir)
    guard = Guard(token, [f"{name}:{port}" for name in {place[0], *_LOOPBACK}])
    _log.info("listening at %s:%d; the token is in %s", place[0], port, data_dir / "token")
    if is_exposed(tcp):
        _log.warning(
            "%s:%d can be reached from other machines, and nothing is encrypted: others on the way can read the token. "
            "Use tcp://127.0.0.1 here, and --host ssh://user@machine on the other machine.",
            place[0],
            port,
        )
    return tcp, guard


def _announce(options: ServerOptions) -> None:
    """Name the socket in the lock file, by which clients find it."""
    write_owner(options.data_dir, os.path.abspath(options.socket))
    # Earlier versions named it here.
    with suppress(OSError):
        (options.data_dir / "socket").unlink()
    _log.info("listening at %s, process %d", options.socket, os.getpid())
