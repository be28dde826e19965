"""`holdfast skills`, `commands` and `agents`: lists of the Markdown files that extend the agent."""

import base64

import click

from holdfast.cli.common import DefaultGroup, location_options, report_errors, table
from holdfast.cli.console.run_output import print_stderr, sanitize_for_stdout
from holdfast.cli.server_connection import open_connection
from holdfast.client.terminal_text import printable
from holdfast.domain.extensions import CommandInfo, SubagentInfo
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.protocol.extension_routes import CommandExpansion, CommandRequest, SkillInfo, SkillRequest

__all__ = ["agents_command", "commands_command", "skills_command"]


@click.group("skills", cls=DefaultGroup)
def skills_command() -> None:
    """List and show skills: instructions that a model loads for a task.

    \b
      holdfast skills                skills of this directory
      holdfast skills show NAME      text of a skill
      holdfast run "/NAME …"         use a skill

    A skill is a directory with a SKILL.md, in .holdfast/skills, .agents/skills or .claude/skills of the project or of
    your home directory, in ~/.config/holdfast/skills, or in options.skills_paths.
    """


@skills_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def list_skills(*, as_json: bool, **location: str | None) -> None:
    """List the skills of this directory, then skills with errors."""
    import msgspec

    with report_errors():
        connection = open_connection(location)
        skills = connection.request(tuple[SkillInfo, ...], "GET", connection.path("skills"))
        states = connection.request(WorkspaceBody, "GET", connection.path()).skills
        # The list of skills omits those with errors; only the workspace reports them.
        broken = [state for state in states if state.get("state")]
        if as_json:
            click.echo(msgspec.json.encode({"skills": skills, "broken": broken}))
            return
        rows = [(skill.name, skill.source, printable(skill.description)) for skill in skills]
        click.echo(table(("SKILL", "SOURCE", "DESCRIPTION"), rows))
        for state in broken:
            print_stderr(f"holdfast: {printable(str(state.get('path')))}: {state.get('error')}")


@skills_command.command("show")
@click.argument("skill", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def show_skill(*, skill: str, as_json: bool, **location: str | None) -> None:
    """Show a skill, with its front matter."""
    with report_errors():
        connection = open_connection(location)
        raw = connection.send("POST", connection.path("skills", "read"), body=SkillRequest(skill), can_repeat=True)
    if as_json:
        click.echo(raw.strip())
        return
    from json import loads

    click.echo(base64.b64decode(loads(raw)["content"]).decode("utf-8", "replace").rstrip("\n"))


@click.group("commands", cls=DefaultGroup)
def commands_command() -> None:
    """List commands and show their prompts.

    \b
      holdfast commands                        commands of this directory
      holdfast commands show /review src       the prompt that a model receives
      holdfast run "/review src"               send it

    A command is a Markdown file in .holdfast/commands, .claude/commands or .crush/commands of the project or of your
    home directory, or in ~/.config/holdfast/commands. Skills and prompts of MCP servers are commands too.
    """


@commands_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def list_commands(*, as_json: bool, **location: str | None) -> None:
    """List the commands of this directory."""
    with report_errors():
        connection = open_connection(location)
        if as_json:
            click.echo(connection.send("GET", connection.path("commands")).strip())
            return
        found = connection.request(tuple[CommandInfo, ...], "GET", connection.path("commands"))
        rows = [
            (f"/{note.name} {_argument_hint(note)}".rstrip(), note.source, printable(note.description))
            for note in found
        ]
        click.echo(table(("COMMAND", "SOURCE", "DESCRIPTION"), rows))
        for note in found:
            if note.withheld:
                keys = " and ".join(note.withheld)
                print_stderr(f"holdfast: {printable(note.path)}: {keys} ineffective until trusted: holdfast trust.")


@commands_command.command("show", context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="/NAME [ARGUMENTS]", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def show_command(*, words: tuple[str, ...], as_json: bool, **location: str | None) -> None:
    """Show the prompt of a command: the text that a model receives."""
    prompt = " ".join(words)
    with report_errors():
        connection = open_connection(location)
        body = CommandRequest(prompt if prompt.startswith("/") else f"/{prompt}")
        raw = connection.send("POST", connection.path("commands", "expand"), body=body, can_repeat=True)
    if as_json:
        click.echo(raw.strip())
        return
    import msgspec

    click.echo(sanitize_for_stdout(msgspec.json.decode(raw, type=CommandExpansion).prompt))


def _argument_hint(note: CommandInfo) -> str:
    return printable(note.hint) or " ".join(f"{item.name}=…" for item in note.arguments)


@click.group("agents", cls=DefaultGroup)
def agents_command() -> None:
    """List agents: sub-agents with their own instructions, tools and model.

    \b
      holdfast agents                                     agents of this directory
      holdfast run "@reviewer look at the last commit"    use one in a prompt

    An agent is a Markdown file in .holdfast/agents or .claude/agents of the project or of your home directory, or in
    ~/.config/holdfast/agents.
    """


@agents_command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@location_options
def list_agents(*, as_json: bool, **location: str | None) -> None:
    """List the agents that a prompt or a model can use in this directory."""
    with report_errors():
        connection = open_connection(location)
        if as_json:
            click.echo(connection.send("GET", connection.path("agents")).strip())
            return
        found = connection.request(tuple[SubagentInfo, ...], "GET", connection.path("agents"))
        if not found:
            print_stderr("There are no agents here: add a Markdown file to .holdfast/agents.")
            return
        rows = [(f"@{note.name}", note.source, _tool_list(note), printable(note.description)) for note in found]
        click.echo(table(("AGENT", "SOURCE", "TOOLS", "DESCRIPTION"), rows))
        for note in found:
            if note.withheld:
                print_stderr(
                    f"holdfast: {printable(note.path)}: is read-only until the project is trusted: holdfast trust."
                )


def _tool_list(note: SubagentInfo) -> str:
    if note.tools is None:
        return "all"
    shown = ", ".join(note.tools[:4])
    return f"{shown}, …" if len(note.tools) > 4 else shown
