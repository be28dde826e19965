"""The rules that "always allow" saves, and the scope in which they match. Pure; the disk is accessed through `Place`.

A saved rule covers exactly the call it was saved for: the same words in the same directory, with relative programs
and redirected files resolving to the same paths. If the directory of a command is not certain, no rule is offered.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Sequence

from holdfast.domain.permission_rules import BadRule, Scope, escape, parse_rules
from holdfast.domain.tools import Permit
from holdfast.domain.url_patterns import BadAddress, parse_address
from holdfast.permissions.readonly_check import Place
from holdfast.permissions.shell_lexer import Redirection, ShellLine, SimpleCommand
from holdfast.permissions.wrapper_commands import read_line

__all__ = [
    "call_rules",
    "call_scope",
    "command_rules",
    "command_scope",
    "is_exact",
    "is_outdated",
    "is_plain",
    "line_rules",
    "line_scope",
    "working_directory",
]

_MOVES = frozenset({"cd", "pushd", "popd"})
_FIRST_CD = re.compile(r"\s*cd\s+[^\s;&|()<>]+\s*&&(?!&)")
_SEQUENCE = frozenset({"&&", "|", ">", ">>", "<", ">|", ">&", "<&", "&>", "&>>", "<<<"})
"""Operators after which a command runs only if the `cd` at the beginning of the line has succeeded."""


def working_directory(text: str, line: ShellLine, place: Place) -> str | None:
    """Return the real path of the directory in which the commands of a line run; None if that is not certain."""
    if place.is_lost:
        return None
    if not place.moved_to:
        hides_move = line.uncertainties and re.search(r"\b(cd|pushd|popd)\b", text)
        return None if hides_move else place.real(place.directory)
    first = line.commands[0]
    target = first.argv[1]
    is_plain = not (target.is_glob or target.is_home or target.is_dynamic or first.assignments)
    if line.uncertainties or not is_plain or target.text.startswith("-") or not _FIRST_CD.match(text):
        return None
    if any(item not in _SEQUENCE for item in line.operators):
        return None
    there = place.real(place.moved_to)
    # After a link, `..` may refer to two directories: a shell may resolve it by text or on disk.
    return there if there == place.real(posixpath.join(place.directory, target.text)) else None


def command_scope(command: SimpleCommand, directory: str, place: Place) -> Scope:
    """Return the directory of a command and, for a program that is not found by its name alone, its real path."""
    return Scope(directory, tuple(_programs((command,), directory, place)))


def _programs(commands: Sequence[SimpleCommand], directory: str, place: Place) -> list[str]:
    found: list[str] = []
    for command in commands:
        name = command.name
        if "/" not in name:
            continue
        path = place.real(posixpath.join(directory, name))
        is_in_workspace = f"{path}/".startswith(f"{place.root}/") or name.startswith(f"{place.root}/")
        if not name.startswith("/") or is_in_workspace:
            found.append(path)
    return found


def line_scope(text: str, line: ShellLine, place: Place) -> Scope | None:
    """Return the scope of a whole line; None if a name in it is only known while it runs."""
    directory = working_directory(text, line, place)
    if directory is None or not line.commands:
        return None
    literal = all(
        not (word.is_dynamic or word.is_glob or word.is_home) or word.text == "["
        for word in (
            *(command.argv[0] for command in line.commands if command.argv),
            *(item.target for item in line.redirections if not _is_fixed(item)),
        )
    )
    if not literal:
        return None
    start = place.real(place.directory)
    moved = [directory] if place.moved_to else []
    targets = [
        place.real(posixpath.join(directory, item.target.text)) for item in line.redirections if not _is_fixed(item)
    ]
    return Scope(start, tuple(dict.fromkeys((*moved, *_programs(line.commands, directory, place), *targets))))


def _is_fixed(item: Redirection) -> bool:
    return item.is_descriptor or item.operator == "<<<" or item.target.text == "/dev/null"


def command_rules(commands: Sequence[SimpleCommand], text: str, line: ShellLine, place: Place) -> tuple[str, ...]:
    """Return a rule for each of these commands; none if the directory they run in is not certain."""
    directory = working_directory(text, line, place)
    if directory is None:
        return ()
    rules = (f"bash({_words(command)}){command_scope(command, directory, place)}" for command in commands)
    return _parsable_rules(tuple(dict.fromkeys(rules)))


def _words(command: SimpleCommand) -> str:
    return " ".join(shlex.quote(escape(word)) for word in command.texts)


def line_rules(text: str, line: ShellLine, place: Place) -> tuple[str, ...]:
    """Return a rule for exactly this line, if its scope is certain."""
    scope = line_scope(text, line, place)
    return () if scope is None else _parsable_rules((f"bash(= {text.strip()}){scope}",))


def is_plain(command: SimpleCommand) -> bool:
    """Return True if the words of a command determine its effect: no assignments, no unknown or expanded words, and it
    does not change the directory.
    """
    is_whole = bool(command.argv) and not command.assignments and not command.is_open
    return is_exact(command) and is_whole and command.name not in _MOVES


def is_exact(command: SimpleCommand) -> bool:
    """Return True if a program receives exactly the words of a command, and no input that it may execute."""
    return all(word.is_literal for word in command.argv) and not command.is_fed


def call_scope(permit: Permit) -> Scope | None:
    """Return the scope of a call whose subject is more than one path or one address."""
    params = permit.params
    if permit.action == "download" and isinstance(params.get("file_path"), str):
        return Scope(target=params["file_path"])
    if params.get("mcp_name") and permit.action in ("read", "list"):
        return Scope(params=json.dumps(params, sort_keys=True))
    return None


def call_rules(permit: Permit, path: str, *, is_read: bool) -> tuple[str, ...]:
    """Return the rule for a call that runs no command. `path` is absolute, or relative to the workspace, whose own
    file the rule is saved in.
    """
    name = f"{permit.tool}:{permit.action}" if permit.action else permit.tool
    scope = call_scope(permit)
    suffix = "" if scope is None else str(scope)
    address = permit.params.get("url")
    if permit.tool.startswith("mcp_") or (scope is not None and scope.params):
        return _parsable_rules((f"{name}{suffix}",))
    if isinstance(address, str):
        try:
            return _parsable_rules((f"{name}({parse_address(address).url.replace('*', '%2A')}){suffix}",))
        except BadAddress:
            return ()
    if not permit.params.get("file_path") and not is_read:
        return _parsable_rules((name,))
    return _parsable_rules((f"{name}({escape(path)})",))


def _parsable_rules(rules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the rules if they can be parsed again. A name with control characters, for example, cannot."""
    try:
        for rule in rules:
            parse_rules(rule, "allow")
    except BadRule:
        return ()
    return rules


def is_outdated(rule: str) -> bool:
    """Return True if a saved rule of an earlier version names a relative program without its directory. It would match
    in every directory, so it no longer applies and the call asks again.
    """
    try:
        (parsed, *_) = parse_rules(rule, "allow")
    except BadRule:
        return False
    if parsed.tool != "bash" or parsed.scope is not None or parsed.subject not in ("command", "line"):
        return False
    if parsed.subject == "command":
        return _is_relative(parsed.words[0])
    line = read_line(parsed.pattern)
    return bool(line.uncertainties) or any(_is_relative(command.name) for command in line.commands)


def _is_relative(program: str) -> bool:
    return "/" in program and not program.startswith(("/", "~"))
