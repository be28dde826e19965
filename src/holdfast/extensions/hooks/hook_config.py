"""Parses hooks from our settings and from Claude Code's settings files."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.config.line_numbers import KeyPath
from holdfast.config.load import parse
from holdfast.config.merge import Origin
from holdfast.config.problems import Problem, format_key
from holdfast.domain.hooks import HookEvent, event_of, matcher_trouble
from holdfast.domain.settings import HookSettings
from holdfast.domain.tools import claude_tool_name
from holdfast.extensions.search_paths import Dialect

__all__ = ["ClaudeHooks", "Hook", "from_settings", "read_claude", "wanted"]

_SECONDS = 30
_CLAUDE_SECONDS = 60
_MOST_SECONDS = 600
_KNOWN_ELSEWHERE = frozenset(
    {"notification", "subagentstop", "subagentstart", "precompact", "postcompact", "sessionend", "permissionrequest"}
)
_MATCHED = frozenset({"PreToolUse", "PostToolUse", "SessionStart"})
"""Events with a matcher: the name of a tool, or the source of a session start."""


class Hook(msgspec.Struct, frozen=True):
    """A command and its trigger. `dialect` determines the names and formats it uses."""

    event: HookEvent
    command: str
    name: str = ""
    matcher: str = ""
    seconds: float = _SECONDS
    dialect: Dialect = "holdfast"
    file: str = ""
    line: int = 0

    def __repr__(self) -> str:
        return f"Hook({self.event!r}, {self.name!r})"


class ClaudeHooks(msgspec.Struct, frozen=True):
    """The hooks of one of Claude Code's settings files."""

    hooks: tuple[Hook, ...] = ()
    problems: tuple[Problem, ...] = ()
    disables_all: bool = False
    line: int = 0
    """Line of the `hooks` key."""


def from_settings(
    settings: Mapping[str, Sequence[HookSettings]], origins: Mapping[KeyPath, Origin]
) -> tuple[Hook, ...]:
    """Return the hooks that can be run. Mistakes in the others are reported with the file they are in."""
    hooks: list[Hook] = []
    for name, items in settings.items():
        event = event_of(name)
        for index, item in enumerate(items if event is not None else ()):
            if event is None or _trouble(event, item.command, item.matcher) is not None:
                continue
            origin = origins.get(("hooks", name, index, "command"), Origin("", 0, may_run=False))
            seconds = min(item.timeout or _SECONDS, _MOST_SECONDS)
            hooks.append(
                Hook(event, item.command, item.name, item.matcher, seconds, file=origin.file, line=origin.line)
            )
    return tuple(hooks)


def read_claude(data: bytes, file: str) -> ClaudeHooks:
    """Parse `{"hooks": {Event: [{"matcher", "hooks": [{"type": "command", "command", "timeout"}]}]}}`."""
    tree, lines, problem = parse(data, "json", file)
    if problem is not None:
        return ClaudeHooks(problems=(problem,))
    given = tree.get("hooks", {})
    reader = _Reader(file, lines)
    if not isinstance(given, dict):
        reader.complain(("hooks",), "expected a table of events.")
        given = {}
    for name, groups in given.items():
        reader.event(name, groups)
    disables = tree.get("disableAllHooks") is True
    return ClaudeHooks(tuple(reader.hooks), tuple(reader.problems), disables, lines.get(("hooks",), 0))


def wanted(hooks: Sequence[Hook], event: HookEvent, subject: str = "") -> tuple[Hook, ...]:
    """Return the hooks of an event that match the subject, usually a tool name, each command once. Our matchers search
    the subject; Claude Code's must match it as a whole.
    """
    found: dict[str, Hook] = {}
    for hook in hooks:
        if hook.event == event and (not subject or _fits(hook, subject)):
            found.setdefault(hook.command, hook)
    return tuple(found.values())


def _fits(hook: Hook, tool: str) -> bool:
    if hook.matcher in ("", "*"):
        return True
    pattern = re.compile(hook.matcher)
    names = (claude_tool_name(tool), tool)
    if hook.dialect != "claude":
        return any(pattern.search(name) is not None for name in names)
    return any(pattern.fullmatch(name) is not None for name in names)


def _trouble(event: HookEvent, command: str, matcher: str) -> tuple[str, str] | None:
    """Return the invalid key and the reason, or None."""
    if not command.strip() or "\0" in command:
        text = "the command is empty." if not command.strip() else "the command holds a NUL character."
        return "command", text
    text = matcher_trouble(event, matcher)
    return ("matcher", text) if text else None


class _Reader:
    """Collects the hooks and problems of a file."""

    def __init__(self, file: str, lines: Mapping[KeyPath, int]) -> None:
        self._file = file
        self._lines = lines
        self.hooks: list[Hook] = []
        self.problems: list[Problem] = []

    def complain(self, path: KeyPath, text: str, *, is_error: bool = True) -> None:
        """Add a problem at the line of the key or its nearest parent."""
        line = next((self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines), 0)
        self.problems.append(Problem("error" if is_error else "warning", self._file, line, format_key(path), text))

    def event(self, name: str, groups: Any) -> None:  # noqa: ANN401 - any JSON
        """Parse the hooks of one event."""
        path: KeyPath = ("hooks", name)
        event = event_of(name)
        if event is None:
            is_theirs = name.lower() in _KNOWN_ELSEWHERE
            text = "is not an event that is known here: these hooks are not run."
            self.complain(path, text, is_error=not is_theirs)
            return
        if not isinstance(groups, list):
            self.complain(path, "expected a list.")
            return
        for index, group in enumerate(groups):
            self._group(event, group, (*path, index))

    def _group(self, event: HookEvent, group: Any, path: KeyPath) -> None:  # noqa: ANN401
        matcher = group.get("matcher", "") if isinstance(group, dict) else None
        items = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(items, list) or not isinstance(matcher, str | None):
            self.complain(path, 'expected {"matcher": …, "hooks": […]}.')
            return
        for index, item in enumerate(items):
            self._hook(event, matcher or "", item, (*path, "hooks", index))

    def _hook(self, event: HookEvent, matcher: str, item: Any, path: KeyPath) -> None:  # noqa: ANN401
        if not isinstance(item, dict) or not isinstance(item.get("command", ""), str):
            self.complain(path, 'expected {"type": "command", "command": …}.')
            return
        if item.get("type", "command") != "command":
            self.complain(path, "only hooks of the type command are run here.", is_error=False)
            return
        command, seconds = item.get("command", ""), item.get("timeout", _CLAUDE_SECONDS)
        if (trouble := _trouble(event, command, matcher)) is not None:
            key, text = trouble
            # The matcher is a key of the group that contains the hook.
            self.complain(path if key == "command" else (*path[:-2], key), text)
            return
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
            self.complain((*path, "timeout"), "expected a number of seconds.", is_error=False)
            seconds = _CLAUDE_SECONDS
        line = self._lines.get((*path, "command"), 0)
        kept = matcher if event in _MATCHED else ""
        self.hooks.append(
            Hook(event, command, "", kept, min(seconds, _MOST_SECONDS), "claude", self._file, line),
        )
