"""Handlers for skills: list and contents."""

from holdfast.extensions.skills.reading import Skill
from holdfast.protocol.brought import SkillFacts, SkillInfo, SkillSource, SkillText
from holdfast.server.calls import Call

__all__ = ["list_skills", "read_skill"]


async def list_skills(call: Call) -> list[SkillInfo]:
    """Return the usable skills."""
    found = await call.desk.outfit.extensions.skills.fresh()
    return [_info(skill) for skill in found.usable]


async def read_skill(call: Call) -> SkillText:
    """Return the contents of a skill."""
    skill, data = await call.desk.outfit.extensions.skills.text(call.body.skill_id)
    source = _source(skill)
    return SkillText(data, SkillFacts(skill.name, skill.description, source, source == "system"))


def _info(skill: Skill) -> SkillInfo:
    source = _source(skill)
    label = f"{source}:{skill.name}"
    return SkillInfo(skill.path, skill.name, skill.description, label, source, skill.user_invocable)


def _source(skill: Skill) -> SkillSource:
    return "system" if skill.owner == "builtin" else skill.owner
