"""Handlers for commands and agents: lists, and the expansion of a command."""

from holdfast.domain.commands import AgentNote, CommandNote
from holdfast.domain.errors import BadRequest
from holdfast.protocol.brought import CommandText
from holdfast.server.calls import Call

__all__ = ["expand_command", "list_agents", "list_commands"]


async def list_commands(call: Call) -> tuple[CommandNote, ...]:
    """Return the available commands."""
    extensions = call.desk.outfit.extensions
    await extensions.skills.fresh()
    return await extensions.commands.listed()


async def expand_command(call: Call) -> CommandText:
    """Return the prompt that a command expands to."""
    brief = await call.desk.outfit.extensions.commands.brief(call.body.prompt, call.body.arguments)
    if brief is None:
        raise BadRequest("That is no command: look at the list for one, and begin with a slash and its name.")
    return CommandText(brief.text, brief.command, brief.model, brief.allow)


async def list_agents(call: Call) -> tuple[AgentNote, ...]:
    """Return the available agents."""
    agents = call.desk.outfit.extensions.agents
    await agents.fresh()
    return agents.notes()
