"""String replacement in a text: exact match, else a match up to white space, else an explanation.

Every function takes time proportional to the text, even if its lines repeat.
"""

import difflib
import re
from collections.abc import Sequence

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.workspace.files.text_encoding import line_ending, with_line_ending

__all__ = ["EditResult", "replace_text"]

_NUMBERED = re.compile(r"^ *\d+\|")
_MAX_SHOWN = 5
_MAX_LINES = 400
_MAX_POSITIONS = 50
_MAX_COMPARED = 3_000
_MAX_WIDTH = 160


class EditResult(msgspec.Struct, frozen=True):
    """The new text, the number of replaced places, and a note for the model about inexact matches."""

    text: str
    places: int
    note: str = ""


def replace_text(text: str, old: str, new: str, *, replace_all: bool) -> EditResult:
    """Replace `old` by `new`. Raises `ToolError` if `old` is missing, or ambiguous without `replace_all`."""
    if old == new:
        raise ToolError("old_string and new_string are the same: nothing would change.")
    end = line_ending(text)
    if end == "\r\n":
        plain, before, after = (with_line_ending(item, "\n") for item in (text, old, new))
        result = _replace_exactly(plain, before, after, replace_all=replace_all)
        result = msgspec.structs.replace(result, text=with_line_ending(result.text, "\r\n"))
    else:
        result = _replace_exactly(text, old, new, replace_all=replace_all)
    if result.text == text:
        raise ToolError("The text would not change.")
    return result


def _replace_exactly(text: str, old: str, new: str, *, replace_all: bool) -> EditResult:
    first = text.find(old)
    if first < 0:
        return _replace_tolerantly(text, old, new, replace_all=replace_all)
    if replace_all:
        return EditResult(text.replace(old, new), text.count(old))
    if text.find(old, first + 1) >= 0:
        raise ToolError(_ambiguous_message(_lines_of(text, old), max(2, text.count(old))))
    return EditResult(text[:first] + new + text[first + len(old) :], 1)


def _replace_tolerantly(text: str, old: str, new: str, *, replace_all: bool) -> EditResult:
    """Match whole lines up to white space. Line numbers copied from a view are ignored."""
    old_lines, new_lines, has_numbers = _without_numbers(old, new)
    ends_line = len(old_lines) > 1 and old_lines[-1] == ""
    wanted = old_lines[:-1] if ends_line else old_lines
    lines = text.split("\n")
    starts = _occurrences([_collapse_spaces(line) for line in lines], [_collapse_spaces(line) for line in wanted])
    if not any(line.strip() for line in wanted) or not starts:
        raise ToolError(_missing_message(lines, wanted))
    if len(starts) > 1 and not replace_all:
        raise ToolError(_ambiguous_message([start + 1 for start in starts], len(starts)))
    if ends_line and new_lines and new_lines[-1] == "":
        new_lines = new_lines[:-1]
    out: list[str] = []
    at = 0
    for start in starts:
        found = lines[start : start + len(wanted)]
        out += lines[at:start]
        out += _adapt_indentation(new_lines, wanted, found) if "".join(new_lines) or not ends_line else []
        at = start + len(wanted)
    out += lines[at:]
    numbers = "The line numbers of view were ignored. " if has_numbers else ""
    note = f"{numbers}old_string did not match exactly; the lines that differ only in white space were replaced."
    return EditResult("\n".join(out), len(starts), note)


def _without_numbers(old: str, new: str) -> tuple[list[str], list[str], bool]:
    olds, news = old.split("\n"), new.split("\n")
    if not all(_NUMBERED.match(line) for line in olds if line.strip()):
        return olds, news, False
    return [_NUMBERED.sub("", line) for line in olds], [_NUMBERED.sub("", line) for line in news], True


def _collapse_spaces(line: str) -> str:
    return " ".join(line.split())


def _occurrences(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the non-overlapping positions of a sequence of lines (Knuth, Morris and Pratt)."""
    fallback = [0] * len(wanted)
    length = 0
    for place in range(1, len(wanted)):
        while length and wanted[place] != wanted[length]:
            length = fallback[length - 1]
        length += wanted[place] == wanted[length]
        fallback[place] = length
    found: list[int] = []
    length = 0
    for place, line in enumerate(lines):
        while length and line != wanted[length]:
            length = fallback[length - 1]
        length += line == wanted[length]
        if length == len(wanted):
            found.append(place - length + 1)
            length = 0
    return found


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _adapt_indentation(new: Sequence[str], wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    """Convert the new lines to the indentation of the file where `old` had another. Raises `ToolError` if the old
    lines do not determine it.
    """
    same = {(_indent(ours), _indent(theirs)) for ours, theirs in zip(wanted, found, strict=True) if ours.strip()}
    pairs = dict(same)
    end = "\r" if all(line.endswith("\r") for line in found) else ""
    if len(pairs) < len(same):
        raise ToolError(
            "old_string matches only if white space is ignored, and lines that it indents equally are indented"
            f" differently in the file. Send the exact text of the file:\n{_quote(found)}"
        )
    out = []
    for line in new:
        mine = _indent(line)
        if not line.strip():
            out.append(end)
            continue
        known = max((indent for indent in pairs if mine.startswith(indent)), key=len, default=None)
        if known is None:
            out.append(_outdent(mine, pairs) + line[len(mine) :] + end)
        else:
            extra = _convert_indentation(mine[len(known) :], pairs)
            out.append(pairs[known] + extra + line[len(mine) :] + end)
    return out


def _quote(lines: Sequence[str]) -> str:
    more = [f"… and {len(lines) - _MAX_SHOWN} more lines"] if len(lines) > _MAX_SHOWN else []
    return "\n".join([*(line.rstrip("\r")[:_MAX_WIDTH] for line in lines[:_MAX_SHOWN]), *more])


def _outdent(mine: str, pairs: dict[str, str]) -> str:
    """Return the indentation of a line further left than all matched ones: it shifts like the leftmost of them."""
    leftmost = min(pairs, key=len)
    missing = len(leftmost) - len(mine)
    return pairs[leftmost][: max(0, len(pairs[leftmost]) - missing)]


def _convert_indentation(extra: str, pairs: dict[str, str]) -> str:
    """Convert additional indentation to the file's style: tabs if it uses tabs."""
    theirs, ours = "".join(pairs.values()), "".join(pairs)
    if extra and "\t" in theirs and " " not in theirs and "\t" not in extra:
        tabs = sum(len(indent) for indent in pairs.values())
        width = max(1, len(ours) // tabs) if ours else 4
        return "\t" * max(1, len(extra) // width)
    if "\t" in extra and theirs and "\t" not in theirs:
        tabs = ours.count("\t")
        return extra.replace("\t", " " * (len(theirs) // tabs if tabs else 4))
    return extra


def _lines_of(text: str, old: str) -> list[int]:
    """Return the line numbers of the first few occurrences."""
    found: list[int] = []
    place, line, counted = text.find(old), 1, 0
    while place >= 0 and len(found) <= _MAX_SHOWN:
        line += text.count("\n", counted, place)
        counted = place
        found.append(line)
        place = text.find(old, place + 1)
    return found


def _ambiguous_message(lines: Sequence[int], count: int) -> str:
    lines = sorted(set(lines))
    shown = ", ".join(map(str, lines[:_MAX_SHOWN])) + (", …" if len(lines) > _MAX_SHOWN else "")
    return (
        f"old_string occurs {count} times (lines {shown}). Add lines before or after it until it matches only"
        " once, or set replace_all."
    )


def _missing_message(lines: Sequence[str], wanted: Sequence[str]) -> str:
    base = "old_string is not in the file; nothing was changed."
    shown = [line for line in wanted if line.strip()]
    if not shown:
        return f"{base} It contains only white space: add the lines around it."
    hint = _nearest_match(lines, wanted[:_MAX_LINES])
    if not hint and "\\n" in wanted[0]:
        hint = r" It has \n written out as two characters: send real line breaks."
    return base + (hint or " Nothing similar was found. Use view to see the current content.")


def _nearest_match(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """Describe the place with most of the wanted lines, and the first difference there."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        positions = places.setdefault(_collapse_spaces(line), [])
        if len(positions) < _MAX_POSITIONS:
            positions.append(number)
    votes: dict[int, float] = {}
    for number, line in enumerate(wanted):
        positions = places.get(_collapse_spaces(line), []) if line.strip() else []
        for position in positions:
            votes[position - number] = votes.get(position - number, 0) + 1 / len(positions)
    if not votes:
        return _similar_line(lines, wanted)
    # The place with the most votes; the first one among equals.
    start = max(votes, key=lambda place: (votes[place], -place))
    for number, line in enumerate(wanted):
        there = lines[start + number] if 0 <= start + number < len(lines) else None
        if there is None:
            return f" Its line {number + 1} would be outside of the file, which has {len(lines)} lines."
        if _collapse_spaces(there) != _collapse_spaces(line):
            return _difference_message(start + number + 1, there, line)
    return ""


def _similar_line(lines: Sequence[str], wanted: Sequence[str]) -> str:
    line = next(line for line in wanted if line.strip())[:_MAX_WIDTH]
    known = {
        _collapse_spaces(item)[:_MAX_WIDTH]: number for number, item in enumerate(lines[:_MAX_COMPARED]) if item.strip()
    }
    close = difflib.get_close_matches(_collapse_spaces(line), list(known), n=1, cutoff=0.7)
    return _difference_message(known[close[0]] + 1, lines[known[close[0]]], line) if close else ""


def _difference_message(number: int, there: str, line: str) -> str:
    return (
        f" The closest match differs in line {number}:\n"
        f"  the file has: {_shorten(there)}\n  you sent:     {_shorten(line)}\n"
        "Correct old_string, or use view to see the lines again."
    )


def _shorten(line: str) -> str:
    text = line.rstrip("\r").replace("\t", "→")
    return text if len(text) <= _MAX_WIDTH else text[:_MAX_WIDTH] + "…"
