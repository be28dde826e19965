"""The command `holdfast`. Subcommands are loaded when they are called, so that help comes at once."""

import sys
from importlib import import_module

import click

from holdfast import __version__

__all__ = ["holdfast", "main"]

_COMMANDS = {
    "run": ("holdfast.cli.run", "Send a prompt and print the answer."),
    "runs": ("holdfast.cli.runs", "List runs, wait for one, cancel one."),
    "sessions": ("holdfast.cli.sessions", "List, read, rename, delete and export sessions."),
    "attach": ("holdfast.cli.attach", "Follow a session as plain text."),
    "serve": ("holdfast.cli.serve", "Run the server here, until Ctrl-C."),
    "server": ("holdfast.cli.server", "See whether the server runs; stop it."),
    "logs": ("holdfast.cli.logs", "Show the server's log."),
    "dirs": ("holdfast.cli.dirs", "Say where things are kept."),
    "completion": ("holdfast.cli.completion", "Print the script that completes commands in your shell."),
    "demo": ("holdfast.cli.demo", "See it work: a prompt, a cancel, a kill -9 and a recovery. No key, no network."),
}


class _Lazy(click.Group):
    """Knows the names and the first lines of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        command = import_module(_COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def holdfast() -> None:
    """A coding agent that holds on when you let go.

    Prompts belong to the workspace, not to the terminal: they are on disk when they are accepted, they end
    exactly once, and they survive the death of the server.
    """


def main() -> None:
    """Run the command line; a user's mistake is a sentence, never a traceback."""
    if sys.platform == "win32":
        sys.exit("Holdfast runs on Linux and macOS, not on Windows.")
    holdfast(prog_name="holdfast")
