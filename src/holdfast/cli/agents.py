"""`holdfast agents`: sub-agents with their own instructions, tools and model."""

import click

from holdfast.cli.common import DefaultGroup, sentences, table, where_options
from holdfast.cli.link import entered
from holdfast.cli.place import printable
from holdfast.cli.speak import complain
from holdfast.domain.commands import AgentNote

__all__ = ["command"]


@click.group("agents", cls=DefaultGroup)
def command() -> None:
    """List agents: helpers with their own instructions, tools and model.

    \b
      holdfast agents                                     those of this directory
      holdfast run "@reviewer look at the last commit"    name one in a prompt

    An agent is a Markdown file in .holdfast/agents or .claude/agents of the project or of your home directory, or in
    ~/.config/holdfast/agents.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def list_agents(*, as_json: bool, **where: str | None) -> None:
    """The agents that a prompt or a model may name here."""
    with sentences():
        link = entered(where)
        if as_json:
            click.echo(link.send("GET", link.path("agents")).strip())
            return
        found = link.ask(tuple[AgentNote, ...], "GET", link.path("agents"))
        if not found:
            complain("There are no agents here: put a Markdown file into .holdfast/agents.")
            return
        rows = [(f"@{note.name}", note.source, _has(note), printable(note.description)) for note in found]
        click.echo(table(("AGENT", "SOURCE", "TOOLS", "DESCRIPTION"), rows))
        for note in found:
            if note.withheld:
                complain(f"holdfast: {printable(note.path)}: only looks, until you say holdfast trust.")


def _has(note: AgentNote) -> str:
    if note.tools is None:
        return "all"
    shown = ", ".join(note.tools[:4])
    return f"{shown}, …" if len(note.tools) > 4 else shown
