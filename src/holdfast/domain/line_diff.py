"""Line-based diffs: changed blocks, the unified form that tools store, and lines with numbers for screens. Pure.

All forms are made from the same list of changed blocks, so that every screen shows the same hunks and counts. The
comparison is a patience diff: lines that occur exactly once on both sides are anchors, and only the blocks between two
anchors are compared further. This takes roughly linear time. A block without anchors goes to `difflib` if it is small
and is replaced as a whole if it is not, because `difflib` takes quadratic time at best.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import chain, pairwise, zip_longest
from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "Block",
    "ColumnPair",
    "Diff",
    "DiffLine",
    "changed_blocks",
    "changed_span",
    "count_changes",
    "diff_lines",
    "excerpt",
    "hunk_text",
    "pair_columns",
    "parse_unified_diff",
    "unified_diff",
]

CONTEXT = 3
"""Unchanged lines around a change, as in the diffs of other programs."""
MAX_COMPARED_PAIRS = 200_000
"""Blocks without anchors are compared line by line up to this product of their lengths."""
MAX_DIFF_TEXT = 100_000
"""Maximum characters of a unified diff."""
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")

Block: TypeAlias = tuple[int, int, int, int]
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


class DiffLine(msgspec.Struct, frozen=True):
    """One line. `old` and `new` are its numbers on each side; 0 if it is absent there."""

    kind: Literal["same", "added", "removed", "hunk"]
    text: str
    old: int = 0
    new: int = 0


ColumnPair: TypeAlias = tuple[DiffLine | None, DiffLine | None]
"""The old line and the new line of one row."""


def unified_diff(old: str, new: str, name: str) -> Diff:
    """Compare two texts. A very long diff text is truncated; the counts are exact."""
    before, after = _split_lines(old), _split_lines(new)
    blocks = changed_blocks(before, after)
    additions = sum(d - c for _, _, c, d in blocks)
    removals = sum(b - a for a, b, _, _ in blocks)
    header = [f"--- {name}", f"+++ {name}"]
    if not blocks:
        note = "(only line ends or the end of the file differ)"
        return Diff("\n".join([*header, note]) if old != new else "", 0, 0)
    lines: list[str] = []
    size = 0
    for line in chain(header, hunk_text(before, after, blocks)):
        size += len(line) + 1
        if size > MAX_DIFF_TEXT:
            lines.append("… the rest of the difference is left out")
            break
        lines.append(line)
    return Diff("\n".join(lines), additions, removals)


def _split_lines(text: str) -> list[str]:
    """Split into lines as editors count them: only a line feed ends a line."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def hunk_text(
    old: Sequence[str], new: Sequence[str], blocks: Sequence[Block] | None = None, context: int = CONTEXT
) -> Iterator[str]:
    """Yield the hunks of a unified diff, line by line. The blocks are computed if they are not given."""
    found = changed_blocks(old, new) if blocks is None else blocks
    for (begin, end, new_begin, new_end), group in _hunks(found, len(old), context):
        yield f"@@ -{_range_text(begin, end)} +{_range_text(new_begin, new_end)} @@"
        at = begin
        for a, b, c, d in group:
            yield from (f" {line}" for line in old[at:a])
            yield from (f"-{line}" for line in old[a:b])
            yield from (f"+{line}" for line in new[c:d])
            at = b
        yield from (f" {line}" for line in old[at:end])


def _range_text(begin: int, end: int) -> str:
    # By convention, an empty range names the line before it.
    count = end - begin
    return f"{begin + 1 if count else begin},{count}"


def diff_lines(before: str, after: str, context: int = CONTEXT) -> list[DiffLine]:
    """Return the changed lines with context; a `hunk` line marks omitted lines."""
    # Screens show no line separators, so that every separator that Python knows ends a line here.
    old, new = before.splitlines(), after.splitlines()
    lines: list[DiffLine] = []
    shown = 0
    for (begin, end, new_begin, _), group in _hunks(changed_blocks(old, new), len(old), context):
        if begin > shown:
            lines.append(DiffLine("hunk", "", begin + 1, new_begin + 1))
        at, shift = begin, new_begin - begin
        for a, b, c, d in group:
            lines += (DiffLine("same", old[i], i + 1, i + shift + 1) for i in range(at, a))
            lines += (DiffLine("removed", old[i], i + 1, 0) for i in range(a, b))
            lines += (DiffLine("added", new[j], 0, j + 1) for j in range(c, d))
            at, shift = b, d - b
        lines += (DiffLine("same", old[i], i + 1, i + shift + 1) for i in range(at, end))
        shown = end
    return lines


def _hunks(blocks: Sequence[Block], length: int, context: int) -> Iterator[tuple[Block, list[Block]]]:
    """Group blocks whose contexts touch. Yield each group with the ranges of lines that it covers."""
    groups: list[list[Block]] = []
    for block in blocks:
        if groups and block[0] - groups[-1][-1][1] <= 2 * context:
            groups[-1].append(block)
        else:
            groups.append([block])
    for group in groups:
        a, _, c, _ = group[0]
        _, b, _, d = group[-1]
        begin, end = max(0, a - context), min(length, b + context)
        yield (begin, end, c - (a - begin), d + (end - b)), group


def changed_blocks(old: Sequence[str], new: Sequence[str]) -> list[Block]:
    """Return the blocks of lines that differ, in order."""
    blocks: list[Block] = []
    pending: list[Block] = [(0, len(old), 0, len(new))]
    while pending:
        a, b, c, d = pending.pop()
        while a < b and c < d and old[a] == new[c]:
            a, c = a + 1, c + 1
        while a < b and c < d and old[b - 1] == new[d - 1]:
            b, d = b - 1, d - 1
        if a == b and c == d:
            continue
        anchors = _anchors(old, new, (a, b, c, d)) if a < b and c < d else []
        if not anchors:
            blocks += _compare_block(old, new, (a, b, c, d))
            continue
        edges = [(a - 1, c - 1), *anchors, (b, d)]
        pieces = [(i + 1, k, j + 1, m) for (i, j), (k, m) in pairwise(edges)]
        # The last entry is processed first: reversed, so that the blocks are found in the order of the text.
        pending += [piece for piece in reversed(pieces) if piece[0] < piece[1] or piece[2] < piece[3]]
    return blocks


def _anchors(old: Sequence[str], new: Sequence[str], block: Block) -> list[tuple[int, int]]:
    """Return the longest common subsequence of lines that are unique on both sides."""
    a, b, c, d = block
    old_counts, new_counts = Counter(old[a:b]), Counter(new[c:d])
    position = {new[j]: j for j in range(c, d) if new_counts[new[j]] == 1}
    pairs = [(i, position[old[i]]) for i in range(a, b) if old_counts[old[i]] == 1 and old[i] in position]
    # Patience sorting: `tops[n]` is the smallest end of an increasing sequence of n + 1 pairs, `top_pairs[n]` the index
    # of that pair, and `previous` links each pair to its predecessor in the sequence.
    tops: list[int] = []
    top_pairs: list[int] = []
    previous: list[int] = []
    for index, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        previous.append(top_pairs[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(j)
            top_pairs.append(index)
        else:
            tops[pile], top_pairs[pile] = j, index
    chain: list[tuple[int, int]] = []
    at = top_pairs[-1] if top_pairs else -1
    while at >= 0:
        chain.append(pairs[at])
        at = previous[at]
    return chain[::-1]


def _compare_block(old: Sequence[str], new: Sequence[str], block: Block) -> Iterator[Block]:
    """Compare a block without anchors line by line if it is small, else replace it as a whole."""
    a, b, c, d = block
    if (b - a) * (d - c) > MAX_COMPARED_PAIRS:
        yield block
        return
    for kind, i, j, k, m in SequenceMatcher(None, old[a:b], new[c:d], autojunk=False).get_opcodes():
        if kind != "equal":
            yield a + i, a + j, c + k, c + m


def parse_unified_diff(diff: str) -> list[DiffLine]:
    """Return the lines of a unified diff of any program. Lines before its first hunk are skipped."""
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
    # No lines are omitted before a hunk that begins at the first line.
    if lines and lines[0].kind == "hunk" and max(lines[0].old, lines[0].new) <= 1:
        del lines[0]
    return lines


def count_changes(lines: Iterable[DiffLine]) -> tuple[int, int]:
    """Return the number of added and of removed lines."""
    kinds = [line.kind for line in lines]
    return kinds.count("added"), kinds.count("removed")


def pair_columns(lines: Sequence[DiffLine]) -> list[ColumnPair]:
    """Pair the lines for two columns: removed lines beside the added lines that replace them."""
    pairs: list[ColumnPair] = []
    removed: list[DiffLine] = []
    added: list[DiffLine] = []

    def flush() -> None:
        pairs.extend(zip_longest(removed, added))
        removed.clear()
        added.clear()

    for line in lines:
        if line.kind == "removed":
            if added:
                flush()
            removed.append(line)
        elif line.kind == "added":
            added.append(line)
        else:
            flush()
            pairs.append((line, line))
    flush()
    return pairs


def changed_span(text: str, other: str) -> tuple[int, int]:
    """Return the range of `text` that differs from `other`; an empty range if the two have little in common."""
    head = _common_prefix(text, other)
    tail = _common_suffix(text[head:], other[head:])
    return (head, len(text) - tail) if head + tail >= len(text) // 3 else (0, 0)


def excerpt(old: str, new: str, limit: int) -> tuple[str, str]:
    """Return both texts if they are short, else the part that differs with some context, else empty texts."""
    if len(old) <= limit and len(new) <= limit:
        return old, new
    head = _common_prefix(old, new)
    tail = _common_suffix(old[head:], new[head:])
    begin = _start_of_context(old, head)
    end = _end_of_context(old, len(old) - tail)
    first, second = old[begin:end], new[begin : end + len(new) - len(old)]
    return (first, second) if len(first) <= limit and len(second) <= limit else ("", "")


def _common_prefix(old: str, new: str) -> int:
    """Return the length of the common prefix. Comparing slices is faster than comparing characters one by one."""
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


def _common_suffix(old: str, new: str) -> int:
    return _common_prefix(old[::-1], new[::-1])


def _start_of_context(text: str, offset: int) -> int:
    for _ in range(CONTEXT + 1):
        offset = text.rfind("\n", 0, max(0, offset))
        if offset < 0:
            return 0
    return offset + 1


def _end_of_context(text: str, offset: int) -> int:
    for _ in range(CONTEXT + 1):
        offset = text.find("\n", offset) + 1
        if offset == 0:
            return len(text)
    return offset
