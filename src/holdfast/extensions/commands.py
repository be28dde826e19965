"""The slash commands of one workspace: files, user-invocable skills, and commands of other providers.

A command is a Markdown file whose body is the prompt. Placeholders in it (`$ARGUMENTS`, `$1`, `$NAME`) are replaced by
the words that follow the name of the command. Parsing and expansion are pure; `Commands` scans the disk.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from holdfast.config.problems import FileProblem
from holdfast.config.trust import content_digest
from holdfast.domain.extensions import CommandArgument, CommandInfo, CommandSource
from holdfast.domain.permission_rules import BadRule, parse_rules
from holdfast.domain.runs import PromptExpansion
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.markdown_dir import CachedScan, MarkdownDirectory, MarkdownFile, ScannedExtension
from holdfast.extensions.markdown_document import (
    MarkdownDocument,
    file_problem,
    first_error,
    model_problems,
    parse_file,
    split_list,
    text_field,
)
from holdfast.extensions.search_paths import Owner, command_directories, resolve_model_alias
from holdfast.extensions.skills.skills import Skills

__all__ = [
    "COMMAND_NAME",
    "CommandFile",
    "CommandProvider",
    "Commands",
    "FoundCommands",
    "SkillCommands",
    "expand_template",
    "mentioned_agents",
    "named_arguments",
    "parse_command",
    "parse_invocation",
    "split_words",
]

COMMAND_NAME = r"\w[\w.-]*(?::[\w.-]+)*"
_NAMED_PLACEHOLDER = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_MAX_DESCRIPTION = 100
_INVOCATION = re.compile(rf"/({COMMAND_NAME})(?:\s+(.*))?\s*\Z", re.S)
_PLACEHOLDER = re.compile(r"\$(ARGUMENTS|[1-9]|[A-Z][A-Z0-9_]*)\b")
_POSITIONAL_PLACEHOLDER = re.compile(r"\$(?:ARGUMENTS|[1-9])\b")
_SHELL_LINE = re.compile(r"(?<!`)!`[^`\n]+`(?!`)")
_SHELL_LINE_NOTE = (
    "(Each !`…` above stands for the output of a command. Run these commands first with the bash tool, exactly as"
    " written.)"
)
_MENTION = re.compile(r"(?<![\w@/.])@(?:agent-)?([A-Za-z][\w-]*)(?![\w/@]|\.\w)")
_PREFIXES = ("user:", "project:")


class CommandFile(msgspec.Struct, frozen=True):
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
    trust_keys: tuple[tuple[str, int], ...] = ()
    """Keys that require trust, with their lines."""
    model_line: int = 0
    problems: tuple[FileProblem, ...] = ()

    @property
    def error(self) -> str:
        """The first error, or an empty string."""
        return first_error(self.problems)


def parse_command(file: MarkdownFile) -> CommandFile:
    """Parse a command file. Problems are stored in the result."""
    document = parse_file(file)
    if not isinstance(document, FileProblem):
        document = _first_problem(file, document) or document
    if isinstance(document, FileProblem):
        return CommandFile(file.name, file.path, file.folder.owner, problems=(document,))
    allow, problems = _parse_allowed_tools(file, document)
    model = resolve_model_alias(text_field(document, "model"))
    keys = [key for key, wanted in (("model", model), ("allowed-tools", allow)) if wanted]
    is_project = file.folder.owner == "project"
    return CommandFile(
        file.name,
        file.path,
        file.folder.owner,
        document.body.strip(),
        text_field(document, "description") or _first_line(document.body),
        _argument_hint(document),
        model,
        allow,
        content_digest(file.data),
        tuple((key, document.lines.get(key, 1)) for key in keys) if is_project else (),
        document.lines.get("model", 0),
        (*problems, *model_problems(file, document)),
    )


def named_arguments(body: str) -> tuple[str, ...]:
    """Return the named placeholders in order, without duplicates."""
    return tuple(dict.fromkeys(name for name in _NAMED_PLACEHOLDER.findall(body) if name != "ARGUMENTS"))


def _first_problem(file: MarkdownFile, document: MarkdownDocument) -> FileProblem | None:
    if not document.body.strip():
        return file_problem(file, document.body_line, "there is no text below: it would be an empty prompt.")
    if not re.fullmatch(COMMAND_NAME, file.name):
        return file_problem(file, 0, "its name cannot be typed: rename it to letters, digits, dots and hyphens.")
    return None


def _parse_allowed_tools(
    file: MarkdownFile, document: MarkdownDocument
) -> tuple[tuple[str, ...], tuple[FileProblem, ...]]:
    key = "allowed-tools"
    kept: list[str] = []
    problems: list[FileProblem] = []
    for text in split_list(document.fields.get(key)):
        try:
            kept.append(parse_rules(text, "allow")[-1].ours)
        except BadRule as error:
            problems.append(FileProblem("warning", file.path, document.lines[key], key, str(error)))
    return tuple(kept), tuple(problems)


def _argument_hint(document: MarkdownDocument) -> str:
    value = document.fields.get("argument-hint", "")
    if isinstance(value, list):
        return f"[{', '.join(item for item in value if isinstance(item, str))}]"
    return value.strip() if isinstance(value, str) else ""


def _first_line(body: str) -> str:
    line = next((line.strip(" #*\t") for line in body.splitlines() if line.strip(" #*\t")), "")
    return line if len(line) <= _MAX_DESCRIPTION else line[: _MAX_DESCRIPTION - 1] + "…"


def parse_invocation(prompt: str) -> tuple[str, str] | None:
    """Return the command name and the text after it, or None. Paths such as `/etc/hosts` are not commands."""
    found = _INVOCATION.match(prompt.lstrip())
    return None if found is None else (found[1], (found[2] or "").strip())


def split_words(text: str) -> list[str]:
    """Split as a shell does. Text with an unclosed quote is split at white space."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def expand_template(body: str, arguments: str, named: Mapping[str, str] | None = None) -> str:
    """Return the text of a command with its arguments inserted; `named` are additional named arguments."""
    names = named_arguments(body)
    words = split_words(arguments)
    values = {**_named_values(names, words), **(named or {})}
    if not _POSITIONAL_PLACEHOLDER.search(body):
        rest = [word for word in words if not _is_assignment(word, names)]
        values = {**_positional_values([name for name in names if name not in values], rest), **values}

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == "ARGUMENTS":
            return arguments
        if name.isdigit():
            return words[int(name) - 1] if len(words) >= int(name) else ""
        return values.get(name, found[0])

    text = _PLACEHOLDER.sub(value, body)
    if arguments and not _POSITIONAL_PLACEHOLDER.search(body) and not names:
        text += f"\n\n{arguments}"
    return f"{text}\n\n{_SHELL_LINE_NOTE}" if _SHELL_LINE.search(body) else text


def mentioned_agents(prompt: str, agents: Sequence[str]) -> tuple[str, ...]:
    """Return the agents that the prompt mentions with an `@`, without duplicates."""
    known = {name.lower(): name for name in agents}
    found = (known.get(name.lower()) for name in _MENTION.findall(prompt))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _is_assignment(word: str, names: Sequence[str]) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name in names


def _named_values(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words if _is_assignment(word, names))
    return {name: value for name, _, value in pairs}


def _positional_values(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """Assign a word to each name; the last name receives all remaining words."""
    if not names or not words:
        return {}
    first = dict(zip(names[:-1], words, strict=False))
    rest = words[len(names) - 1 :]
    return {**first, names[-1]: " ".join(rest)} if rest else first


class CommandProvider(Protocol):
    """Provides commands that are not files: MCP prompts and skills."""

    def commands(self) -> Sequence[CommandInfo]:
        """Return the current commands. Never blocks."""

    async def expand(self, name: str, arguments: str, named: Mapping[str, str]) -> str | None:
        """Return the prompt of a command. `arguments` is the text after its name, `named` are named arguments. Returns
        None for an unknown command. Raises `HoldfastError` if the command fails.
        """


class FoundCommands(msgspec.Struct, frozen=True):
    """Result of a scan. Project commands take precedence over user commands of the same name."""

    usable: tuple[CommandFile, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    hidden: tuple[CommandFile, ...] = ()
    """Commands with the same name as one of higher precedence."""


class Commands(ScannedExtension[FoundCommands]):
    """Scans when the list is requested, or when a prompt resembles a command."""

    def __init__(self, context: ExtensionContext, environment: Mapping[str, str]) -> None:
        self._trust = context.configuration.trust
        self._providers: list[CommandProvider] = []
        directory = MarkdownDirectory("files", parse_command)
        folders = command_directories(context.configuration.locations, environment)
        super().__init__(CachedScan(lambda: _select(directory.scan(folders)), FoundCommands()))

    def add_provider(self, provider: CommandProvider) -> None:
        """Add a provider. Files take precedence over providers, and earlier providers over later ones."""
        self._providers.append(provider)

    async def list_all(self) -> tuple[CommandInfo, ...]:
        """Return all commands, sorted by name."""
        found = await self.rescan()
        notes = {note.name: note for provider in reversed(self._providers) for note in provider.commands()}
        notes |= {command.name: self._to_note(command) for command in found.usable}
        return tuple(notes[name] for name in sorted(notes))

    async def expand(self, prompt: str, named: Mapping[str, str] | None = None) -> PromptExpansion | None:
        """Expand a prompt of the form `/name …`. Returns None for other prompts and unknown names."""
        invocation = parse_invocation(prompt)
        if invocation is None:
            return None
        name, arguments = invocation
        command = _find_command(name, (await self.rescan()).usable)
        if command is not None:
            text = expand_template(command.body, arguments, named)
            if self.withheld_keys(command):
                return PromptExpansion(text, command.name)
            return PromptExpansion(text, command.name, command.model, command.allow)
        for provider in self._providers:
            if (rendered := await provider.expand(name, arguments, named or {})) is not None:
                return PromptExpansion(rendered, name)
        return None

    def withheld_keys(self, command: CommandFile) -> tuple[str, ...]:
        """Return the front matter keys that have no effect until the file is trusted."""
        if not command.trust_keys or self._trust.is_file_trusted(command.path, command.digest):
            return ()
        return tuple(key for key, _ in command.trust_keys)

    def _to_note(self, command: CommandFile) -> CommandInfo:
        source: CommandSource = "project" if command.owner == "project" else "user"
        withheld = self.withheld_keys(command)
        return CommandInfo(
            command.name,
            source,
            command.description,
            command.hint,
            tuple(CommandArgument(name) for name in named_arguments(command.body)),
            command.path,
            "" if withheld else command.model,
            () if withheld else command.allow,
            withheld,
        )


def _select(commands: Sequence[CommandFile]) -> FoundCommands:
    usable = {command.name: command for command in commands if not command.error}
    hidden = tuple(command for command in commands if not command.error and usable[command.name] is not command)
    problems = tuple(problem for item in commands for problem in item.problems)
    return FoundCommands(tuple(usable.values()), problems, hidden)


def _find_command(name: str, commands: Sequence[CommandFile]) -> CommandFile | None:
    """Find a command by its full name, with or without an owner prefix, or by its last component if that is unique."""
    for prefix in ("", *_PREFIXES):
        if name.startswith(prefix):
            wanted = name.removeprefix(prefix)
            owner = prefix.removesuffix(":")
            found = [item for item in commands if item.name == wanted and owner in ("", item.owner)]
            if found:
                return found[-1]
    last = [item for item in commands if item.name.rpartition(":")[2] == name]
    return last[0] if len(last) == 1 else None


class SkillCommands:
    """Provides a command for each user-invocable skill: `/name …` sends its instructions and the typed text."""

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    def commands(self) -> Sequence[CommandInfo]:
        """Return a command for each user-invocable skill."""
        usable = (skill for skill in self._skills.current.usable if skill.user_invocable)
        return [CommandInfo(skill.name, "skill", skill.description, path=skill.path) for skill in usable]

    async def expand(self, name: str, arguments: str, named: Mapping[str, str]) -> str | None:
        """Return the prompt with the instructions of the skill, or None for an unknown name."""
        found = await self._skills.rescan()
        skill = next((item for item in found.usable if item.name == name and item.user_invocable), None)
        if skill is None:
            return None
        words = [
            f"Use the skill {skill.name}. Paths in it are relative to {skill.directory}. Its instructions:",
            await self._skills.instructions(skill),
            f"The task:\n\n{arguments}" if arguments else "",
        ]
        return "\n\n".join(word for word in words if word)
