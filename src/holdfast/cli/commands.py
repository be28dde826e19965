"""`holdfast commands`: stored prompts that are sent by name."""

import click

from holdfast.cli.common import DefaultGroup, sentences, table, where_options
from holdfast.cli.link import entered
from holdfast.cli.place import printable
from holdfast.cli.speak import complain, for_stdout
from holdfast.domain.commands import CommandNote
from holdfast.protocol.brought import CommandAsk, CommandText

__all__ = ["command"]


@click.group("commands", cls=DefaultGroup)
def command() -> None:
    """List commands, and show the prompt of one.

    \b
      holdfast commands                        all that can be sent as /NAME
      holdfast commands show /review src       the prompt that a model receives
      holdfast run "/review src"               send it

    A command is a Markdown file in .holdfast/commands, .claude/commands or .crush/commands of the project or of your
    home directory, or in ~/.config/holdfast/commands. Skills and prompts of MCP servers are commands too.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def list_commands(*, as_json: bool, **where: str | None) -> None:
    """List the commands of this directory."""
    with sentences():
        link = entered(where)
        if as_json:
            click.echo(link.send("GET", link.path("commands")).strip())
            return
        found = link.ask(tuple[CommandNote, ...], "GET", link.path("commands"))
        rows = [(f"/{note.name} {_takes(note)}".rstrip(), note.source, printable(note.description)) for note in found]
        click.echo(table(("COMMAND", "SOURCE", "DESCRIPTION"), rows))
        for note in found:
            if note.withheld:
                keys = " and ".join(note.withheld)
                complain(f"holdfast: {printable(note.path)}: {keys} without effect until you say holdfast trust.")


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="/NAME [ARGUMENTS]", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def show(*, words: tuple[str, ...], as_json: bool, **where: str | None) -> None:
    """Show the prompt of a command: the text that a model receives."""
    prompt = " ".join(words)
    with sentences():
        link = entered(where)
        body = CommandAsk(prompt if prompt.startswith("/") else f"/{prompt}")
        raw = link.send("POST", link.path("commands", "expand"), body=body, can_repeat=True)
    if as_json:
        click.echo(raw.strip())
        return
    import msgspec

    click.echo(for_stdout(msgspec.json.decode(raw, type=CommandText).prompt))


def _takes(note: CommandNote) -> str:
    return printable(note.hint) or " ".join(f"{item.name}=…" for item in note.arguments)
