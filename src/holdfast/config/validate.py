"""Validation of a settings tree against the types in `domain.settings`. Pure.

All problems are found in one pass. Valid values are kept; each invalid one is left out and becomes a problem with its
key and the expected type. Deny rules get special care: a mistake that may disable one is always an error.
"""

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from holdfast.config.line_numbers import KeyPath
from holdfast.config.problems import FileProblem, Severity, format_key
from holdfast.domain.hooks import HOOK_EVENTS, event_of, matcher_trouble
from holdfast.domain.settings import PROVIDER_TYPES, Settings
from holdfast.domain.tools import is_known_tool, suggest

__all__ = [
    "Validated",
    "event_problem",
    "hides_denial",
    "is_independent",
    "key_type",
    "known_names",
    "leaves",
    "text_problem",
    "validate_tree",
    "value_problems",
]


# Checks that types cannot express: permission rules, names of tools and hook events.

_EFFECTS = {"deny": "deny", "ask": "ask", "allow": "allow", "allowed_tools": "allow"}
_DENYING = re.compile(r"deny|denied|permission|disallow|forbid|block", re.I)
_KNOWN_NAMES: dict[KeyPath, tuple[str, ...]] = {
    ("tools", "ls"): ("max_depth", "max_items"),
    ("tools", "grep"): ("timeout",),
    ("tools", "glob"): ("timeout",),
    ("options", "tui"): ("compact_mode", "completions", "diff_mode", "scrollbar", "theme", "transparent"),
}
"""Keys of tables whose values have one type, or any."""


def known_names(path: KeyPath) -> Sequence[str] | None:
    """Return the keys that a table may have; None if any name is allowed."""
    return _KNOWN_NAMES.get(path)


def text_problem(path: KeyPath, value: str) -> str:
    """Return the problem of a text value at this path, or an empty string."""
    match path:
        case ("permissions", str(name), int()) if name in _EFFECTS:
            return _rule_problem(value, _EFFECTS[name])
        case ("options", "disabled_tools", int()) if "*" in value or not is_known_tool(value):
            return f"there is no tool {value[:80]!r}{suggest(value)}"
        case ("hooks", str(event), int(), "matcher"):
            return matcher_trouble(event_of(event), value)
        case ("hooks", _, int(), "command") if not value.strip() or "\0" in value:
            return "the command is empty." if not value.strip() else "the command contains a NUL character."
        case _:
            return ""


def _rule_problem(text: str, effect: str) -> str:
    from holdfast.domain.permission_rules import BadRule, parse_rules  # noqa: PLC0415 - only where there are rules

    try:
        parse_rules(text, effect)  # type: ignore[arg-type]
    except BadRule as error:
        return str(error)
    return ""


def event_problem(name: str) -> str:
    """Return the problem of the name of a hook event, or an empty string."""
    if event_of(name) is not None:
        return ""
    known = {event.lower(): event for event in HOOK_EVENTS}
    guess = suggest(name.replace("_", "").replace("-", ""), tuple(known))
    for lower, event in known.items():
        guess = guess.replace(lower, event)
    return f"is not an event of hooks{guess} There are: {', '.join(HOOK_EVENTS)}."


def hides_denial(path: KeyPath, value: object = None, *, is_unknown: bool = False) -> bool:
    """Return True if a problem at this path may disable a deny rule, for example by a misspelt key."""
    if path[:1] == ("permissions",):
        if is_unknown:
            name = str(path[-1])
            return bool(_DENYING.search(name)) or suggest(name, tuple(_EFFECTS)) not in _HARMLESS_SUGGESTIONS
        return len(path) == 1 or path[1] == "deny"
    return is_unknown and _mentions_denial(path[-1], value)


_HARMLESS_SUGGESTIONS = tuple(f"; did you mean {name}?" for name in ("allow", "allowed_tools"))


def _mentions_denial(name: str | int, value: object) -> bool:
    if isinstance(name, str) and (_DENYING.search(name) or suggest(name, ("permissions", "deny")) != "."):
        return True
    if isinstance(value, dict):
        return any(_mentions_denial(key, item) for key, item in value.items())
    return isinstance(value, list) and any(_mentions_denial(0, item) for item in value)


def is_independent(key: str) -> bool:
    """Return True if a problem with this key leaves the rest of its file in effect: rules and hooks are independent of
    each other.
    """
    return key.startswith(("permissions", "hooks", "options.disabled_tools"))


_MAX_PROBLEMS = 50
_MAX_GUESS_LENGTH = 60
_INVALID: Any = object()
"""Result for a value that is left out."""


class Validated(msgspec.Struct, frozen=True):
    """The valid part of a tree, and the problems of the rest."""

    tree: dict[str, Any]
    problems: tuple[FileProblem, ...]

    def __repr__(self) -> str:
        return f"Validated({len(self.problems)} problems)"


def validate_tree(tree: dict[str, Any], file: str, lines: dict[KeyPath, int]) -> Validated:
    """Validate a tree. `file` and `lines` are for the problems."""
    validator = _Validator(file, lines)
    kept = validator.struct(_settings_type(), tree, ())
    return Validated(kept, validator.all_problems())


@cache
def _settings_type() -> inspect.StructType:
    found = inspect.type_info(Settings)
    assert isinstance(found, inspect.StructType)
    return found


def key_type(path: KeyPath) -> inspect.Type | None:
    """Return the type of the value at a path; None if there is no such key."""
    kind: inspect.Type = _settings_type()
    for at, name in enumerate(path):
        below = _member_type(kind, name)
        known = known_names(path[:at])
        if below is None or (known is not None and name not in known):
            return None
        kind = below
    return kind


def _member_type(kind: inspect.Type, name: str | int) -> inspect.Type | None:
    match kind:
        case inspect.StructType():
            return next((field.type for field in kind.fields if field.encode_name == name), None)
        case inspect.DictType() if isinstance(name, str):
            return kind.value_type
        case inspect.VarTupleType() if isinstance(name, int):
            return kind.item_type
        case inspect.UnionType():
            return next((below for part in kind.types if (below := _member_type(part, name)) is not None), None)
        case inspect.AnyType():
            return kind
        case _:
            return None


def leaves(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield each scalar, empty table and empty list of a tree with its path."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


class _Validator:
    def __init__(self, file: str, lines: dict[KeyPath, int]) -> None:
        self._file = file
        self._lines = lines
        self._problems: list[FileProblem] = []
        self._omitted: list[Severity] = []

    def all_problems(self) -> tuple[FileProblem, ...]:
        if self._omitted:
            severity: Severity = "error" if "error" in self._omitted else "warning"
            self._problems.append(
                FileProblem(severity, self._file, 0, "", f"{len(self._omitted)} more problems like these.")
            )
        return tuple(self._problems)

    def _report(
        self, severity: Severity, path: KeyPath, text: str, guess: Sequence[str] = (), *, hides: bool | None = None
    ) -> None:
        """Add a problem. `guess` is a misspelt name followed by the known names. `hides`: a deny rule may be disabled.

        Problems beyond the limit are only counted, unless they may disable a deny rule.
        """
        hides = severity == "error" and hides_denial(path) if hides is None else hides
        if len(self._problems) >= _MAX_PROBLEMS and not hides:
            self._omitted.append(severity)
            return
        message = text + _guess(guess[0], guess[1:]) if guess else text
        self._problems.append(FileProblem(severity, self._file, self._line(path), format_key(path), message, hides))

    def _report_unknown(self, path: KeyPath, value: object, known: Sequence[str]) -> None:
        """Report an unknown key. One that may contain deny rules is an error."""
        hides = hides_denial(path, value, is_unknown=True)
        severity: Severity = "error" if hides or path[0] == "permissions" else "warning"
        self._report(severity, path, "is not a known key", (str(path[-1]), *known), hides=hides)

    def _line(self, path: KeyPath) -> int:
        for length in range(len(path), 0, -1):
            if (line := self._lines.get(path[:length])) is not None:
                return line
        return 0

    def _report_type(self, kind: inspect.Type, value: object, path: KeyPath) -> Any:  # noqa: ANN401 - stands for any value
        self._report("error", path, f"expected {_describe_type(kind)}, found {_describe_value(value, kind)}.")
        return _INVALID

    def struct(self, kind: inspect.StructType, tree: dict[str, Any], path: KeyPath) -> dict[str, Any]:
        fields = {field.encode_name: field for field in kind.fields}
        kept: dict[str, Any] = {}
        for name, value in tree.items():
            field = fields.get(name)
            if field is None:
                if (*path, name) != ("$schema",):
                    self._report_unknown((*path, name), value, tuple(fields))
                continue
            fitted = self.value(field.type, value, (*path, name))
            if fitted is not _INVALID:
                kept[name] = fitted
        return kept

    def value(self, kind: inspect.Type, value: Any, path: KeyPath) -> Any:  # noqa: ANN401 - any JSON
        match kind:
            case inspect.UnionType():
                return self._union(kind, value, path)
            case inspect.AnyType():
                return self._check_any(value, path)
            case _ if value is None:
                return _INVALID  # null is the same as a missing key
            case inspect.StructType() if isinstance(value, dict):
                return self._nested_struct(kind, value, path)
            case inspect.DictType() if isinstance(value, dict):
                self._check_names(value, path)
                pairs = {name: self.value(kind.value_type, item, (*path, name)) for name, item in value.items()}
                return {name: item for name, item in pairs.items() if item is not _INVALID}
            case inspect.VarTupleType() if isinstance(value, list):
                items = [self.value(kind.item_type, item, (*path, index)) for index, item in enumerate(value)]
                return [item for item in items if item is not _INVALID]
            case _ if _is_valid(kind, value):
                return self._check_value(value, path)
            case _:
                return self._report_type(kind, value, path)

    def _nested_struct(self, kind: inspect.StructType, value: dict[str, Any], path: KeyPath) -> Any:  # noqa: ANN401
        missing = [
            field.encode_name for field in kind.fields if field.required and value.get(field.encode_name) is None
        ]
        if missing:
            self._report("error", path, f"{missing[0]} is missing.")
            return _INVALID
        kept = self.struct(kind, value, path)
        return kept if all(field.encode_name in kept for field in kind.fields if field.required) else _INVALID

    def _union(self, kind: inspect.UnionType, value: Any, path: KeyPath) -> Any:  # noqa: ANN401
        if value is None:
            return None
        rest = [part for part in kind.types if not isinstance(part, inspect.NoneType)]
        return self.value(rest[0], value, path)

    def _check_any(self, value: Any, path: KeyPath) -> Any:  # noqa: ANN401
        for at, leaf in leaves(value, path):
            is_plain = leaf is None or isinstance(leaf, str | bool | int | dict | list)
            if not is_plain and not (isinstance(leaf, float) and math.isfinite(leaf)):
                self._report("error", at, "expected text, a number, true or false, a list or a table.")
                return _INVALID
        return value

    def _check_names(self, table: dict[str, Any], path: KeyPath) -> None:
        """Report unknown names in a table whose type allows any name."""
        known = known_names(path)
        for name in table if known is not None else ():
            if name not in (known or ()):
                self._report_unknown((*path, name), table[name], known or ())
        for name in table if path == ("hooks",) else ():
            if problem := event_problem(name):
                self._report("error", (*path, name), problem)

    def _check_value(self, value: Any, path: KeyPath) -> Any:  # noqa: ANN401
        if isinstance(value, str) and (problem := text_problem(path, value)):
            self._report("error", path, problem)
            # A hook without its matcher would run for each tool, so the value is kept and `extensions.hooks` rejects
            # the whole hook.
            return value if path[0] == "hooks" else _INVALID
        if len(path) != 3 or path[0] != "providers" or path[2] != "type":
            return value
        if value and value.strip().lower() not in PROVIDER_TYPES:
            self._report("warning", path, "is not a known type", (value, *PROVIDER_TYPES))
        return value


def _is_valid(kind: inspect.Type, value: object) -> bool:
    match kind:
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool) and _in_range(kind, value)
        case inspect.FloatType():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and isinstance(value, int | float) and _is_finite(value) and _in_range(kind, value)
        case inspect.LiteralType():
            return isinstance(value, str) and value in kind.values
        case _:
            return False


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _in_range(kind: inspect.IntType | inspect.FloatType, value: float) -> bool:
    is_small = isinstance(kind, inspect.FloatType) or -(2**63) <= value < 2**63
    return is_small and (kind.ge is None or value >= kind.ge) and (kind.le is None or value <= kind.le)


def _describe_type(kind: inspect.Type) -> str:
    match kind:
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.LiteralType():
            return "one of " + ", ".join(f'"{value}"' for value in kind.values)
        case inspect.VarTupleType():
            return "a list"
        case _:
            return "a table"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    return "" if kind.ge is None else f" of at least {kind.ge}"


def _describe_value(value: object, kind: inspect.Type) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float() if isinstance(kind, inspect.IntType | inspect.FloatType):
            return _other_number(value, kind)
        case str():
            return "text" if value else "empty text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _other_number(value: float, kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and value < kind.ge:
        return "a smaller one"
    if isinstance(kind, inspect.IntType) and isinstance(value, float):
        return "one with a point"
    return "a larger one"


def _guess(name: str, known: Sequence[str]) -> str:
    if len(name) > _MAX_GUESS_LENGTH:
        return "."
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else "."


def value_problems(path: KeyPath, value: object) -> list[str]:
    """Return the problems of a single value. Missing neighbours are ignored."""
    tree: Any = value
    for name in reversed(path):
        tree = [tree] if isinstance(name, int) else {name: tree}
    return [
        problem.text for problem in validate_tree(tree, "", {}).problems if not problem.text.endswith("is missing.")
    ]
