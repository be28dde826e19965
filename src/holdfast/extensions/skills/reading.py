"""Parses a `SKILL.md` and validates it against the specification (agentskills.io). Pure."""

import posixpath
import re

import msgspec

from holdfast.config.problems import Problem
from holdfast.extensions.documents import document_of, first_error, problem_in, text_in
from holdfast.extensions.folders import Owner
from holdfast.extensions.frontmatter import Document, parse
from holdfast.extensions.shelves import MarkdownFile

__all__ = ["Skill", "body_of", "listing", "read_skill"]

_NAME = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1_024
_LONGEST_COMPATIBILITY = 500
_LONGEST_LIST = 16_000
"""Maximum characters of the skill list in the system prompt."""

_HEAD = """# Skills

These are instructions for particular kinds of work. When a task fits the description of one, read its file with view \
before you begin, and follow it; paths in it count from its directory."""


class Skill(msgspec.Struct, frozen=True):
    """A skill definition. It is unusable if its problems contain an error."""

    name: str
    path: str
    owner: Owner
    description: str = ""
    user_invocable: bool = True
    model_invocable: bool = True
    problems: tuple[Problem, ...] = ()
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


def read_skill(file: MarkdownFile) -> Skill:
    """Parse a skill file. Problems are stored in the result."""
    document = document_of(file)
    if not isinstance(document, Problem) and not document.fields:
        text = "expected front matter with a name and a description, between two lines of dashes."
        document = problem_in(file, 1, text)
    if isinstance(document, Problem):
        return Skill(file.name, file.path, file.folder.owner, problems=(document,))
    problems = [*_name_problems(file, document), *_text_problems(file, document)]
    fields = document.fields
    return Skill(
        text_in(document, "name") or file.name,
        file.path,
        file.folder.owner,
        text_in(document, "description"),
        fields.get("user-invocable", fields.get("user_invocable")) is not False,
        fields.get("disable-model-invocation", fields.get("disable_model_invocation")) is not True,
        tuple(problems),
        file.folder.within,
    )


def body_of(text: str) -> str:
    """Return the instructions, without the front matter."""
    return parse(text).body.strip()


def listing(skills: tuple[Skill, ...]) -> str:
    """Return the skill list for the system prompt, or an empty string without model-invocable skills."""
    pieces: list[str] = []
    room = _LONGEST_LIST
    left = 0
    for skill in skills:
        if skill.error or not skill.model_invocable:
            continue
        piece = (
            f"<skill>\n  <name>{_safe(skill.name)}</name>\n  <description>{_safe(skill.description)}</description>\n"
            f"  <location>{_safe(skill.path)}</location>\n</skill>"
        )
        if len(piece) > room:
            left += 1
            continue
        room -= len(piece)
        pieces.append(piece)
    if not pieces:
        return ""
    more = [f"({left} more are not listed here.)"] if left else []
    return "\n".join([_HEAD, "", "<available_skills>", *pieces, "</available_skills>", *more])


def _safe(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _name_problems(file: MarkdownFile, document: Document) -> list[Problem]:
    line = document.lines.get("name", 1)
    name = document.fields.get("name", "")
    if not isinstance(name, str) or not name.strip():
        return [Problem("error", file.path, line, "name", "is missing: every skill needs one.")]
    name = name.strip()
    found: list[Problem] = []
    if len(name) > _LONGEST_NAME:
        text = f"expected at most {_LONGEST_NAME} characters, found {len(name)}."
        found.append(Problem("error", file.path, line, "name", text))
    elif not _NAME.fullmatch(name):
        text = "expected letters and digits, with single hyphens between."
        found.append(Problem("error", file.path, line, "name", text))
    elif name != file.name:
        text = f"expected the name of its directory, which is {file.name}."
        found.append(Problem("error", file.path, line, "name", text))
    elif name != name.lower():
        text = "expected small letters: other programs refuse it as it is."
        found.append(Problem("warning", file.path, line, "name", text))
    return found


def _text_problems(file: MarkdownFile, document: Document) -> list[Problem]:
    found: list[Problem] = []
    description = text_in(document, "description")
    line = document.lines.get("description", 1)
    if not description:
        text = "is missing: it says when to use the skill."
        found.append(Problem("error", file.path, line, "description", text))
    elif len(description) > _LONGEST_DESCRIPTION:
        text = f"expected at most {_LONGEST_DESCRIPTION} characters, found {len(description)}."
        found.append(Problem("error", file.path, line, "description", text))
    if (length := len(text_in(document, "compatibility"))) > _LONGEST_COMPATIBILITY:
        text = f"expected at most {_LONGEST_COMPATIBILITY} characters, found {length}."
        found.append(Problem("error", file.path, document.lines["compatibility"], "compatibility", text))
    if not isinstance(document.fields.get("metadata", {}), dict):
        text = "expected keys and values, each on a line below."
        found.append(Problem("warning", file.path, document.lines["metadata"], "metadata", text))
    if not document.body.strip():
        found.append(Problem("warning", file.path, document.body_line, "", "there are no instructions below."))
    return found
