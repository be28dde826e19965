"""`holdfast undo`: revert changes of files."""

import os
import sys

import click

from holdfast.cli.common import sentences, where_options
from holdfast.cli.console.run_output import complain, for_stdout
from holdfast.cli.run_client.run_lookup import run_named, session_named
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.locate import locate
from holdfast.domain.files import UndoAsk, UndoneFile, UndoReport

__all__ = ["command"]

_WORDS = {"restored": "goes back to version {}", "removed": "is removed", "unchanged": "is so already"}
_DONE = {"restored": "went back to version {}", "removed": "was removed", "unchanged": "was so already"}


@click.command("undo")
@click.argument("file", required=False)
@click.option("--run", "run_id", metavar="ID", default="", help="All that this run changed.")
@click.option(
    "--session", metavar="ID", default="", help="Which session's changes; the one that changed something last."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--force", is_flag=True, help="Also where a file has changed since.")
@where_options
def command(
    *, file: str | None, run_id: str, session: str, dry_run: bool, force: bool, cwd: str, **where: str | None
) -> None:
    """Take back the last change of FILE, or what a run changed, or the last run.

    Each call goes one change further back. Reverted changes stay in the history. If one file has changed
    since, nothing is touched, and you see what differs. Changes made by shell commands are not recorded and stay.

    \b
      holdfast undo                      the last run's changes
      holdfast undo src/server/serve.py           the last change of one file
      holdfast undo --run ID --dry-run   what would become of a run's files
    """
    with sentences():
        link = ServerConnection(locate(where["host"], where["data_dir"]), cwd)
        link.enter()
        path = os.path.abspath(file) if file else ""
        run, chosen = run_named(link, run_id), session_named(link, session)
        ask = UndoAsk(path, run, dry_run=dry_run, force=force, session_id=chosen)
        report = link.ask(UndoReport, "POST", link.path("undo"), body=ask)
    for item in report.files:
        click.echo(for_stdout(_line(item, cwd, is_done=report.is_done)))
        if item.diff and (dry_run or item.outcome == "refused"):
            click.echo(for_stdout(item.diff))
    refused = [item for item in report.files if item.outcome == "refused"]
    if refused:
        advice = "" if force else " Look, then say --force."
        complain(f"Nothing was changed, because of {len(refused)} of {len(report.files)} files.{advice}")
        sys.exit(1)


def _line(item: UndoneFile, cwd: str, *, is_done: bool) -> str:
    name = item.path.removeprefix(f"{cwd}/")
    if item.outcome == "refused":
        return f"{name}: refused, because {item.reason}"
    words = (_DONE if is_done else _WORDS)[item.outcome]
    return f"{name} {words.format(item.version)}"
