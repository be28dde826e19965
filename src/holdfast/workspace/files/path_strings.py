"""File paths: joining, comparing, display, glob matching. Pure: no file system access."""

import difflib
import json
import posixpath
import re
from collections.abc import Iterable

from holdfast.domain.errors import ToolError

__all__ = ["as_one_line", "display_path", "glob_regex", "is_within", "join_path", "similar_names"]

_MAX_PATH = 4_096
_MAX_ALTERNATIVES = 200
_MAX_NAMES = 5_000


def join_path(root: str, given: str, home: str = "") -> str:
    """Return the absolute path: relative paths are based on the root, `~` is `home`. Raises `ToolError`."""
    if not given.strip():
        raise ToolError("The path is empty: name a file or a directory.")
    if "\0" in given or len(given) > _MAX_PATH:
        raise ToolError("The path is not valid: it is too long or contains a null character.")
    if home and (given == "~" or given.startswith("~/")):
        given = home + given[1:]
    return (
        posixpath.normpath(posixpath.join(root, given))
        if ".." not in given.split("/")
        else _join_unresolved(root, given)
    )


def _join_unresolved(root: str, given: str) -> str:
    """Join without normalizing `a/../b`: if `a` is a link, only the file system can resolve it."""
    return posixpath.join(root, given)


def is_within(root: str, path: str) -> bool:
    """Return whether a path is the root or below it. Both are real paths."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def as_one_line(path: str) -> str:
    """Return the path for a list with one path per line: as a JSON string if it contains control characters."""
    return json.dumps(path, ensure_ascii=False) if any(character < " " for character in path) else path


def display_path(root: str, path: str) -> str:
    """Return the path for display: relative inside the root, absolute elsewhere."""
    if path == root:
        return "."
    return path[len(root.rstrip("/")) + 1 :] if is_within(root, path) else path


def similar_names(wanted: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Return similar names: equal up to case, one containing the other, or with a small edit distance."""
    lowered = wanted.lower()
    known = sorted(names)[:_MAX_NAMES]
    close = [name for name in known if lowered in name.lower() or name.lower() in lowered]
    alike = difflib.get_close_matches(lowered, [name.lower() for name in known], n=limit, cutoff=0.6)
    close += [name for name in known if name.lower() in alike and name not in close]
    return sorted(close, key=lambda name: -difflib.SequenceMatcher(None, lowered, name.lower()).ratio())[:limit]


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Compile a glob with `*`, `**`, `?`, `[…]` and `{a,b}` for relative paths. Without a slash it matches at every
    depth.

    The expression does not backtrack, so no pattern takes long.
    """
    pattern = pattern.removeprefix("./").lstrip("/") or "*"
    alternatives = _alternatives(pattern)
    whole = [item if "/" in item else f"**/{item}" for item in alternatives]
    try:
        return re.compile("|".join(f"(?:{_translate(item)})" for item in whole), re.DOTALL)
    except re.error as error:
        raise ToolError(f"The pattern {pattern} is not a valid glob: {error}.") from None


def _alternatives(pattern: str) -> list[str]:
    """Expand braces: `{a,b}c` becomes `ac` and `bc`; braces may be nested."""
    done: list[str] = []
    pending = [pattern]
    while pending:
        item = pending.pop()
        span = _first_braces(item)
        if span is None:
            done.append(item)
            continue
        begin, end = span
        pending += [item[:begin] + choice + item[end + 1 :] for choice in _split_choices(item[begin + 1 : end])]
        if len(pending) + len(done) > _MAX_ALTERNATIVES:
            raise ToolError(f"The pattern has more than {_MAX_ALTERNATIVES} alternatives: use a simpler one.")
    return done


def _first_braces(text: str) -> tuple[int, int] | None:
    begin = text.find("{")
    depth = 0
    for offset in range(begin, len(text)) if begin >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[offset], 0)
        if depth == 0:
            return begin, offset
    return None


def _split_choices(text: str) -> list[str]:
    choices, depth = [""], 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            choices.append("")
        else:
            choices[-1] += character
    return choices


def _translate(pattern: str) -> str:
    """Translate one alternative to a regular expression for a whole path. A group between two `**` is matched at the
    first possible place, atomically: for patterns of this kind that finds every match.
    """
    groups: list[list[str]] = [[]]
    for part in pattern.split("/"):
        if part == "**":
            groups.append([])
        else:
            groups[-1].append(_translate_component(part))
    first, *others = ["/".join(group) for group in groups]
    if not others:
        return first + r"\Z"
    *middle, last = others
    out = f"{first}/" if first else ""
    out += "".join(f"(?>(?:[^/]+/)*?{group}/)" for group in middle if group)
    return out + (rf"(?:[^/]+/)*{last}\Z" if last else r".+\Z")


def _translate_component(part: str) -> str:
    """Translate one path component in the same way: fixed pieces between stars."""
    first, *others = _fixed_pieces(part)
    if not others:
        return first
    *middle, last = others
    # The last piece must match directly before the end of the component.
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle if piece) + f"[^/]*{last}"


def _fixed_pieces(part: str) -> list[str]:
    """Split a component at its stars into pieces of fixed length."""
    pieces, offset = [""], 0
    while offset < len(part):
        character = part[offset]
        if character == "*":
            pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "[" and (end := part.find("]", offset + 2)) > 0:
            pieces[-1] += _character_set(part[offset + 1 : end])
            offset = end
        else:
            if character == "\\" and offset + 1 < len(part):
                offset += 1
            pieces[-1] += re.escape(part[offset])
        offset += 1
    return pieces


def _character_set(inner: str) -> str:
    negated = inner[0] in "!^"
    body = re.sub(r"([\\\[\]&~|^])", r"\\\1", inner[1:] if negated else inner)
    return f"(?!/)[{'^' if negated else ''}{body}]"
