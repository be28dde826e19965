"""Parses hooks from our settings and from Claude Code's settings files."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.config.line_numbers import KeyPath
from holdfast.config.load_file import parse
from holdfast.config.merge import SettingOrigin
from holdfast.config.problems import FileProblem, format_key
from holdfast.domain.hooks import HookEvent, event_of, matcher_trouble
from holdfast.domain.settings import HookSettings
from holdfast.domain.tools import claude_tool_name
from holdfast.extensions.search_paths import Dialect

__all__ = ["ClaudeHooks", "Hook", "hooks_from_settings", "matching_hooks", "parse_claude_settings"]

_DEFAULT_TIMEOUT = 30
_CLAUDE_TIMEOUT = 60
_MAX_TIMEOUT = 600
_OTHER_CLAUDE_EVENTS = frozenset(
    {"notification", "subagentstop", "subagentstart", "precompact", "postcompact", "sessionend", "permissionrequest"}
)
_EVENTS_WITH_MATCHER = frozenset({"PreToolUse", "PostToolUse", "SessionStart"})
"""Events with a matcher: the name of a tool, or the source of a session start."""


class Hook(msgspec.Struct, frozen=True):
    """A command and its trigger. `dialect` determines the names and formats it uses."""

    event: HookEvent
    command: str
    name: str = ""
    matcher: str = ""
    timeout: float = _DEFAULT_TIMEOUT
    dialect: Dialect = "holdfast"
    file: str = ""
    line: int = 0

    def __repr__(self) -> str:
        return f"Hook({self.event!r}, {self.name!r})"


class ClaudeHooks(msgspec.Struct, frozen=True):
    """The hooks of one of Claude Code's settings files."""

    hooks: tuple[Hook, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    disables_all: bool = False
    line: int = 0
    """Line of the `hooks` key."""


def hooks_from_settings(
    settings: Mapping[str, Sequence[HookSettings]], origins: Mapping[KeyPath, SettingOrigin]
) -> tuple[Hook, ...]:
    """Return the hooks that can be run. Mistakes in the others are reported with the file they are in."""
    hooks: list[Hook] = []
    for name, items in settings.items():
        event = event_of(name)
        for index, item in enumerate(items if event is not None else ()):
            if event is None or _invalid_key(event, item.command, item.matcher) is not None:
                continue
            origin = origins.get(("hooks", name, index, "command"), SettingOrigin("", 0, may_run=False))
            timeout = min(item.timeout or _DEFAULT_TIMEOUT, _MAX_TIMEOUT)
            hooks.append(
                Hook(event, item.command, item.name, item.matcher, timeout, file=origin.file, line=origin.line)
            )
    return tuple(hooks)


def parse_claude_settings(data: bytes, file: str) -> ClaudeHooks:
    """Parse `{"hooks": {Event: [{"matcher", "hooks": [{"type": "command", "command", "timeout"}]}]}}`."""
    tree, lines, problem = parse(data, "json", file)
    if problem is not None:
        return ClaudeHooks(problems=(problem,))
    declared = tree.get("hooks", {})
    reader = _Reader(file, lines)
    if not isinstance(declared, dict):
        reader.add_problem(("hooks",), "expected a table of events.")
        declared = {}
    for name, groups in declared.items():
        reader.event(name, groups)
    disables = tree.get("disableAllHooks") is True
    return ClaudeHooks(tuple(reader.hooks), tuple(reader.problems), disables, lines.get(("hooks",), 0))


def matching_hooks(hooks: Sequence[Hook], event: HookEvent, subject: str = "") -> tuple[Hook, ...]:
    """Return the hooks of an event that match the subject, usually a tool name, each command once. Our matchers search
    the subject; Claude Code's must match it as a whole.
    """
    found: dict[str, Hook] = {}
    for hook in hooks:
        if hook.event == event and (not subject or _matches(hook, subject)):
            found.setdefault(hook.command, hook)
    return tuple(found.values())


def _matches(hook: Hook, tool: str) -> bool:
    if hook.matcher in ("", "*"):
        return True
    pattern = re.compile(hook.matcher)
    names = (claude_tool_name(tool), tool)
    if hook.dialect != "claude":
        return any(pattern.search(name) is not None for name in names)
    return any(pattern.fullmatch(name) is not None for name in names)


def _invalid_key(event: HookEvent, command: str, matcher: str) -> tuple[str, str] | None:
    """Return the invalid key and the reason, or None."""
    if not command.strip() or "\0" in command:
        text = "the command is empty." if not command.strip() else "the command contains a NUL character."
        return "command", text
    text = matcher_trouble(event, matcher)
    return ("matcher", text) if text else None


class _Reader:
    """Collects the hooks and problems of a file."""

    def __init__(self, file: str, lines: Mapping[KeyPath, int]) -> None:
        self._file = file
        self._lines = lines
        self.hooks: list[Hook] = []
        self.problems: list[FileProblem] = []

    def add_problem(self, path: KeyPath, text: str, *, is_error: bool = True) -> None:
        """Add a problem at the line of the key or its nearest parent."""
        line = next((self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines), 0)
        self.problems.append(FileProblem("error" if is_error else "warning", self._file, line, format_key(path), text))

    def event(self, name: str, groups: Any) -> None:  # noqa: ANN401 - any JSON
        """Parse the hooks of one event."""
        path: KeyPath = ("hooks", name)
        event = event_of(name)
        if event is None:
            is_known_to_claude = name.lower() in _OTHER_CLAUDE_EVENTS
            text = "is not a known event: these hooks are not run."
            self.add_problem(path, text, is_error=not is_known_to_claude)
            return
        if not isinstance(groups, list):
            self.add_problem(path, "expected a list.")
            return
        for index, group in enumerate(groups):
            self._group(event, group, (*path, index))

    def _group(self, event: HookEvent, group: Any, path: KeyPath) -> None:  # noqa: ANN401
        matcher = group.get("matcher", "") if isinstance(group, dict) else None
        items = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(items, list) or not isinstance(matcher, str | None):
            self.add_problem(path, 'expected {"matcher": …, "hooks": […]}.')
            return
        for index, item in enumerate(items):
            self._hook(event, matcher or "", item, (*path, "hooks", index))

    def _hook(self, event: HookEvent, matcher: str, item: Any, path: KeyPath) -> None:  # noqa: ANN401
        if not isinstance(item, dict) or not isinstance(item.get("command", ""), str):
            self.add_problem(path, 'expected {"type": "command", "command": …}.')
            return
        if item.get("type", "command") != "command":
            self.add_problem(path, "only hooks of the type command are run here.", is_error=False)
            return
        command, timeout = item.get("command", ""), item.get("timeout", _CLAUDE_TIMEOUT)
        if (invalid := _invalid_key(event, command, matcher)) is not None:
            key, text = invalid
            # The matcher is a key of the group that contains the hook.
            self.add_problem(path if key == "command" else (*path[:-2], key), text)
            return
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not timeout > 0:
            self.add_problem((*path, "timeout"), "expected a number of seconds.", is_error=False)
            timeout = _CLAUDE_TIMEOUT
        line = self._lines.get((*path, "command"), 0)
        kept = matcher if event in _EVENTS_WITH_MATCHER else ""
        self.hooks.append(
            Hook(event, command, "", kept, min(timeout, _MAX_TIMEOUT), "claude", self._file, line),
        )
