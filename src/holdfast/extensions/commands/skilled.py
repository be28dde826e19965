"""Skills as commands: `/name …` gives the model the instructions at once, and what was typed with it."""

from collections.abc import Mapping, Sequence

from holdfast.domain.commands import CommandNote
from holdfast.extensions.skills.skills import Skills

__all__ = ["SkillCommands"]


class SkillCommands:
    """Those that a person may call."""

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    def commands(self) -> Sequence[CommandNote]:
        usable = (skill for skill in self._skills.current.usable if skill.user_invocable)
        return [CommandNote(skill.name, "skill", skill.description, path=skill.path) for skill in usable]

    async def expand(self, name: str, arguments: str, given: Mapping[str, str]) -> str | None:
        found = await self._skills.fresh()
        skill = next((item for item in found.usable if item.name == name and item.user_invocable), None)
        if skill is None:
            return None
        words = [
            f"Use the skill {skill.name}. Paths in it count from {skill.directory}. Its instructions:",
            await self._skills.instructions(skill),
            f"What it is for now:\n\n{arguments}" if arguments else "",
        ]
        return "\n\n".join(word for word in words if word)
