"""The skills of one workspace: which there are, what models are told of them, who may read them."""

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
    """One look. `usable` are in force, by name; of two with the same name the project's stands above the user's."""

    usable: tuple[Skill, ...] = ()
    broken: tuple[Skill, ...] = ()
    hidden: tuple[Skill, ...] = ()
    """Those that another of the same name stands above."""
    disabled: tuple[Skill, ...] = ()
    places: dict[str, Skill] = {}
    """Those that are usable, by the real paths of their files."""

    def notes(self) -> tuple[str, ...]:
        """What models are told of them."""
        text = listing(self.usable)
        return (text,) if text else ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for skill in (*self.usable, *self.broken) for problem in skill.problems)


def look_for_skills(
    configuration: Configuration, environment: Mapping[str, str], shelf: Shelf[Skill] | None = None
) -> FoundSkills:
    """Blocks. What a shelf knows from before is read again only where it has changed."""
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
    """By the real paths of their files. A link that was put in the place of a checked directory leads nowhere here:
    what is named can be read without asking.
    """
    real = {os.path.realpath(skill.path): skill for skill in skills}
    return {
        path: skill
        for path, skill in real.items()
        if not skill.within or is_within(os.path.realpath(skill.within), path)
    }


class Skills(Looking[FoundSkills]):
    """Looked at when the workspace opens, before each run, and whenever somebody asks for the list."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._ground = ground
        self._told: tuple[SkillState, ...] = ()
        shelf = Shelf("skills", read_skill)
        configuration = ground.configuration
        look = partial(look_for_skills, configuration, environment, shelf)
        super().__init__(Watch(look, FoundSkills(), self._tell))

    async def first(self) -> None:
        """Until there was a look, but hardly longer than one takes."""
        if not self._watch.has_looked:
            await self._watch.fresh(_FIRST)

    def notes(self) -> Sequence[str]:
        """What belongs into the instructions of a model."""
        return self.current.notes()

    def readable(self) -> Sequence[str]:
        """Directories that models may read without asking, as real paths."""
        return tuple(os.path.dirname(path) for path in self.current.places)

    def at(self, path: str) -> Skill | None:
        """The skill whose file this is, by its real path."""
        return self.current.places.get(path)

    def states(self) -> tuple[SkillState, ...]:
        """What people brought along, as screens show it: those that cannot be used included."""
        good = (SkillState(skill.name, skill.path, 0) for skill in self.current.usable if skill.owner != "builtin")
        return (*good, *(SkillState(skill.name, skill.path, 1, skill.error) for skill in self.current.broken))

    async def text(self, path: str) -> tuple[Skill, bytes]:
        """A skill by the path of its file, with all that stands there. Raises `UnknownSkill`."""
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
        """What it says to do. Raises `UnknownSkill`."""
        _, data = await self.text(skill.path)
        return body_of(data.decode("utf-8", "replace"))

    def _tell(self) -> None:
        states = self.states()
        if states != self._told:
            self._told = states
            self._ground.publish(SkillsEvent(Change("updated", SkillStates(states))))
