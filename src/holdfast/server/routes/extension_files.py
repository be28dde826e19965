"""Handlers for skills, commands and agents: lists, contents of a skill, and the expansion of a command."""

from holdfast.domain.errors import BadRequest
from holdfast.domain.extensions import CommandInfo, SubagentInfo
from holdfast.extensions.skills.skills import Skill
from holdfast.protocol.extension_routes import CommandExpansion, SkillInfo, SkillMetadata, SkillSource, SkillText
from holdfast.server.http.request import Request

__all__ = ["expand_command", "list_agents", "list_commands", "list_skills", "read_skill"]


async def list_commands(request: Request) -> tuple[CommandInfo, ...]:
    """Return the available commands."""
    extensions = request.extensions
    await extensions.skills.rescan()
    return await extensions.commands.list_all()


async def expand_command(request: Request) -> CommandExpansion:
    """Return the prompt that a command expands to."""
    brief = await request.extensions.commands.expand(request.body.prompt, request.body.arguments)
    if brief is None:
        raise BadRequest("There is no such command: see the list of commands, and begin with a slash and a name.")
    return CommandExpansion(brief.text, brief.command, brief.model, brief.allow)


async def list_agents(request: Request) -> tuple[SubagentInfo, ...]:
    """Return the available agents."""
    agents = request.extensions.agents
    await agents.rescan()
    return agents.notes()


async def list_skills(request: Request) -> list[SkillInfo]:
    """Return the usable skills."""
    found = await request.extensions.skills.rescan()
    return [_info(skill) for skill in found.usable]


async def read_skill(request: Request) -> SkillText:
    """Return the contents of a skill."""
    skill, data = await request.extensions.skills.read(request.body.skill_id)
    source = _source(skill)
    return SkillText(data, SkillMetadata(skill.name, skill.description, source, source == "system"))


def _info(skill: Skill) -> SkillInfo:
    source = _source(skill)
    label = f"{source}:{skill.name}"
    return SkillInfo(skill.path, skill.name, skill.description, label, source, skill.user_invocable)


def _source(skill: Skill) -> SkillSource:
    return "system" if skill.owner == "builtin" else skill.owner
