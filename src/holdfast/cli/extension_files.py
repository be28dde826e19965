"""`holdfast skills`: instructions for particular tasks, which models load when needed."""

import base64

import click

from holdfast.cli.common import DefaultGroup, sentences, table, where_options
from holdfast.cli.console.run_output import complain, for_stdout
from holdfast.cli.local_settings import printable
from holdfast.cli.server_connection import entered
from holdfast.domain.extensions import AgentNote, CommandNote
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.protocol.extension_routes import CommandAsk, CommandText, SkillAsk, SkillInfo

__all__ = ["agents_command", "commands_command", "skills_command"]


@click.group("skills", cls=DefaultGroup)
def skills_command() -> None:
    """List and read skills: instructions that models load when a task needs them.

    \b
      holdfast skills                those that are known in this directory
      holdfast skills show NAME      the text of one
      holdfast run "/NAME …"         use one

    A skill is a directory with a SKILL.md, in .holdfast/skills, .agents/skills or .claude/skills of the project or of
    your home directory, in ~/.config/holdfast/skills, or in options.skills_paths.
    """


@skills_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def list_skills(*, as_json: bool, **where: str | None) -> None:
    """The skills that can be used here, then those that cannot, and why."""
    import msgspec

    with sentences():
        link = entered(where)
        skills = link.ask(tuple[SkillInfo, ...], "GET", link.path("skills"))
        states = link.ask(WorkspaceBody, "GET", link.path()).skills
        broken = [state for state in states if state.get("state")]
        if as_json:
            click.echo(msgspec.json.encode({"skills": skills, "broken": broken}))
            return
        rows = [(skill.name, skill.source, printable(skill.description)) for skill in skills]
        click.echo(table(("SKILL", "SOURCE", "DESCRIPTION"), rows))
        for state in broken:
            complain(f"holdfast: {printable(str(state.get('path')))}: {state.get('error')}")


@skills_command.command("show")
@click.argument("skill", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def show_skill(*, skill: str, as_json: bool, **where: str | None) -> None:
    """Show a skill, with its front matter."""
    with sentences():
        link = entered(where)
        raw = link.send("POST", link.path("skills", "read"), body=SkillAsk(skill), can_repeat=True)
    if as_json:
        click.echo(raw.strip())
        return
    from json import loads

    click.echo(base64.b64decode(loads(raw)["content"]).decode("utf-8", "replace").rstrip("\n"))


# `holdfast commands`: stored prompts that are sent by name.


@click.group("commands", cls=DefaultGroup)
def commands_command() -> None:
    """List commands, and show the prompt of one.

    \b
      holdfast commands                        all that can be sent as /NAME
      holdfast commands show /review src       the prompt that a model receives
      holdfast run "/review src"               send it

    A command is a Markdown file in .holdfast/commands, .claude/commands or .crush/commands of the project or of your
    home directory, or in ~/.config/holdfast/commands. Skills and prompts of MCP servers are commands too.
    """


@commands_command.command("list")
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


@commands_command.command("show", context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="/NAME [ARGUMENTS]", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def show_command(*, words: tuple[str, ...], as_json: bool, **where: str | None) -> None:
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


# `holdfast agents`: sub-agents with their own instructions, tools and model.


@click.group("agents", cls=DefaultGroup)
def agents_command() -> None:
    """List agents: helpers with their own instructions, tools and model.

    \b
      holdfast agents                                     those of this directory
      holdfast run "@reviewer look at the last commit"    name one in a prompt

    An agent is a Markdown file in .holdfast/agents or .claude/agents of the project or of your home directory, or in
    ~/.config/holdfast/agents.
    """


@agents_command.command("list")
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
