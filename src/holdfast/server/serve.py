"""Server entry point: constructs the server, listens, and shuts it down in order.

`serve` creates the `ServerServices`, the `WorkspaceManager`, the HTTP server and the application, in this order; each
receives those before it. `run_server` serves until a stop is requested.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.domain.errors import StoreMisconfigured
from holdfast.engine.settings import EngineSettings
from holdfast.lock_owner import write_owner
from holdfast.providers.shared_http_clients import in_thread
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.server.http.application import Application
from holdfast.server.http.connection import HttpServer, Receive, Scope, Send
from holdfast.server.http.listen import UnixListener, bind_tcp
from holdfast.server.http.token_auth import TokenAuth, is_exposed, read_or_make_token, read_token_file
from holdfast.server.presence import Stop
from holdfast.server.relay.relay_address import RelayOptions
from holdfast.server.routes.handlers import HANDLERS
from holdfast.server.streams.event_stream import stream
from holdfast.server.telemetry.observers import Observers, own_settings
from holdfast.server.workspace_manager import GracePeriods, WorkspaceManager
from holdfast.storage.postgres.store_address import VARIABLE as STORE_VARIABLE
from holdfast.storage.postgres.store_address import StoreAddress, address_of
from holdfast.workspace.process.guard_system import deny_tracing, return_freed_memory

if TYPE_CHECKING:
    from holdfast.engine.ports import Models
    from holdfast.runtime.open_store import SharedState
    from holdfast.runtime.workspace_host import WorkspaceHost
    from holdfast.server.relay.relay_listener import RelayListener
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger

__all__ = ["DEFAULT_DRAIN_TIMEOUT", "DEFAULT_WAIT", "RESPONSE_GRACE", "ServerOptions", "run_server", "serve"]


RESPONSE_GRACE = 0.5
"""Seconds that clients get to read the end of their responses during shutdown."""

_log = logging.getLogger("holdfast.server")


class _Front:
    """Authenticates requests over TCP before the application."""

    def __init__(self, application: Application, guard: TokenAuth | None) -> None:
        self._application = application
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["client"] and self._guard is not None:
            refusal = self._guard.refusal(scope)
            if refusal is not None:
                await self._guard.refuse(send, *refusal)
                return
        await self._application(scope, receive, send)


async def run_server(  # noqa: PLR0913 - each is a dependency or an option
    manager: WorkspaceManager,
    application: Application,
    sockets: Sequence[socket.socket],
    guard: TokenAuth | None = None,
    *,
    relay: "RelayListener | None" = None,
    on_listening: Callable[[], None] = lambda: None,
    handles_signals: bool = True,
    drain_timeout: float = 0.0,
) -> None:
    """Serve until a signal or the manager requests a stop. `on_listening` is called when the first request can be sent.

    The next signal after a stop was requested exits at once. In a cluster the first signal lets active runs end for
    `drain_timeout` seconds, and the second one stops.
    """
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM) if handles_signals else ()
    server = application.server
    front = application if guard is None else _Front(application, guard)
    opening = asyncio.gather(manager.open_unfinished())
    on_signal = _SignalHandler(manager, drain_timeout)
    try:
        for number in signals:
            loop.add_signal_handler(number, on_signal)
        for listener in sockets:
            await server.listen(listener, front)
        if relay is not None and relay.socket is not None and manager.host is not None:
            await server.listen(relay.socket, relay.admit(application, manager.host), relay.tls)
        manager.start(drain_timeout)
        on_listening()
        await asyncio.gather(_load_workspace_modules(), application.web.reopen())
        await manager.stopping.wait()
    finally:
        # Close the workspaces first, which ends the streams; then wait for connections.
        try:
            await manager.close()
        finally:
            await server.stop(RESPONSE_GRACE)
            opening.cancel()
            for number in signals:
                loop.remove_signal_handler(number)


async def _load_workspace_modules() -> None:
    """Import the modules of the first workspace while its client connects. A request that needs them earlier waits for
    the same import.
    """
    for module in ("runtime.workspace_services", "server.routes.workspaces", "server.routes.prompts"):
        await in_thread(f"holdfast.{module}")


class _SignalHandler:
    """Handles SIGINT and SIGTERM: the first one drains, the second one stops, the next one exits at once. Without a
    cluster the first one stops. After a drain that an operator has requested the first one has no effect, so that a
    service manager that stops the server does not interrupt its runs.
    """

    def __init__(self, manager: WorkspaceManager, drain_timeout: float) -> None:
        self._manager = manager
        self._drain_timeout = drain_timeout
        self._has_drained = False

    def __call__(self) -> None:
        if self._manager.stopping.is_set():
            _log.warning("stopping at once; active runs are interrupted at the next start")
            os._exit(1)
        if self._has_drained:
            self._manager.apply(Stop())
        else:
            self._has_drained = True
            self._manager.drain(self._drain_timeout)


DEFAULT_WAIT = 30.0
DEFAULT_DRAIN_TIMEOUT = 600.0
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ServerOptions(msgspec.Struct, frozen=True):
    """Options of the server. It listens at `socket` and, with `tcp`, also at that host and port, with the token."""

    data_dir: Path
    socket: Path
    tcp: tuple[str, int] | None = None
    started_by_client: bool = False
    graces: GracePeriods = GracePeriods()
    settings: EngineSettings = EngineSettings()
    store: str = ""
    """The address of PostgreSQL, if it is given on the command line."""
    wait: float = DEFAULT_WAIT
    """Seconds to wait for PostgreSQL at the start."""
    place: str = ""
    """The name of the volume that this server shares with other servers of the cluster."""
    token_file: str = ""
    """The file with the token of all servers of a cluster; without it, the server makes one for itself."""
    shared_dir: str = ""
    """The directory of outputs of tools, on the volume that `place` names."""
    drain_timeout: float = DEFAULT_DRAIN_TIMEOUT
    """Seconds for which active runs may continue when a server of a cluster is asked to stop."""
    relay: RelayOptions = RelayOptions()
    """Where a server of a cluster accepts requests of the other servers."""


async def serve(
    options: ServerOptions, models: "Models | None" = None, *, listener: socket.socket | None = None
) -> None:
    """Run the server until a stop is requested. Raises a `HoldfastError` with the reason if it cannot start.

    A `listener` is a bound socket that does not listen yet.
    """
    deny_tracing()
    return_freed_memory()
    with ExitStack() as stack:
        if listener is None:
            bound = UnixListener(options.socket, options.data_dir)
            stack.callback(bound.close)
            listener = bound.socket
        own_options, storage = own_settings(options.data_dir)
        address = address_of(options.store, os.environ, storage.url, storage.password_file)
        # The programs that the server starts need neither the address nor the password in it.
        os.environ.pop(STORE_VARIABLE, None)
        sockets, guard = [listener], None
        # Wrong options are reported before the database is changed.
        _read_token(options)
        relayed = None if address is None else _bind_relay(options, stack)
        ledger = await _open_ledger(options, address)
        shared = await _open_shared_state(ledger, storage.key_file, options) if ledger is not None else None
        if shared is not None:
            own_options, _ = own_settings(options.data_dir, shared.documents)
        observers = Observers(own_options)
        stack.callback(observers.close)
        overrides = ServiceOverrides(options.settings, models, observe=observers.observe, socket=options.socket)
        services = ServerServices(options.data_dir, overrides, ledger=ledger, shared=shared)
        try:
            if ledger is not None:
                assert relayed is not None, "servers with PostgreSQL relay"
                services.host = await _open_host(services, ledger, relayed.address)
            manager = WorkspaceManager(services, graces=options.graces, leaves_when_idle=options.started_by_client)
            if options.tcp is not None:
                guard = _bind_tcp(options.tcp, options, stack, sockets)
            relay = None if relayed is None else relayed.make_relay(manager)
            application = Application(manager, observers, HttpServer(), HANDLERS, stream, relay)
        except BaseException:
            # Once it runs, `run_server` closes the services and the host.
            if services.host is not None:
                await services.host.stop()
            await services.close()
            raise
        await run_server(
            manager,
            application,
            sockets,
            guard,
            relay=relayed,
            on_listening=lambda: _announce(options),
            drain_timeout=options.drain_timeout,
        )


async def _open_ledger(options: ServerOptions, address: StoreAddress | None) -> "PostgresLedger | None":
    """Return the store on PostgreSQL, or None for SQLite."""
    if address is None:
        for option, value in (("--label", options.place), ("--shared-dir", options.shared_dir)):
            if value:
                raise StoreMisconfigured(
                    f"{option} is for servers that share a store: also give --store postgresql://..."
                )
        if not options.relay.is_empty:
            raise StoreMisconfigured("--relay is for servers that share a store: also give --store postgresql://...")
        return None
    if options.shared_dir:
        _check_shared_dir(options)
    # The module is needed only for PostgreSQL.
    from holdfast.runtime.open_store import open_postgres  # noqa: PLC0415

    return await open_postgres(options.data_dir, address, options.wait, options.place)


def _read_token(options: ServerOptions) -> str:
    """Return the token of the cluster, or an empty string. Raises `StoreMisconfigured`."""
    return read_token_file(options.token_file) if options.token_file else ""


def _check_shared_dir(options: ServerOptions) -> None:
    """Raise `StoreMisconfigured` if outputs cannot be stored in the directory."""
    if not options.place:
        raise StoreMisconfigured("--shared-dir is on a volume that servers share: also give --label place=NAME.")
    if not os.path.isdir(options.shared_dir):
        raise StoreMisconfigured(
            f"--shared-dir {options.shared_dir} is not a directory: mount its volume, or create it."
        )
    if not os.access(options.shared_dir, os.W_OK | os.X_OK):
        raise StoreMisconfigured(f"--shared-dir {options.shared_dir} cannot be written to: correct its owner or mode.")


async def _open_shared_state(ledger: "PostgresLedger", key_file: str, options: ServerOptions) -> "SharedState":
    """Return the state that the servers of the cluster share beside the ledger."""
    from holdfast.runtime.open_store import open_shared_state  # noqa: PLC0415 - needed only for PostgreSQL

    directory = Path(options.shared_dir) if options.shared_dir else None
    try:
        return await open_shared_state(ledger, key_file, directory)
    except BaseException:
        await ledger.close()
        raise


async def _open_host(services: ServerServices, ledger: "PostgresLedger", address: str) -> "WorkspaceHost":
    """Return the part of the server that belongs to the cluster. `address` is where other nodes reach it."""
    from holdfast.runtime.open_store import open_host  # noqa: PLC0415 - needed only for PostgreSQL

    return await open_host(services, ledger, address)


def _bind_relay(options: ServerOptions, stack: ExitStack) -> "RelayListener":
    """Return the port at which the other servers of the cluster relay requests to this one."""
    from holdfast.server.relay.relay_listener import bind_relay  # noqa: PLC0415 - needed only for PostgreSQL

    return bind_relay(options.relay, os.path.abspath(options.socket), stack)


def _bind_tcp(
    place: tuple[str, int], options: ServerOptions, stack: ExitStack, sockets: list[socket.socket]
) -> TokenAuth:
    tcp = bind_tcp(*place)
    stack.callback(tcp.close)
    port = tcp.getsockname()[1]
    guard = TokenAuth(
        _read_token(options) or read_or_make_token(options.data_dir),
        [f"{name}:{port}" for name in {place[0], *_LOOPBACK}],
    )
    _log.info(
        "listening at %s:%d; the token is in %s", place[0], port, options.token_file or options.data_dir / "token"
    )
    if is_exposed(tcp):
        _log.warning(
            "%s:%d can be reached from other machines without encryption: the token can be read in transit. "
            "Use tcp://127.0.0.1 here, and --host ssh://user@machine on the other machine.",
            place[0],
            port,
        )
    sockets.append(tcp)
    return guard


def _announce(options: ServerOptions) -> None:
    """Name the socket in the lock file, by which clients find it."""
    write_owner(options.data_dir, os.path.abspath(options.socket))
    # Earlier versions named it here.
    with suppress(OSError):
        (options.data_dir / "socket").unlink()
    _log.info("listening at %s, process %d", options.socket, os.getpid())
