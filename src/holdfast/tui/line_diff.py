"""Line differences between two texts, for one column or two. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal, TypeAlias

import msgspec

__all__ = ["DiffLine", "Pair", "changed_span", "count_changes", "diff_texts", "pair_lines", "parse_unified_diff"]

_MOST_COMPARED = 3_000
"""Longer sections without a common line are not compared, because that would take seconds."""
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class DiffLine(msgspec.Struct, frozen=True):
    """One line. `old` and `new` are its numbers on each side; 0 if it is absent there."""

    kind: Literal["same", "added", "removed", "hunk"]
    text: str
    old: int = 0
    new: int = 0


Pair: TypeAlias = tuple[DiffLine | None, DiffLine | None]


def diff_texts(before: str, after: str, context: int = 3) -> list[DiffLine]:
    """Return the changed lines with context; a `hunk` line marks omitted lines."""
    old, new = before.splitlines(), after.splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if start == len(old) == len(new):
        return []
    lines = list(_middle(old[start : len(old) - end], new[start : len(new) - end], start))
    head = [DiffLine("same", old[at], at + 1, at + 1) for at in range(max(0, start - context), start)]
    shift = len(new) - len(old)
    first = len(old) - end
    tail = [DiffLine("same", old[at], at + 1, at + 1 + shift) for at in range(first, min(len(old), first + context))]
    return _with_hunks([*head, *_thinned(lines, context), *tail])


def _middle(old: Sequence[str], new: Sequence[str], start: int) -> Iterator[DiffLine]:
    if max(len(old), len(new)) > _MOST_COMPARED:
        codes = [("replace", 0, len(old), 0, len(new))]
    else:
        codes = SequenceMatcher(None, old, new).get_opcodes()  # type: ignore[assignment]
    for tag, i1, i2, j1, j2 in codes:
        if tag == "equal":
            yield from (
                DiffLine("same", old[i], start + i + 1, start + j + 1)
                for i, j in zip(range(i1, i2), range(j1, j2), strict=True)
            )
        else:
            yield from (DiffLine("removed", old[i], start + i + 1, 0) for i in range(i1, i2))
            yield from (DiffLine("added", new[j], 0, start + j + 1) for j in range(j1, j2))


def _thinned(lines: Sequence[DiffLine], context: int) -> list[DiffLine]:
    """Remove unchanged lines that are far from every change."""
    near = [False] * len(lines)
    for index, line in enumerate(lines):
        if line.kind != "same":
            for at in range(max(0, index - context), min(len(lines), index + context + 1)):
                near[at] = True
    return [line for line, is_near in zip(lines, near, strict=True) if is_near]


def _with_hunks(lines: Iterable[DiffLine]) -> list[DiffLine]:
    """Insert a hunk line wherever line numbers jump."""
    out: list[DiffLine] = []
    old = new = 1
    for line in lines:
        if (line.old and line.old != old) or (line.new and line.new != new):
            out.append(DiffLine("hunk", "", line.old, line.new))
        out.append(line)
        old, new = (line.old or old - 1) + 1, (line.new or new - 1) + 1
    return out


def parse_unified_diff(diff: str) -> list[DiffLine]:
    """Parse a unified diff."""
    lines: list[DiffLine] = []
    old = new = 0
    for line in diff.splitlines():
        if found := _HUNK.match(line):
            old, new = int(found[1]), int(found[2])
            lines.append(DiffLine("hunk", "", old, new))
        elif (not old and not new) or line.startswith("\\"):
            continue
        elif line.startswith("+"):
            lines.append(DiffLine("added", line[1:], 0, new))
            new += 1
        elif line.startswith("-"):
            lines.append(DiffLine("removed", line[1:], old, 0))
            old += 1
        else:
            lines.append(DiffLine("same", line[1:], old, new))
            old, new = old + 1, new + 1
    if lines and lines[0].kind == "hunk" and max(lines[0].old, lines[0].new) <= 1:
        del lines[0]
    return lines


def count_changes(lines: Iterable[DiffLine]) -> tuple[int, int]:
    """Return the number of added and of removed lines."""
    kinds = [line.kind for line in lines]
    return kinds.count("added"), kinds.count("removed")


def pair_lines(lines: Sequence[DiffLine]) -> list[Pair]:
    """Pair the lines for two columns: removed lines beside the added lines that replace them."""
    pairs: list[Pair] = []
    removed: list[DiffLine] = []
    added: list[DiffLine] = []

    def put() -> None:
        pairs.extend(zip_longest(removed, added))
        removed.clear()
        added.clear()

    for line in lines:
        if line.kind == "removed":
            if added:
                put()
            removed.append(line)
        elif line.kind == "added":
            added.append(line)
        else:
            put()
            pairs.append((line, line))
    put()
    return pairs


def changed_span(text: str, other: str) -> tuple[int, int]:
    """Return the range of `text` that differs from `other`; an empty range if the two have little in common."""
    start = 0
    while start < min(len(text), len(other)) and text[start] == other[start]:
        start += 1
    end = 0
    while end < min(len(text), len(other)) - start and text[-1 - end] == other[-1 - end]:
        end += 1
    return (start, len(text) - end) if start + end >= len(text) // 3 else (0, 0)
