"""The skills of one workspace: discovery, the list for models, and access to skill files.

A skill is a directory with a `SKILL.md` (agentskills.io): front matter with a name and a description, and instructions
as the body. Models see the names and descriptions, and read the file of a skill when a task requires it.
"""

import asyncio
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from holdfast.atomic_files import FileUnreadable
from holdfast.config.configuration import Configuration
from holdfast.config.problems import FileProblem
from holdfast.domain.errors import BadRequest
from holdfast.domain.events import Change, SkillsEvent
from holdfast.domain.extensions import SkillState, SkillStates
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.markdown_dir import (
    CachedScan,
    MarkdownDirectory,
    MarkdownFile,
    ScannedExtension,
    read_file_within,
)
from holdfast.extensions.markdown_document import (
    MarkdownDocument,
    file_problem,
    first_error,
    parse,
    parse_file,
    text_field,
)
from holdfast.extensions.search_paths import Owner, skill_directories
from holdfast.workspace.files.path_strings import is_within

__all__ = [
    "FoundSkills",
    "Skill",
    "Skills",
    "UnknownSkill",
    "find_skills",
    "format_skill_list",
    "parse_skill",
    "strip_front_matter",
]

_NAME = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_MAX_NAME = 64
_MAX_DESCRIPTION = 1_024
_MAX_COMPATIBILITY = 500
_MAX_LIST = 16_000
"""Maximum characters of the skill list in the system prompt."""

_LIST_HEADING = """# Skills

These are instructions for particular kinds of work. When a task fits the description of one, read its file with view \
before you begin, and follow it; paths in it are relative to its directory."""


class Skill(msgspec.Struct, frozen=True):
    """A skill definition. It is unusable if its problems contain an error."""

    name: str
    path: str
    owner: Owner
    description: str = ""
    user_invocable: bool = True
    model_invocable: bool = True
    problems: tuple[FileProblem, ...] = ()
    within: str = ""
    """The directory that the file must not leave by symbolic links."""

    @property
    def directory(self) -> str:
        """The directory of the skill."""
        return posixpath.dirname(self.path)

    @property
    def error(self) -> str:
        """The first error, or an empty string."""
        return first_error(self.problems)


def parse_skill(file: MarkdownFile) -> Skill:
    """Parse a skill file. Problems are stored in the result."""
    document = parse_file(file)
    if not isinstance(document, FileProblem) and not document.fields:
        text = "expected front matter with a name and a description, between two lines of dashes."
        document = file_problem(file, 1, text)
    if isinstance(document, FileProblem):
        return Skill(file.name, file.path, file.folder.owner, problems=(document,))
    problems = [*_name_problems(file, document), *_text_problems(file, document)]
    fields = document.fields
    return Skill(
        text_field(document, "name") or file.name,
        file.path,
        file.folder.owner,
        text_field(document, "description"),
        fields.get("user-invocable", fields.get("user_invocable")) is not False,
        fields.get("disable-model-invocation", fields.get("disable_model_invocation")) is not True,
        tuple(problems),
        file.folder.within,
    )


def strip_front_matter(text: str) -> str:
    """Return the instructions, without the front matter."""
    return parse(text).body.strip()


def format_skill_list(skills: tuple[Skill, ...]) -> str:
    """Return the skill list for the system prompt, or an empty string without model-invocable skills."""
    pieces: list[str] = []
    remaining = _MAX_LIST
    omitted = 0
    for skill in skills:
        if skill.error or not skill.model_invocable:
            continue
        piece = (
            f"<skill>\n  <name>{_escape(skill.name)}</name>\n"
            f"  <description>{_escape(skill.description)}</description>\n"
            f"  <location>{_escape(skill.path)}</location>\n</skill>"
        )
        if len(piece) > remaining:
            omitted += 1
            continue
        remaining -= len(piece)
        pieces.append(piece)
    if not pieces:
        return ""
    more = [f"({omitted} more are not listed here.)"] if omitted else []
    return "\n".join([_LIST_HEADING, "", "<available_skills>", *pieces, "</available_skills>", *more])


def _escape(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _name_problems(file: MarkdownFile, document: MarkdownDocument) -> list[FileProblem]:
    line = document.lines.get("name", 1)
    name = document.fields.get("name", "")
    if not isinstance(name, str) or not name.strip():
        return [FileProblem("error", file.path, line, "name", "is missing: every skill needs one.")]
    name = name.strip()
    found: list[FileProblem] = []
    if len(name) > _MAX_NAME:
        text = f"expected at most {_MAX_NAME} characters, found {len(name)}."
        found.append(FileProblem("error", file.path, line, "name", text))
    elif not _NAME.fullmatch(name):
        text = "expected letters and digits, with single hyphens between."
        found.append(FileProblem("error", file.path, line, "name", text))
    elif name != file.name:
        text = f"expected the name of its directory, which is {file.name}."
        found.append(FileProblem("error", file.path, line, "name", text))
    elif name != name.lower():
        text = "expected lower-case letters: other programs reject it."
        found.append(FileProblem("warning", file.path, line, "name", text))
    return found


def _text_problems(file: MarkdownFile, document: MarkdownDocument) -> list[FileProblem]:
    found: list[FileProblem] = []
    description = text_field(document, "description")
    line = document.lines.get("description", 1)
    if not description:
        text = "is missing: it describes when to use the skill."
        found.append(FileProblem("error", file.path, line, "description", text))
    elif len(description) > _MAX_DESCRIPTION:
        text = f"expected at most {_MAX_DESCRIPTION} characters, found {len(description)}."
        found.append(FileProblem("error", file.path, line, "description", text))
    if (length := len(text_field(document, "compatibility"))) > _MAX_COMPATIBILITY:
        text = f"expected at most {_MAX_COMPATIBILITY} characters, found {length}."
        found.append(FileProblem("error", file.path, document.lines["compatibility"], "compatibility", text))
    if not isinstance(document.fields.get("metadata", {}), dict):
        text = "expected keys and values, each on a line below."
        found.append(FileProblem("warning", file.path, document.lines["metadata"], "metadata", text))
    if not document.body.strip():
        found.append(FileProblem("warning", file.path, document.body_line, "", "there are no instructions below."))
    return found


_FIRST_SCAN_TIMEOUT = 0.1


class UnknownSkill(BadRequest):
    """There is no such skill: see the list of skills."""


class FoundSkills(msgspec.Struct, frozen=True):
    """Result of a scan. `usable` is sorted by name; project skills take precedence over user skills
    of the same name.
    """

    usable: tuple[Skill, ...] = ()
    broken: tuple[Skill, ...] = ()
    hidden: tuple[Skill, ...] = ()
    """Skills with the same name as one of higher precedence."""
    disabled: tuple[Skill, ...] = ()
    by_real_path: dict[str, Skill] = {}
    """Usable skills by the real paths of their files."""

    def notes(self) -> tuple[str, ...]:
        """Return the skill list for the system prompt."""
        text = format_skill_list(self.usable)
        return (text,) if text else ()

    @property
    def problems(self) -> tuple[FileProblem, ...]:
        """Problems of usable and broken skills."""
        return tuple(problem for skill in (*self.usable, *self.broken) for problem in skill.problems)


def find_skills(
    configuration: Configuration, environment: Mapping[str, str], directory: MarkdownDirectory[Skill] | None = None
) -> FoundSkills:
    """Scan for skills. Blocks. A `directory` from an earlier scan reads only changed files again."""
    options = configuration.settings.options
    directory = directory or MarkdownDirectory("skills", parse_skill)
    found = directory.scan(skill_directories(configuration.locations, environment, options.skills_paths))
    chosen: dict[str, Skill] = {}
    hidden: list[Skill] = []
    for skill in found:
        if not skill.error:
            if (below := chosen.pop(skill.name, None)) is not None:
                hidden.append(below)
            chosen[skill.name] = skill
    disabled = frozenset(options.disabled_skills)
    usable = tuple(chosen[name] for name in sorted(chosen) if name not in disabled)
    return FoundSkills(
        usable,
        tuple(skill for skill in found if skill.error),
        tuple(hidden),
        tuple(item for item in chosen.values() if item.name in disabled),
        _index_by_real_path(usable),
    )


def _index_by_real_path(skills: Sequence[Skill]) -> dict[str, Skill]:
    """Index skills by the real paths of their files. A skill is omitted if a link leads out of `within`, because its
    directory can be read without permission.
    """
    real = {os.path.realpath(skill.path): skill for skill in skills}
    return {
        path: skill
        for path, skill in real.items()
        if not skill.within or is_within(os.path.realpath(skill.within), path)
    }


class Skills(ScannedExtension[FoundSkills]):
    """Scans when the workspace opens, before each run, and when the list is requested."""

    def __init__(self, context: ExtensionContext, environment: Mapping[str, str]) -> None:
        self._context = context
        self._published: tuple[SkillState, ...] = ()
        directory = MarkdownDirectory("skills", parse_skill)
        configuration = context.configuration
        scan = partial(find_skills, configuration, environment, directory)
        super().__init__(CachedScan(scan, FoundSkills(), self._publish_states))

    async def wait_first_scan(self) -> None:
        """Wait briefly for the first scan."""
        if not self._scan.has_scanned:
            await self._scan.rescan(_FIRST_SCAN_TIMEOUT)

    def notes(self) -> Sequence[str]:
        """Return the skill list for the system prompt."""
        return self.current.notes()

    def readable_directories(self) -> Sequence[str]:
        """Return the directories that models may read without permission, as real paths."""
        return tuple(os.path.dirname(path) for path in self.current.by_real_path)

    def by_path(self, path: str) -> Skill | None:
        """Return the skill with this real path."""
        return self.current.by_real_path.get(path)

    def states(self) -> tuple[SkillState, ...]:
        """Return the states of the user's and the project's skills for clients, including unusable ones."""
        good = (SkillState(skill.name, skill.path, 0) for skill in self.current.usable if skill.owner != "builtin")
        return (*good, *(SkillState(skill.name, skill.path, 1, skill.error) for skill in self.current.broken))

    async def read(self, path: str) -> tuple[Skill, bytes]:
        """Return a skill, by its path or name, and its file contents. Raises `UnknownSkill`."""
        found = await self.rescan()
        skill = next((item for item in found.usable if path in (item.path, item.name)), None)
        if skill is None:
            raise UnknownSkill
        try:
            data = await asyncio.to_thread(read_file_within, skill.path, skill.within)
        except (FileUnreadable, FileNotFoundError) as error:
            raise UnknownSkill from error
        return skill, data

    async def instructions(self, skill: Skill) -> str:
        """Return the instructions of a skill. Raises `UnknownSkill`."""
        _, data = await self.read(skill.path)
        return strip_front_matter(data.decode("utf-8", "replace"))

    def _publish_states(self) -> None:
        states = self.states()
        if states != self._published:
            self._published = states
            self._context.publish(SkillsEvent(Change("updated", SkillStates(states))))
