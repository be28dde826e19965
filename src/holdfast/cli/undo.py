"""`holdfast undo`: revert changes of files."""

import os
import sys

import click

from holdfast.cli.common import location_options, report_errors
from holdfast.cli.console.run_output import print_stderr, sanitize_for_stdout
from holdfast.cli.run_client.run_lookup import resolve_run, resolve_session
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.server_launcher import locate
from holdfast.domain.files import UndoneFile, UndoReport, UndoRequest

__all__ = ["command"]

_PLANNED = {"restored": "would be restored to version {}", "removed": "would be removed", "unchanged": "is unchanged"}
_DONE = {"restored": "was restored to version {}", "removed": "was removed", "unchanged": "was unchanged"}


@click.command("undo")
@click.argument("file", required=False)
@click.option("--run", "run_id", metavar="ID", default="", help="Revert all changes of this run.")
@click.option(
    "--session",
    metavar="ID",
    default="",
    help="Session whose changes are reverted; default: the one with the last change.",
)
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option("--force", is_flag=True, help="Revert files that were changed since, too.")
@location_options
def command(
    *, file: str | None, run_id: str, session: str, dry_run: bool, force: bool, cwd: str, **location: str | None
) -> None:
    """Revert the last change of FILE, the changes of a run, or those of the last run.

    Each call reverts one more change. Reverted changes stay in the history. If a file was changed since, no file is
    changed and the differences are shown. Changes made by shell commands are not recorded and are not reverted.

    \b
      holdfast undo                      the last run's changes
      holdfast undo src/main.py          the last change of one file
      holdfast undo --run ID --dry-run   show what would be reverted
    """
    with report_errors():
        connection = ServerConnection(locate(location["host"], location["data_dir"]), cwd)
        connection.open()
        path = os.path.abspath(file) if file else ""
        run, chosen = resolve_run(connection, run_id), resolve_session(connection, session)
        ask = UndoRequest(path, run, dry_run=dry_run, force=force, session_id=chosen)
        report = connection.request(UndoReport, "POST", connection.path("undo"), body=ask)
    for item in report.files:
        click.echo(sanitize_for_stdout(_line(item, cwd, is_done=report.is_done)))
        if item.diff and (dry_run or item.outcome == "refused"):
            click.echo(sanitize_for_stdout(item.diff))
    refused = [item for item in report.files if item.outcome == "refused"]
    if refused:
        advice = "" if force else " Check the differences, then use --force."
        print_stderr(f"Nothing was changed: {len(refused)} of {len(report.files)} files cannot be reverted.{advice}")
        sys.exit(1)


def _line(item: UndoneFile, cwd: str, *, is_done: bool) -> str:
    name = item.path.removeprefix(f"{cwd}/")
    if item.outcome == "refused":
        return f"{name}: refused, because {item.reason}"
    words = (_DONE if is_done else _PLANNED)[item.outcome]
    return f"{name} {words.format(item.version)}"
