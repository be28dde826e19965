"""Skills as slash commands: `/name …` sends the instructions of the skill together with the typed text."""

from collections.abc import Mapping, Sequence

from holdfast.domain.commands import CommandNote
from holdfast.extensions.skills.skills import Skills

__all__ = ["SkillCommands"]


class SkillCommands:
    """Provides commands for user-invocable skills."""

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    def commands(self) -> Sequence[CommandNote]:
        """Return a command for each user-invocable skill."""
        usable = (skill for skill in self._skills.current.usable if skill.user_invocable)
        return [CommandNote(skill.name, "skill", skill.description, path=skill.path) for skill in usable]

    async def expand(self, name: str, arguments: str, given: Mapping[str, str]) -> str | None:
        """Return the prompt with the instructions of the skill, or None for an unknown name."""
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
