"""Parses a command file: name, text, model and permissions. Pure."""

import re

import msgspec

from holdfast.config.problems import Problem
from holdfast.config.trust import file_digest
from holdfast.domain.rule_syntax import BadRule, parse_rules
from holdfast.extensions.claude import our_model
from holdfast.extensions.documents import document_of, first_error, model_problems, problem_in, text_in
from holdfast.extensions.folders import Owner
from holdfast.extensions.frontmatter import Document, texts
from holdfast.extensions.shelves import MarkdownFile

__all__ = ["COMMAND_NAME", "Command", "named_arguments", "read_command"]

COMMAND_NAME = r"\w[\w.-]*(?::[\w.-]+)*"
_NAMED = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_LONGEST_LINE = 100


class Command(msgspec.Struct, frozen=True):
    """A command definition. It is unusable if its problems contain an error.

    `model` and `allow` are the values of the front matter; those of a project take effect when its file is trusted.
    """

    name: str
    path: str
    owner: Owner
    body: str = ""
    description: str = ""
    hint: str = ""
    model: str = ""
    allow: tuple[str, ...] = ()
    digest: str = ""
    needs: tuple[tuple[str, int], ...] = ()
    """Keys that require trust, with their lines."""
    model_line: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def error(self) -> str:
        """The first error, or an empty string."""
        return first_error(self.problems)


def read_command(file: MarkdownFile) -> Command:
    """Parse a command file. Problems are stored in the result."""
    document = document_of(file)
    if not isinstance(document, Problem):
        document = _refused(file, document) or document
    if isinstance(document, Problem):
        return Command(file.name, file.path, file.folder.owner, problems=(document,))
    allow, problems = _rules(file, document)
    model = our_model(text_in(document, "model"))
    keys = [key for key, wanted in (("model", model), ("allowed-tools", allow)) if wanted]
    is_project = file.folder.owner == "project"
    return Command(
        file.name,
        file.path,
        file.folder.owner,
        document.body.strip(),
        text_in(document, "description") or _first_line(document.body),
        _hint(document),
        model,
        allow,
        file_digest(file.data),
        tuple((key, document.lines.get(key, 1)) for key in keys) if is_project else (),
        document.lines.get("model", 0),
        (*problems, *model_problems(file, document)),
    )


def named_arguments(body: str) -> tuple[str, ...]:
    """Return the named placeholders in order, without duplicates."""
    return tuple(dict.fromkeys(name for name in _NAMED.findall(body) if name != "ARGUMENTS"))


def _refused(file: MarkdownFile, document: Document) -> Problem | None:
    if not document.body.strip():
        return problem_in(file, document.body_line, "there is no text below: it would be an empty prompt.")
    if not re.fullmatch(COMMAND_NAME, file.name):
        return problem_in(file, 0, "nobody can type its name: rename it to letters, digits, dots and hyphens.")
    return None


def _rules(file: MarkdownFile, document: Document) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    key = "allowed-tools"
    kept: list[str] = []
    problems: list[Problem] = []
    for text in texts(document.fields.get(key)):
        try:
            kept.append(parse_rules(text, "allow")[-1].ours)
        except BadRule as error:
            problems.append(Problem("warning", file.path, document.lines[key], key, str(error)))
    return tuple(kept), tuple(problems)


def _hint(document: Document) -> str:
    value = document.fields.get("argument-hint", "")
    if isinstance(value, list):
        return f"[{', '.join(item for item in value if isinstance(item, str))}]"
    return value.strip() if isinstance(value, str) else ""


def _first_line(body: str) -> str:
    line = next((line.strip(" #*\t") for line in body.splitlines() if line.strip(" #*\t")), "")
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 1] + "…"
