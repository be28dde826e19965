"""Commands and agents: which there are, and what a command stands for."""

from holdfast.domain.commands import AgentNote, CommandNote
from holdfast.domain.errors import BadRequest
from holdfast.protocol.brought import CommandText
from holdfast.server.calls import Call

__all__ = ["expand_command", "list_agents", "list_commands"]


async def list_commands(call: Call) -> tuple[CommandNote, ...]:
    extensions = call.desk.outfit.extensions
    await extensions.skills.fresh()
    return await extensions.commands.listed()


async def expand_command(call: Call) -> CommandText:
    brief = await call.desk.outfit.extensions.commands.brief(call.body.prompt, call.body.arguments)
    if brief is None:
        raise BadRequest("That is no command: look at the list for one, and begin with a slash and its name.")
    return CommandText(brief.text, brief.command, brief.model, brief.allow)


async def list_agents(call: Call) -> tuple[AgentNote, ...]:
    agents = call.desk.outfit.extensions.agents
    await agents.fresh()
    return agents.notes()
