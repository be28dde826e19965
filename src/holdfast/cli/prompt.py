"""`holdfast prompt`: the exact system prompt."""

import asyncio
import json
import os

import click

from holdfast.cli.common import sentences
from holdfast.cli.place import configuration_for, directory_options

__all__ = ["command"]


@click.command("prompt")
@click.option("--json", "as_json", is_flag=True, help="The facts it is made of, as JSON.")
@directory_options
def command(*, as_json: bool, cwd: str, data_dir: str | None) -> None:
    """Show the system prompt: our instructions, your context files, the state of this directory.

    \b
      holdfast prompt
      holdfast prompt | wc -c
      holdfast prompt --json
    """
    with sentences():
        click.echo(asyncio.run(_prompt(cwd, data_dir, as_json=as_json)))


async def _prompt(cwd: str, data_dir: str | None, *, as_json: bool) -> str:
    import msgspec

    from holdfast.domain.ids import SessionId
    from holdfast.engine.instructions import system_prompt
    from holdfast.extensions.skills.skills import look_for_skills
    from holdfast.manners import lookout_for

    configuration = configuration_for(cwd, data_dir)
    skills = look_for_skills(configuration, os.environ)
    lookout = lookout_for(configuration.places.directory, configuration.current, os.environ, skills.notes)
    place = await lookout.look(SessionId(""))
    return json.dumps(msgspec.to_builtins(place), indent=2) if as_json else system_prompt(place)
