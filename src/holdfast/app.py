"""The server, put together: the only file that knows every room."""

import logging
import os
from contextlib import ExitStack
from pathlib import Path

import msgspec

from holdfast.core import App
from holdfast.engine.ports import Models
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted import Say, ScriptedModel, Step
from holdfast.providers.tour import TourModel
from holdfast.server.asgi import Application
from holdfast.server.auth import Guard, read_or_make_token
from holdfast.server.handlers import HANDLERS
from holdfast.server.hub import Graces, Hub
from holdfast.server.listen import UnixListener, bind_tcp
from holdfast.server.serve import run_server
from holdfast.server.stream import stream

__all__ = ["BuiltinModels", "ServerOptions", "serve"]

_log = logging.getLogger("holdfast.server")


class BuiltinModels:
    """The scripted models that answer while no real one is set up."""

    def __init__(self) -> None:
        self._large = TourModel()
        self._small = ScriptedModel(lambda _: Step((Say("A scripted conversation"),)), info=self._large.info)

    async def large(self) -> TourModel:
        return self._large

    async def small(self) -> ScriptedModel:
        return self._small

    async def renewed(self, _: object) -> None:
        return None


class ServerOptions(msgspec.Struct, frozen=True):
    """`socket` is where it listens; with `tcp` it also does at that host and port, for who has the token."""

    data_dir: Path
    socket: Path
    tcp: tuple[str, int] | None = None
    started_by_client: bool = False
    graces: Graces = Graces()
    settings: EngineSettings = EngineSettings()


async def serve(options: ServerOptions, models: Models | None = None) -> None:
    """Run the server until it is told to stop. Raises a `HoldfastError` that says why it cannot start."""
    with ExitStack() as stack:
        listener = UnixListener(options.socket)
        stack.callback(listener.close)
        app = App(options.data_dir, models or BuiltinModels(), options.settings)
        hub = Hub(app, options.data_dir, graces=options.graces, leaves_when_idle=options.started_by_client)
        sockets = [listener.socket]
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
        await run_server(hub, Application(hub, HANDLERS, stream), sockets, guard)
