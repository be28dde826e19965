"""The skills of one workspace: discovery, the list for models, and access to skill files."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from holdfast.config.configuration import Configuration
from holdfast.config.files import Unreadable
from holdfast.config.problems import Problem
from holdfast.domain.errors import BadRequest
from holdfast.domain.events import Change, SkillsEvent
from holdfast.domain.skills import SkillState, SkillStates
from holdfast.extensions.base import Ground
from holdfast.extensions.folders import skill_folders
from holdfast.extensions.shelves import Shelf, contents_within
from holdfast.extensions.skills.reading import Skill, body_of, listing, read_skill
from holdfast.extensions.watch import Looking, Watch
from holdfast.workspace.paths import is_within

__all__ = ["FoundSkills", "Skills", "UnknownSkill", "look_for_skills"]

_FIRST = 0.1


class UnknownSkill(BadRequest):
    """There is no such skill: look at the list for one."""


class FoundSkills(msgspec.Struct, frozen=True):
    """Result of a scan. `usable` is sorted by name; project skills take precedence over user skills
    of the same name.
    """

    usable: tuple[Skill, ...] = ()
    broken: tuple[Skill, ...] = ()
    hidden: tuple[Skill, ...] = ()
    """Skills with the same name as one of higher precedence."""
    disabled: tuple[Skill, ...] = ()
    places: dict[str, Skill] = {}
    """Usable skills by the real paths of their files."""

    def notes(self) -> tuple[str, ...]:
        """Return the skill list for the system prompt."""
        text = listing(self.usable)
        return (text,) if text else ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems of usable and broken skills."""
        return tuple(problem for skill in (*self.usable, *self.broken) for problem in skill.problems)


def look_for_skills(
    configuration: Configuration, environment: Mapping[str, str], shelf: Shelf[Skill] | None = None
) -> FoundSkills:
    """Scan for skills. Blocks. A `shelf` from an earlier scan reads only changed files again."""
    options = configuration.settings.options
    shelf = shelf or Shelf("skills", read_skill)
    found = shelf.look(skill_folders(configuration.places, environment, options.skills_paths))
    chosen: dict[str, Skill] = {}
    hidden: list[Skill] = []
    for skill in found:
        if not skill.error:
            if (below := chosen.pop(skill.name, None)) is not None:
                hidden.append(below)
            chosen[skill.name] = skill
    unwanted = frozenset(options.disabled_skills)
    usable = tuple(chosen[name] for name in sorted(chosen) if name not in unwanted)
    return FoundSkills(
        usable,
        tuple(skill for skill in found if skill.error),
        tuple(hidden),
        tuple(item for item in chosen.values() if item.name in unwanted),
        _places(usable),
    )


def _places(skills: Sequence[Skill]) -> dict[str, Skill]:
    """Index skills by the real paths of their files. A skill is omitted if a link leads out of `within`, because its
    directory can be read without permission.
    """
    real = {os.path.realpath(skill.path): skill for skill in skills}
    return {
        path: skill
        for path, skill in real.items()
        if not skill.within or is_within(os.path.realpath(skill.within), path)
    }


class Skills(Looking[FoundSkills]):
    """Scans when the workspace opens, before each run, and when the list is requested."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._ground = ground
        self._told: tuple[SkillState, ...] = ()
        shelf = Shelf("skills", read_skill)
        configuration = ground.configuration
        look = partial(look_for_skills, configuration, environment, shelf)
        super().__init__(Watch(look, FoundSkills(), self._tell))

    async def first(self) -> None:
        """Wait briefly for the first scan."""
        if not self._watch.has_looked:
            await self._watch.fresh(_FIRST)

    def notes(self) -> Sequence[str]:
        """Return the skill list for the system prompt."""
        return self.current.notes()

    def readable(self) -> Sequence[str]:
        """Return the directories that models may read without permission, as real paths."""
        return tuple(os.path.dirname(path) for path in self.current.places)

    def at(self, path: str) -> Skill | None:
        """Return the skill with this real path."""
        return self.current.places.get(path)

    def states(self) -> tuple[SkillState, ...]:
        """Return the states of the user's and the project's skills for clients, including unusable ones."""
        good = (SkillState(skill.name, skill.path, 0) for skill in self.current.usable if skill.owner != "builtin")
        return (*good, *(SkillState(skill.name, skill.path, 1, skill.error) for skill in self.current.broken))

    async def text(self, path: str) -> tuple[Skill, bytes]:
        """Return a skill, by its path or name, and its file contents. Raises `UnknownSkill`."""
        found = await self.fresh()
        skill = next((item for item in found.usable if path in (item.path, item.name)), None)
        if skill is None:
            raise UnknownSkill
        try:
            data = await asyncio.to_thread(contents_within, skill.path, skill.within)
        except (Unreadable, FileNotFoundError) as error:
            raise UnknownSkill from error
        return skill, data

    async def instructions(self, skill: Skill) -> str:
        """Return the instructions of a skill. Raises `UnknownSkill`."""
        _, data = await self.text(skill.path)
        return body_of(data.decode("utf-8", "replace"))

    def _tell(self) -> None:
        states = self.states()
        if states != self._told:
            self._told = states
            self._ground.publish(SkillsEvent(Change("updated", SkillStates(states))))
