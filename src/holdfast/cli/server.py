"""`holdfast server` and `holdfast serve`: the server in the background and in the foreground.

`server` controls a server that runs in the background: status, start, stop. `serve` runs one in this process.
"""

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from holdfast.cli.common import CommandError, DefaultGroup, report_errors, server_options
from holdfast.cli.serve import ServeArgs, run_server
from holdfast.cli.server_connection import ServerConnection, sleep
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_check import end_of
from holdfast.client.server_launcher import locate
from holdfast.client.sync_client import SyncClient
from holdfast.protocol.bodies import ServerControl, VersionInfo, WorkspaceBody

__all__ = ["serve_command", "server_command"]


_STOP_TIMEOUT = 15.0
_NOT_RUNNING = "No server is running. Commands start one when needed, and so does holdfast server start."
_REQUEST_TIMEOUT = 5.0
"""Maximum seconds for a response of a healthy server."""


class _StatusGroup(DefaultGroup):
    default = "status"


@click.group("server", cls=_StatusGroup)
def server_command() -> None:
    """Show the status of the server; start and stop it.

    \b
      holdfast server                 status
      holdfast server start           in the background
      holdfast server stop            unless runs are active
      holdfast server stop --force    interrupts active runs
    """


@server_command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@server_options
def status(*, as_json: bool, **location: str | None) -> None:
    """Show the status of the server. Does not start one; exits with 4 if none is running.

    \b
      holdfast server status
      holdfast server status --json | jq .pid
    """
    _print_status(location, as_json=as_json, can_start=False)


@server_command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@server_options
def start(*, as_json: bool, **location: str | None) -> None:
    """Start the server in the background unless one is running. It exits a minute after the last client disconnects.

    \b
      holdfast server start
    """
    _print_status(location, as_json=as_json, can_start=True)


def _print_status(location: Mapping[str, str | None], *, as_json: bool, can_start: bool) -> None:
    import msgspec

    with report_errors():
        connection = _connection_for(location)
        with _report_unresponsive(connection):
            try:
                connection.connect(can_start=can_start)
            except Unreachable:
                if can_start or location["host"]:
                    raise
                raise CommandError(_NOT_RUNNING) from None
            version = connection.request(VersionInfo, "GET", "/v1/version")
            workspaces = connection.request(tuple[WorkspaceBody, ...], "GET", "/v1/workspaces")
            problem = _problem(connection)
    paths = [item.path for item in workspaces]
    address = str(connection.address)
    if as_json:
        known = {"pid": version.pid, "version": version.version, "protocol": version.protocol, "address": address}
        click.echo(
            msgspec.json.encode(
                {**known, "data_dir": connection.location.data_dir, "workspaces": paths, "problem": problem}
            )
        )
        return
    click.echo(f"running     process {version.pid}, version {version.version}")
    click.echo(f"address     {address}")
    click.echo(f"data        {connection.location.data_dir}")
    for path in paths:
        click.echo(f"workspace   {path}")
    if problem:
        click.echo(f"problem     {problem}")


def _problem(connection: ServerConnection) -> str:
    """Return why the server accepts no prompts, or an empty string."""
    try:
        connection.send("GET", "/v1/health", can_repeat=True)
    except ServerProblem as error:
        return error.message
    return ""


@server_command.command()
@click.option("--force", is_flag=True, help="Interrupt active runs.")
@server_options
def stop(*, force: bool, **location: str | None) -> None:
    """Stop the server and wait until it has exited.

    \b
      holdfast server stop
      holdfast server stop --force      active runs are interrupted, queued ones continue later
    """
    with report_errors():
        connection = _connection_for(location)
        if connection.has_alternatives:
            raise CommandError("This stops one server: give its address alone, with --host.")
        with _report_unresponsive(connection):
            try:
                connection.connect(can_start=False)
            except Unreachable:
                click.echo("No server is running.")
                return
            process = connection.request(VersionInfo, "GET", "/v1/version").pid
            ended = end_of(process) if connection.address.path else None
            connection.send("POST", "/v1/control", body=ServerControl("stop", force), can_repeat=True)
        if not (_wait_until_unreachable(connection) and _wait_until_exited(ended)):
            raise CommandError("The server was requested to stop and is still running: see holdfast logs.")
    click.echo("Stopped.")


def _connection_for(location: Mapping[str, str | None]) -> ServerConnection:
    connection = ServerConnection(locate(location["host"], location["data_dir"]))
    connection.timeout = _REQUEST_TIMEOUT
    return connection


@contextmanager
def _report_unresponsive(connection: ServerConnection) -> Iterator[None]:
    """Report the process of a server that listens and does not answer, so that the user can kill it."""
    try:
        yield
    except TimedOut:
        process = _listening_pid(connection.location.address.path)
        if not process:
            raise
        raise CommandError(
            f"The server (process {process}) listens but does not respond. If this persists, end it with "
            f"kill -9 {process}: accepted prompts are on disk, and queued ones continue at the next start."
        ) from None


def _listening_pid(path: str) -> int:
    """Return the process that listens at a unix socket, or 0 where the system does not show it."""
    if not path:
        return 0
    with SyncClient(ServerAddress(path=path), timeout=1.0) as client:
        try:
            client.connect()
            return client.peer_pid()
        except (Unreachable, OSError):
            return 0


def _wait_until_unreachable(connection: ServerConnection) -> bool:
    deadline = time.monotonic() + _STOP_TIMEOUT
    while time.monotonic() < deadline:
        try:
            connection.connect(can_start=False)
            connection.send("GET", "/v1/health", seconds=1.0)
        except (Unreachable, ConnectionLost):
            return True
        except (ServerProblem, TimedOut):
            # It is still running, and cannot store anything, or is too busy with its end to answer.
            pass
        sleep(0.02)
    return False


def _wait_until_exited(descriptor: int | None) -> bool:
    if descriptor is None:
        return True
    try:
        return bool(select.select([descriptor], [], [], _STOP_TIMEOUT)[0])
    finally:
        os.close(descriptor)


@click.command("serve")
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Directory of the database; default: $HOLDFAST_DATA_DIR, else ~/.local/share/holdfast.",
)
@click.option(
    "--host", metavar="URL", help="unix:///path/of/socket, or tcp://127.0.0.1:PORT in addition to the default socket."
)
@click.option(
    "--store",
    metavar="URL",
    default="",
    help="postgresql://user@host/database instead of SQLite; default: $HOLDFAST_STORE, else storage.url.",
)
@click.option("--wait", metavar="SECONDS", default="30", help="Wait for PostgreSQL at the start; default: 30.")
@click.option(
    "--label",
    metavar="place=NAME",
    default="",
    help="Name of a volume with the projects that several servers of a cluster share; default: this machine's disk.",
)
@click.option(
    "--drain-timeout",
    metavar="SECONDS",
    default="600",
    help="Let active runs of a server of a cluster end for so long after SIGTERM; default: 600.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    default="",
    help="File with the token of requests over TCP, the same for all servers of a cluster; default: DIR/token.",
)
@click.option(
    "--shared-dir",
    metavar="DIR",
    default="",
    help="Directory for outputs of commands, on the volume that --label names; default: the data directory.",
)
@click.option(
    "--relay",
    metavar="URL",
    default="",
    help="http(s)://HOST:PORT for requests of the other servers of a cluster; default: only servers on this machine.",
)
@click.option("--advertise", metavar="URL", default="", help="Address at which the other servers reach --relay.")
@click.option("--relay-cert", metavar="FILE", default="", help="Certificate of --relay https://..., in PEM.")
@click.option("--relay-key", metavar="FILE", default="", help="Key of the certificate, if it is in another file.")
@click.option("--relay-ca", metavar="FILE", default="", help="Authorities of the other servers' certificates.")
@click.option("--started-by-client", is_flag=True, hidden=True)
@click.option("--verbose", is_flag=True, help="Log more details.")
def serve_command(  # noqa: PLR0913 - each is an option
    *,
    data_dir: str | None,
    host: str | None,
    store: str,
    wait: str,
    label: str,
    drain_timeout: str,
    token_file: str,
    shared_dir: str,
    started_by_client: bool,
    verbose: bool,
    **relay: str,
) -> None:
    """Run the server in the foreground, until Ctrl-C. It logs to stderr.

    Clients find it without configuration. Stopping it loses nothing: queued prompts continue at the next start.

    \b
      holdfast serve                             for the default data directory
      holdfast serve --data-dir /srv/holdfast    another data directory, with its own socket
      holdfast serve --host tcp://127.0.0.1:7437 also over TCP, for clients with the token
      holdfast serve --store postgresql://db/holdfast   store everything in PostgreSQL
    """
    options = ServeArgs(data_dir, host, started_by_client, verbose, store, wait, label, drain_timeout, **relay)
    sys.exit(run_server(options._replace(token_file=token_file, shared_dir=shared_dir)))
