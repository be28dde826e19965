"""`holdfast lsp`: language servers."""

import os
import time
from typing import Any

import click
import msgspec

from holdfast.cli.common import CommandError, DefaultGroup, location_options, report_errors, table
from holdfast.cli.console.run_output import print_stderr
from holdfast.cli.server_connection import ServerConnection, sleep
from holdfast.client.server_launcher import locate
from holdfast.client.terminal_text import printable
from holdfast.domain.extensions import LspInfo, LspState
from holdfast.protocol.extension_routes import LspLog, LspRestartRequest, LspRestartResponse, LspStartRequest

__all__ = ["command"]

_START_TIMEOUT = 20.0
_POLL_INTERVAL = 0.1


@click.group("lsp", cls=DefaultGroup)
def command() -> None:
    """List and restart language servers; show their logs.

    \b
      holdfast lsp                    servers of this directory and their state
      holdfast lsp start main.py      start the servers for a file
      holdfast lsp restart            restart all running servers
      holdfast lsp logs basedpyright

    Installed servers start automatically with the first file of their language. The settings ([lsp.NAME]) add, change
    or disable servers; those of a project take effect once it is trusted: holdfast trust.
    """


def _open(location: dict[str, Any]) -> ServerConnection:
    connection = ServerConnection(locate(location["host"], location["data_dir"]), location["cwd"])
    connection.open()
    return connection


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def list_servers(*, as_json: bool, **location: Any) -> None:  # noqa: ANN401
    """List servers with their state and number of problems."""
    with report_errors():
        _print_servers(_wait_until_started(_open(location)), as_json=as_json)


@command.command()
@click.argument("path")
@location_options
def start(*, path: str, **location: Any) -> None:  # noqa: ANN401
    """Start the servers for a file."""
    with report_errors():
        # Only the remote server can check the file there.
        if not location["host"] and not os.path.isfile(os.path.join(location["cwd"], path)):
            raise CommandError(f"There is no file {printable(path)}.")
        connection = _open(location)
        connection.send("POST", connection.path("lsps", "start"), body=LspStartRequest(path))
        _print_servers(_wait_until_started(connection), as_json=False)


@command.command()
@click.argument("name", default="")
@location_options
def restart(*, name: str, **location: Any) -> None:  # noqa: ANN401
    """Restart a server, or all running servers."""
    with report_errors():
        connection = _open(location)
        names = connection.request(
            LspRestartResponse, "POST", connection.path("lsps", "restart"), body=LspRestartRequest(name)
        ).names
        if not names:
            print_stderr("No language server is running: it starts with the first file of its language.")
            return
        after = {info.name: info for info in _wait_until_started(connection)}
        _print_servers([after[name] for name in names if name in after], as_json=False)
        if any(after[name].state == LspState.ERROR for name in names if name in after):
            raise CommandError("Not all servers have started. See their output: holdfast lsp logs NAME.")


@command.command()
@click.argument("name")
@location_options
def logs(*, name: str, **location: Any) -> None:  # noqa: ANN401
    """Show the history of a server, and its output."""
    with report_errors():
        connection = _open(location)
        log = connection.request(LspLog, "GET", connection.path("lsps", "log"), query=[("name", name)])
        if log.text:
            click.echo("\n".join(printable(line) for line in log.text.splitlines()))
        else:
            print_stderr(f"{printable(name)} has printed nothing.")
        more = "Set options.debug_lsp = true to log all messages."
        print_stderr(f"All messages are logged in {log.file}" if log.file else more)


def _wait_until_started(connection: ServerConnection) -> list[LspInfo]:
    """Return the servers once none is starting any more, or after a timeout."""
    until = time.monotonic() + _START_TIMEOUT
    while True:
        found = list(connection.request(dict[str, LspInfo], "GET", connection.path("lsps")).values())
        if all(info.state != LspState.STARTING for info in found) or time.monotonic() >= until:
            return found
        sleep(_POLL_INTERVAL)


def _print_servers(servers: list[LspInfo], *, as_json: bool) -> None:
    if as_json:
        rows = [msgspec.to_builtins(info) | {"state": info.state.name.lower()} for info in servers]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    elif not servers:
        print_stderr("No language server is running here: an installed one starts with the first file of its language.")
    else:
        cells = [(info.name, info.state.name.lower(), str(info.diagnostic_count or "")) for info in servers]
        click.echo(table(("SERVER", "STATE", "FOUND"), [tuple(printable(cell) for cell in row) for row in cells]))
        for info in servers:
            if info.error:
                click.echo(printable(f"{info.name}: {info.error}"))
