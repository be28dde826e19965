"""`holdfast server`: status, start and stop."""

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from holdfast.cli.common import DefaultGroup, Failure, sentences, server_options
from holdfast.cli.server_boot import Start, boot
from holdfast.cli.server_connection import ServerConnection, wait_quietly
from holdfast.client.address import Address
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.locate import locate
from holdfast.client.server_check import end_of
from holdfast.client.sync_client import SyncClient
from holdfast.protocol.bodies import Control, VersionInfo, WorkspaceBody

__all__ = ["serve_command", "server_command"]


_PATIENCE = 15.0
_NONE = "No server runs. One is started when it is needed, or by holdfast server start."
_ANSWER = 5.0
"""Maximum seconds for a response of a healthy server."""


class _Group(DefaultGroup):
    default = "status"


@click.group("server", cls=_Group)
def server_command() -> None:
    """See whether the server runs; start and stop it.

    \b
      holdfast server                 whether it runs
      holdfast server start           in the background
      holdfast server stop            if it is not working
      holdfast server stop --force    in any case: what runs is interrupted
    """


@server_command.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@server_options
def status(*, as_json: bool, **where: str | None) -> None:
    """Show whether the server runs. Does not start one; exits with 4 if there is none.

    \b
      holdfast server status
      holdfast server status --json | jq .pid
    """
    _tell(where, as_json=as_json, can_start=False)


@server_command.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@server_options
def start(*, as_json: bool, **where: str | None) -> None:
    """Start the server in the background, if none runs. It exits a minute after the last client has left.

    \b
      holdfast server start
    """
    _tell(where, as_json=as_json, can_start=True)


def _tell(where: Mapping[str, str | None], *, as_json: bool, can_start: bool) -> None:
    import msgspec

    with sentences():
        link = _link(where)
        with _stuck(link):
            try:
                link.connect(can_start=can_start)
            except Unreachable:
                if can_start or where["host"]:
                    raise
                raise Failure(_NONE) from None
            version = link.ask(VersionInfo, "GET", "/v1/version")
            workspaces = link.ask(tuple[WorkspaceBody, ...], "GET", "/v1/workspaces")
            problem = _problem(link)
    paths = [item.path for item in workspaces]
    address = str(link.address)
    if as_json:
        known = {"pid": version.pid, "version": version.version, "protocol": version.protocol, "address": address}
        click.echo(
            msgspec.json.encode({**known, "data_dir": link.where.data_dir, "workspaces": paths, "problem": problem})
        )
        return
    click.echo(f"running     process {version.pid}, version {version.version}")
    click.echo(f"address     {address}")
    click.echo(f"data        {link.where.data_dir}")
    for path in paths:
        click.echo(f"workspace   {path}")
    if problem:
        click.echo(f"problem     {problem}")


def _problem(link: ServerConnection) -> str:
    """Return why the server accepts nothing, or an empty string."""
    try:
        link.send("GET", "/v1/health", can_repeat=True)
    except ServerProblem as error:
        return error.message
    return ""


@server_command.command()
@click.option("--force", is_flag=True, help="Also while it works.")
@server_options
def stop(*, force: bool, **where: str | None) -> None:
    """Stop the server, and wait until it has gone.

    \b
      holdfast server stop
      holdfast server stop --force      active runs are interrupted, queued ones continue later
    """
    with sentences():
        link = _link(where)
        with _stuck(link):
            try:
                link.connect(can_start=False)
            except Unreachable:
                click.echo("No server runs.")
                return
            process = link.ask(VersionInfo, "GET", "/v1/version").pid
            ended = end_of(process) if link.address.path else None
            link.send("POST", "/v1/control", body=Control("stop", force), can_repeat=True)
        if not (_has_gone(link) and _has_ended(ended)):
            raise Failure("The server was asked to stop and is still there: look at holdfast logs.")
    click.echo("Stopped.")


def _link(where: Mapping[str, str | None]) -> ServerConnection:
    link = ServerConnection(locate(where["host"], where["data_dir"]))
    link.patience = _ANSWER
    return link


@contextmanager
def _stuck(link: ServerConnection) -> Iterator[None]:
    """Report the process of a server that listens and does not answer, so that the user can kill it."""
    try:
        yield
    except TimedOut:
        process = _process_at(link.where.address.path)
        if not process:
            raise
        raise Failure(
            f"The server (process {process}) listens and does not answer. If that stays so, end it with "
            f"kill -9 {process}: what was accepted is on disk, and what waits goes on at the next start."
        ) from None


def _process_at(path: str) -> int:
    """Return the process that listens at a unix socket, or 0 where the system does not show it."""
    if not path:
        return 0
    with SyncClient(Address(path=path), timeout=1.0) as thin:
        try:
            thin.connect()
            return thin.peer_pid()
        except (Unreachable, OSError):
            return 0


def _has_gone(link: ServerConnection) -> bool:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            link.connect(can_start=False)
            link.send("GET", "/v1/health", seconds=1.0)
        except (Unreachable, ConnectionLost):
            return True
        except ServerProblem:
            # It is still running, and cannot store anything.
            pass
        wait_quietly(0.02)
    return False


def _has_ended(descriptor: int | None) -> bool:
    if descriptor is None:
        return True
    try:
        return bool(select.select([descriptor], [], [], _PATIENCE)[0])
    finally:
        os.close(descriptor)


# `holdfast serve`: the server in the foreground, logging to stderr.


@click.command("serve")
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Where the database lives; $HOLDFAST_DATA_DIR, else ~/.local/share/holdfast.",
)
@click.option("--host", metavar="URL", help="unix:///path/of/socket, or tcp://127.0.0.1:PORT beside the usual socket.")
@click.option("--started-by-client", is_flag=True, hidden=True)
@click.option("--verbose", is_flag=True, help="Say more in the log.")
def serve_command(*, data_dir: str | None, host: str | None, started_by_client: bool, verbose: bool) -> None:
    """Run the server here, until Ctrl-C.

    Clients find it by themselves. Prompts that were accepted before continue. Stopping it loses nothing:
    queued prompts continue at the next start.

    \b
      holdfast serve                             for the default data directory
      holdfast serve --data-dir /srv/holdfast    another one, with a socket of its own
      holdfast serve --host tcp://127.0.0.1:7437 over TCP too, for clients with the token
    """
    sys.exit(boot(Start(data_dir, host, started_by_client, verbose)))
