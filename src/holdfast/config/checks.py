"""Checks of single values that types cannot express: permission rules, names of tools, hooks. Pure.

A mistake in one of these would take effect as if nothing had been written. A mistake that may stand for a deny rule is
marked, because nothing but reading is done unasked while a deny rule cannot be read.
"""

import re
from collections.abc import Sequence

from holdfast.config.lines import KeyPath
from holdfast.domain.hooks import HOOK_EVENTS, event_of, matcher_trouble
from holdfast.domain.tool_names import is_known_tool, suggest

__all__ = ["event_trouble", "hides_denial", "is_separate", "known_names", "value_trouble"]

_EFFECTS = {"deny": "deny", "ask": "ask", "allow": "allow", "allowed_tools": "allow"}
_DENYING = re.compile(r"deny|denied|permission|disallow|forbid|block", re.I)
_KNOWN_BELOW: dict[KeyPath, tuple[str, ...]] = {
    ("tools", "ls"): ("max_depth", "max_items"),
    ("tools", "grep"): ("timeout",),
    ("tools", "glob"): ("timeout",),
    ("options", "tui"): ("compact_mode", "completions", "diff_mode", "scrollbar", "theme", "transparent"),
}
"""Keys of tables whose values have one type, or any."""


def known_names(path: KeyPath) -> Sequence[str] | None:
    """Return the keys that a table may have; None if any name is allowed."""
    return _KNOWN_BELOW.get(path)


def value_trouble(path: KeyPath, value: str) -> str:
    """Return what is wrong with a text at this place; empty if nothing is."""
    match path:
        case ("permissions", str(name), int()) if name in _EFFECTS:
            return _rule_trouble(value, _EFFECTS[name])
        case ("options", "disabled_tools", int()) if "*" in value or not is_known_tool(value):
            return f"there is no tool {value[:80]!r}{suggest(value)}"
        case ("hooks", str(event), int(), "matcher"):
            return matcher_trouble(event_of(event), value)
        case ("hooks", _, int(), "command") if not value.strip() or "\0" in value:
            return "the command is empty." if not value.strip() else "the command holds a NUL character."
        case _:
            return ""


def _rule_trouble(text: str, effect: str) -> str:
    from holdfast.domain.rule_syntax import BadRule, parse_rules  # noqa: PLC0415 - only where there are rules

    try:
        parse_rules(text, effect)  # type: ignore[arg-type]
    except BadRule as error:
        return str(error)
    return ""


def event_trouble(name: str) -> str:
    """Return what is wrong with the name of a hook's event; empty if it is one."""
    if event_of(name) is not None:
        return ""
    known = {event.lower(): event for event in HOOK_EVENTS}
    guess = suggest(name.replace("_", "").replace("-", ""), tuple(known))
    for lower, event in known.items():
        guess = guess.replace(lower, event)
    return f"is not an event of hooks{guess} There are: {', '.join(HOOK_EVENTS)}."


def hides_denial(path: KeyPath, value: object = None, *, is_unknown: bool = False) -> bool:
    """Whether what is wrong at this place may be a deny rule that is not in force."""
    if path[:1] == ("permissions",):
        if is_unknown:
            name = str(path[-1])
            return bool(_DENYING.search(name)) or suggest(name, tuple(_EFFECTS)) not in _HARMLESS
        return len(path) == 1 or path[1] == "deny"
    return is_unknown and _mentions_denial(path[-1], value)


_HARMLESS = tuple(f"; did you mean {name}?" for name in ("allow", "allowed_tools"))


def _mentions_denial(name: str | int, value: object) -> bool:
    if isinstance(name, str) and (_DENYING.search(name) or suggest(name, ("permissions", "deny")) != "."):
        return True
    if isinstance(value, dict):
        return any(_mentions_denial(key, item) for key, item in value.items())
    return isinstance(value, list) and any(_mentions_denial(0, item) for item in value)


def is_separate(key: str) -> bool:
    """Whether a mistake there leaves the rest of its file in force: each rule and each hook stands for itself."""
    return key.startswith(("permissions", "hooks", "options.disabled_tools"))
