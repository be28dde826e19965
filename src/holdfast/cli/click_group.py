"""The click group of all commands, each of which is imported when it is called, and the completion script for it."""

import os
from importlib import import_module

import click

from holdfast import __version__
from holdfast.cli.fast_msgspec_import import signals_blocked
from holdfast.cli.main import COMMANDS

__all__ = ["completion_command", "holdfast"]


_OWN_OPTIONS = frozenset({"-h", "--help", "--version"})


class _Lazy(click.Group):
    """Lists its commands with their summaries without importing them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Select the terminal app if no command is given and there is a terminal."""
        if not args:
            args = ["tui"] if os.isatty(0) and os.isatty(1) else ["--help"]
        elif args[0].startswith("-") and args[0] not in _OWN_OPTIONS:
            args = ["tui", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        with signals_blocked():
            module, _, name = COMMANDS[cmd_name][0].partition(":")
            command = getattr(import_module(module), name or "command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the summaries from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def holdfast() -> None:
    """A coding agent that holds on when you let go. Without a command it opens the terminal app.

    Prompts belong to the workspace, not to the terminal: they are on disk when they are accepted, they end
    exactly once, and they survive a crash of the server.

    \b
      holdfast                                  the terminal app
      holdfast run "What does this project do?" one prompt; prints the answer
      git diff | holdfast run "Review this"     stdin is part of the prompt
      holdfast run --detach "Fix the build"     returns at once; prints a run id
      holdfast runs wait ID                     waits for its answer and prints it
      holdfast login anthropic                  stores an API key
      holdfast COMMAND --help                   help of a command
    """


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(*, shell: str) -> None:
    """Print the script that completes commands in your shell.

    \b
      bash   holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
      zsh    holdfast completion zsh > ~/.zfunc/_holdfast
      fish   holdfast completion fish > ~/.config/fish/completions/holdfast.fish

    For zsh the directory must be known before compinit runs, in ~/.zshrc: fpath=(~/.zfunc $fpath)
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE")
    script = made.source_template % made.source_vars()
    # Descriptions may contain commas, at which click's script for fish would cut them.
    click.echo(script.replace('string split ","', 'string split -m 1 ","'))
