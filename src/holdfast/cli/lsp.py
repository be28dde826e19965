"""`holdfast lsp`: language servers."""

import os
import time
from typing import Any

import click
import msgspec

from holdfast.cli.common import DefaultGroup, Failure, sentences, table, where_options
from holdfast.cli.console.run_output import complain
from holdfast.cli.local_settings import printable
from holdfast.cli.server_connection import ServerConnection, wait_quietly
from holdfast.client.locate import locate
from holdfast.domain.extensions import LspInfo, LspState
from holdfast.protocol.extension_routes import LspLog, LspName, LspPath, LspRestarted

__all__ = ["command"]

_PATIENCE = 20.0
_BETWEEN_LOOKS = 0.1


@click.group("lsp", cls=DefaultGroup)
def command() -> None:
    """Language servers: see them, start them again, read what they printed.

    \b
      holdfast lsp                    those of this directory, and their state
      holdfast lsp start main.py      start those for a file
      holdfast lsp restart            all that run
      holdfast lsp logs basedpyright

    Those that are installed start by themselves, with the first file of their kind. The settings ([lsp.NAME]) add
    others, change them, or switch them off; a project's own count after holdfast trust.
    """


def _entered(where: dict[str, Any]) -> ServerConnection:
    link = ServerConnection(locate(where["host"], where["data_dir"]), where["cwd"])
    link.enter()
    return link


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def list_servers(*, as_json: bool, **where: Any) -> None:  # noqa: ANN401
    """List the servers of this directory, their state, and the number of problems they report."""
    with sentences():
        _print(_settled(_entered(where)), as_json=as_json)


@command.command()
@click.argument("path")
@where_options
def start(*, path: str, **where: Any) -> None:  # noqa: ANN401
    """Start the servers for a file."""
    with sentences():
        # Only the remote server can check the file there.
        if not where["host"] and not os.path.isfile(os.path.join(where["cwd"], path)):
            raise Failure(f"There is no file {printable(path)}.")
        link = _entered(where)
        link.send("POST", link.path("lsps", "start"), body=LspPath(path))
        _print(_settled(link), as_json=False)


@command.command()
@click.argument("name", default="")
@where_options
def restart(*, name: str, **where: Any) -> None:  # noqa: ANN401
    """Start a server again, or all that run."""
    with sentences():
        link = _entered(where)
        names = link.ask(LspRestarted, "POST", link.path("lsps", "restart"), body=LspName(name)).names
        if not names:
            complain("No language server is running: the first file of its kind starts one.")
            return
        after = {info.name: info for info in _settled(link)}
        _print([after[name] for name in names if name in after], as_json=False)
        if any(after[name].state == LspState.ERROR for name in names if name in after):
            raise Failure("Not all of them came up: holdfast lsp logs NAME says what they printed.")


@command.command()
@click.argument("name")
@where_options
def logs(*, name: str, **where: Any) -> None:  # noqa: ANN401
    """Show the history of a server, and its output."""
    with sentences():
        link = _entered(where)
        log = link.ask(LspLog, "GET", link.path("lsps", "log"), query=[("name", name)])
        if log.text:
            click.echo("\n".join(printable(line) for line in log.text.splitlines()))
        else:
            complain(f"{printable(name)} has printed nothing.")
        more = "Set options.debug_lsp = true to have everything written that is said to it."
        complain(f"Everything that was said is in {log.file}" if log.file else more)


def _settled(link: ServerConnection) -> list[LspInfo]:
    """Return the servers once none is starting any more, or after a timeout."""
    until = time.monotonic() + _PATIENCE
    while True:
        found = list(link.ask(dict[str, LspInfo], "GET", link.path("lsps")).values())
        if all(info.state != LspState.STARTING for info in found) or time.monotonic() >= until:
            return found
        wait_quietly(_BETWEEN_LOOKS)


def _print(servers: list[LspInfo], *, as_json: bool) -> None:
    if as_json:
        rows = [msgspec.to_builtins(info) | {"state": info.state.name.lower()} for info in servers]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    elif not servers:
        complain("No language server runs here: the first file of its kind starts one that is installed.")
    else:
        cells = [(info.name, info.state.name.lower(), str(info.diagnostic_count or "")) for info in servers]
        click.echo(table(("SERVER", "STATE", "FOUND"), [tuple(printable(cell) for cell in row) for row in cells]))
        for info in servers:
            if info.error:
                click.echo(printable(f"{info.name}: {info.error}"))
