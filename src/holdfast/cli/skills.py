"""`holdfast skills`: instructions for particular tasks, which models load when needed."""

import base64

import click

from holdfast.cli.common import DefaultGroup, sentences, table, where_options
from holdfast.cli.link import entered
from holdfast.cli.place import printable
from holdfast.cli.speak import complain
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.protocol.brought import SkillAsk, SkillInfo

__all__ = ["command"]


@click.group("skills", cls=DefaultGroup)
def command() -> None:
    """List and read skills: instructions that models load when a task needs them.

    \b
      holdfast skills                those that are known in this directory
      holdfast skills show NAME      the text of one
      holdfast run "/NAME …"         use one

    A skill is a directory with a SKILL.md, in .holdfast/skills, .agents/skills or .claude/skills of the project or of
    your home directory, in ~/.config/holdfast/skills, or in options.skills_paths.
    """


@command.command("list")
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


@command.command()
@click.argument("skill", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@where_options
def show(*, skill: str, as_json: bool, **where: str | None) -> None:
    """Show a skill, with its front matter."""
    with sentences():
        link = entered(where)
        raw = link.send("POST", link.path("skills", "read"), body=SkillAsk(skill), can_repeat=True)
    if as_json:
        click.echo(raw.strip())
        return
    from json import loads

    click.echo(base64.b64decode(loads(raw)["content"]).decode("utf-8", "replace").rstrip("\n"))
