"""File paths: joining, comparing, display, glob matching. Pure: no file system access."""

import difflib
import json
import posixpath
import re
from collections.abc import Iterable

from holdfast.domain.errors import ToolError

__all__ = ["glob_regex", "in_one_line", "is_within", "joined", "shown", "similar"]

_LONGEST = 4_096
_MOST_ALTERNATIVES = 200
_MOST_NAMES = 5_000


def joined(root: str, given: str, home: str = "") -> str:
    """Return the absolute path: relative paths are based on the root, `~` is `home`. Raises `ToolError`."""
    if not given.strip():
        raise ToolError("The path is empty: name a file or a directory.")
    if "\0" in given or len(given) > _LONGEST:
        raise ToolError("The path is not one: it is too long or has a null character in it.")
    if home and (given == "~" or given.startswith("~/")):
        given = home + given[1:]
    return posixpath.normpath(posixpath.join(root, given)) if ".." not in given.split("/") else _kept(root, given)


def _kept(root: str, given: str) -> str:
    """Join without normalizing `a/../b`: if `a` is a link, only the file system can resolve it."""
    return posixpath.join(root, given)


def is_within(root: str, path: str) -> bool:
    """Return whether a path is the root or below it. Both are real paths."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def in_one_line(path: str) -> str:
    """Return the path for a list with one path per line: as a JSON string if it contains control characters."""
    return json.dumps(path, ensure_ascii=False) if any(character < " " for character in path) else path


def shown(root: str, path: str) -> str:
    """Return the path for display: relative inside the root, absolute elsewhere."""
    if path == root:
        return "."
    return path[len(root.rstrip("/")) + 1 :] if is_within(root, path) else path


def similar(wanted: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return similar names: equal up to case, one containing the other, or with a small edit distance."""
    small = wanted.lower()
    known = sorted(names)[:_MOST_NAMES]
    close = [name for name in known if small in name.lower() or name.lower() in small]
    like = difflib.get_close_matches(small, [name.lower() for name in known], n=most, cutoff=0.6)
    close += [name for name in known if name.lower() in like and name not in close]
    return sorted(close, key=lambda name: -difflib.SequenceMatcher(None, small, name.lower()).ratio())[:most]


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Compile a glob with `*`, `**`, `?`, `[…]` and `{a,b}` for relative paths. Without a slash it matches at every
    depth.

    The expression does not backtrack, so no pattern takes long.
    """
    pattern = pattern.removeprefix("./").lstrip("/") or "*"
    alternatives = _alternatives(pattern)
    whole = [item if "/" in item else f"**/{item}" for item in alternatives]
    try:
        return re.compile("|".join(f"(?:{_translated(item)})" for item in whole), re.DOTALL)
    except re.error as error:
        raise ToolError(f"The pattern {pattern} is not a valid glob: {error}.") from None


def _alternatives(pattern: str) -> list[str]:
    """Expand braces: `{a,b}c` becomes `ac` and `bc`; braces may be nested."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        item = waiting.pop()
        span = _first_braces(item)
        if span is None:
            done.append(item)
            continue
        begin, end = span
        waiting += [item[:begin] + choice + item[end + 1 :] for choice in _choices(item[begin + 1 : end])]
        if len(waiting) + len(done) > _MOST_ALTERNATIVES:
            raise ToolError(f"The pattern has more than {_MOST_ALTERNATIVES} alternatives: use a simpler one.")
    return done


def _first_braces(text: str) -> tuple[int, int] | None:
    begin = text.find("{")
    depth = 0
    for place in range(begin, len(text)) if begin >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return begin, place
    return None


def _choices(text: str) -> list[str]:
    choices, depth = [""], 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            choices.append("")
        else:
            choices[-1] += character
    return choices


def _translated(pattern: str) -> str:
    """Translate one alternative to a regular expression for a whole path. A group between two `**` is matched at the
    first possible place, atomically: for patterns of this kind that finds every match.
    """
    groups: list[list[str]] = [[]]
    for part in pattern.split("/"):
        if part == "**":
            groups.append([])
        else:
            groups[-1].append(_segment(part))
    first, *others = ["/".join(group) for group in groups]
    if not others:
        return first + r"\Z"
    *middle, last = others
    out = f"{first}/" if first else ""
    out += "".join(f"(?>(?:[^/]+/)*?{group}/)" for group in middle if group)
    return out + (rf"(?:[^/]+/)*{last}\Z" if last else r".+\Z")


def _segment(part: str) -> str:
    """Translate one path component in the same way: fixed pieces between stars."""
    first, *others = _pieces(part)
    if not others:
        return first
    *middle, last = others
    # The last piece must match directly before the end of the component.
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle if piece) + f"[^/]*{last}"


def _pieces(part: str) -> list[str]:
    """Split a component at its stars into pieces of fixed length."""
    pieces, place = [""], 0
    while place < len(part):
        character = part[place]
        if character == "*":
            pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "[" and (end := part.find("]", place + 2)) > 0:
            pieces[-1] += _set(part[place + 1 : end])
            place = end
        else:
            if character == "\\" and place + 1 < len(part):
                place += 1
            pieces[-1] += re.escape(part[place])
        place += 1
    return pieces


def _set(inner: str) -> str:
    negated = inner[0] in "!^"
    body = re.sub(r"([\\\[\]&~|^])", r"\\\1", inner[1:] if negated else inner)
    return f"(?!/)[{'^' if negated else ''}{body}]"
