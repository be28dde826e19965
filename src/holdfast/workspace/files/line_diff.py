"""Line-based diffs in roughly linear time: patience diff with `difflib` for small blocks."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import msgspec

__all__ = ["Diff", "diff", "excerpt"]

_CONTEXT = 3
_MOST_COMPARED = 200_000
_MOST_TEXT = 100_000

Block = tuple[int, int, int, int]
"""Lines `a:b` of the old text become lines `c:d` of the new one."""


class Diff(msgspec.Struct, frozen=True):
    """A unified diff and the numbers of added and removed lines."""

    text: str
    additions: int
    removals: int

    @property
    def counts(self) -> str:
        """Summary for a tool result."""
        return f"{self.additions} line{'s' * (self.additions != 1)} added, {self.removals} removed"


def diff(old: str, new: str, name: str) -> Diff:
    """Compare two texts. A very long diff text is truncated; the counts are exact."""
    before, after = _lines(old), _lines(new)
    blocks = list(_blocks(before, after))
    additions = sum(d - c for _, _, c, d in blocks)
    removals = sum(b - a for a, b, _, _ in blocks)
    if not blocks and old != new:
        return Diff(f"--- {name}\n+++ {name}\n(only line ends or the end of the file differ)", 0, 0)
    lines: list[str] = []
    size = 0
    for line in _unified(before, after, blocks, name):
        size += len(line) + 1
        if size > _MOST_TEXT:
            lines.append("… the rest of the difference is left out")
            break
        lines.append(line)
    return Diff("\n".join(lines), additions, removals)


def _lines(text: str) -> list[str]:
    """Split into lines as editors count them: only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def excerpt(old: str, new: str, most: int) -> tuple[str, str]:
    """Return both texts if they are short, else the part that differs with some context, else empty texts."""
    if len(old) <= most and len(new) <= most:
        return old, new
    head = _common_head(old, new)
    tail = _common_head(old[head:][::-1], new[head:][::-1])
    begin = _lines_back(old, head, _CONTEXT)
    end = _lines_on(old, len(old) - tail, _CONTEXT)
    first, second = old[begin:end], new[begin : end + len(new) - len(old)]
    return (first, second) if len(first) <= most and len(second) <= most else ("", "")


def _common_head(old: str, new: str) -> int:
    low, high = 0, min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _lines_back(text: str, place: int, count: int) -> int:
    for _ in range(count + 1):
        place = text.rfind("\n", 0, max(0, place))
        if place < 0:
            return 0
    return place + 1


def _lines_on(text: str, place: int, count: int) -> int:
    for _ in range(count + 1):
        place = text.find("\n", place) + 1
        if place == 0:
            return len(text)
    return place


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[Block]:
    """Yield the changed blocks in order. Lines unique in both texts serve as anchors."""
    waiting: list[Block] = [(0, len(old), 0, len(new))]
    while waiting:
        a, b, c, d = waiting.pop()
        while a < b and c < d and old[a] == new[c]:
            a, c = a + 1, c + 1
        while a < b and c < d and old[b - 1] == new[d - 1]:
            b, d = b - 1, d - 1
        if a == b and c == d:
            continue
        anchors = _anchors(old, new, (a, b, c, d)) if a < b and c < d else []
        if not anchors:
            yield from _compared(old, new, (a, b, c, d))
            continue
        edges = [(a - 1, c - 1), *anchors, (b, d)]
        pieces = [(i + 1, k, j + 1, m) for (i, j), (k, m) in pairwise(edges)]
        waiting += [piece for piece in reversed(pieces) if piece[0] < piece[1] or piece[2] < piece[3]]


def _anchors(old: Sequence[str], new: Sequence[str], block: Block) -> list[tuple[int, int]]:
    """Return the longest common subsequence of lines that are unique on both sides."""
    a, b, c, d = block
    ours, theirs = Counter(old[a:b]), Counter(new[c:d])
    place = {new[j]: j for j in range(c, d) if theirs[new[j]] == 1}
    pairs = [(i, place[old[i]]) for i in range(a, b) if ours[old[i]] == 1 and old[i] in place]
    ends: list[int] = []
    piles: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        pile = bisect_left(ends, j)
        before.append(piles[pile - 1] if pile else -1)
        if pile == len(ends):
            ends.append(j)
            piles.append(number)
        else:
            ends[pile], piles[pile] = j, number
    chain: list[tuple[int, int]] = []
    at = piles[-1] if piles else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _compared(old: Sequence[str], new: Sequence[str], block: Block) -> Iterator[Block]:
    """Compare a block without anchors line by line if it is small, else replace it as a whole."""
    a, b, c, d = block
    if (b - a) * (d - c) > _MOST_COMPARED:
        yield block
        return
    for kind, i, j, k, m in SequenceMatcher(None, old[a:b], new[c:d], autojunk=False).get_opcodes():
        if kind != "equal":
            yield a + i, a + j, c + k, c + m


def _unified(old: Sequence[str], new: Sequence[str], blocks: Sequence[Block], name: str) -> Iterator[str]:
    if blocks:
        yield f"--- {name}"
        yield f"+++ {name}"
    for group in _groups(blocks):
        first, last = group[0], group[-1]
        begin, end = max(0, first[0] - _CONTEXT), min(len(old), last[1] + _CONTEXT)
        there = first[2] - (first[0] - begin)
        until = last[3] + (end - last[1])
        yield f"@@ -{_span(begin, end)} +{_span(there, until)} @@"
        at = begin
        for a, b, c, d in group:
            yield from (f" {line}" for line in old[at:a])
            yield from (f"-{line}" for line in old[a:b])
            yield from (f"+{line}" for line in new[c:d])
            at = b
        yield from (f" {line}" for line in old[at:end])


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Group nearby changes into hunks."""
    group: list[Block] = []
    for block in blocks:
        if group and block[0] - group[-1][1] > 2 * _CONTEXT:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _span(begin: int, end: int) -> str:
    count = end - begin
    return f"{begin + 1 if count else begin},{count}"
