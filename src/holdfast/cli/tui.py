"""`holdfast` without a command: the terminal app."""

import os
import sys

import click

from holdfast.cli.common import Failure, sentences, where_options
from holdfast.cli.lean import undisturbed
from holdfast.client.locate import locate

__all__ = ["command"]


@click.command("tui")
@click.option("--session", "-s", default="", help="Open this session.")
@click.option("--continue", "-C", "continues", is_flag=True, help="Open the session used last.")
@click.option("--yolo", is_flag=True, help="Let tools act without asking.")
@where_options
def command(*, session: str, continues: bool, yolo: bool, **where: str | None) -> None:
    """Open the terminal app in this directory.

    \b
      holdfast
      holdfast --continue
    """
    with sentences():
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise Failure('The terminal app needs a terminal. In a script, use holdfast run "…".')
        # If set, they would fix the size, and resizing the window would have no effect.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        with undisturbed():
            from holdfast.tui.app import HoldfastApp

        app = HoldfastApp(
            locate(where["host"], where["data_dir"]),
            os.path.abspath(where["cwd"] or "."),
            session=session or ("last" if continues else ""),
            yolo=yolo,
        )
        sys.exit(app.run() or 0)
