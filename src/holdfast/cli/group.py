"""The commands for click. Each is loaded when it is called."""

from importlib import import_module

import click

from holdfast import __version__
from holdfast.cli.main import COMMANDS

__all__ = ["holdfast"]


class _Lazy(click.Group):
    """Knows the names and the first lines of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def holdfast() -> None:
    """A coding agent that holds on when you let go.

    Prompts belong to the workspace, not to the terminal: they are on disk when they are accepted, they end
    exactly once, and they survive the death of the server.
    """
