"""Layout of a long conversation, without rendering invisible blocks. Pure.

Heights of blocks that were never rendered are estimated, and corrected when one is rendered. Finding the block at a
line costs a bisection; appending costs only the end.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast.domain.ids import MessageId
from holdfast.tui.blocks import Block, Card, Closing, Note, Prose, Saying, Thought

__all__ = ["Row", "Rows", "guess_height"]

S = TypeVar("S")


class Row(Generic[S]):
    """A block with its lines, once it was rendered."""

    __slots__ = ("block", "gap", "height", "is_unfolded", "lines", "message")

    def __init__(self, message: MessageId, block: Block, width: int) -> None:
        self.message = message
        self.block = block
        self.is_unfolded = False
        self.gap = 1
        self.lines: Sequence[S] | None = None
        self.height = guess_height(block, width)

    def forget(self, width: int) -> None:
        """Discard the lines."""
        self.lines = None
        self.height = guess_height(self.block, width)


def guess_height(block: Block, width: int) -> int:
    """Estimate the height of a block."""
    wide = max(8, width - 4)
    match block:
        case Saying(text=text) | Prose(text=text):
            return sum(1 + len(line) // wide for line in text.split("\n")) or 1
        case Thought() | Closing():
            return 1
        case Card(content=content):
            return 1 + min(9, content.count("\n") + 1) if content else 1
        case Note(text=text):
            return 1 + bool(text)


class Rows(Generic[S]):
    """All rows of a conversation, by line."""

    def __init__(self) -> None:
        self.width = 80
        self.rows: list[Row[S]] = []
        self._first: dict[MessageId, int] = {}
        self._tops: list[int] = [0]
        self.changed_from: int | None = None
        """The first row that changed since the last drawing, which sets it to None."""

    @property
    def height(self) -> int:
        """Total number of lines."""
        return self._tops[-1]

    def clear(self) -> None:
        """Remove all rows."""
        self.rows.clear()
        self._first.clear()
        self._tops = [0]

    def top(self, index: int) -> int:
        """Return the line at which a row begins, including its gap."""
        return self._tops[index]

    def at(self, line: int) -> int:
        """Return the index of the row that a line belongs to."""
        return min(bisect_right(self._tops, line) - 1, len(self.rows) - 1)

    def put(self, message: MessageId, blocks: Sequence[Block]) -> None:
        """Set the blocks of a message. Unchanged blocks keep their lines."""
        start = self._first.get(message)
        if start is None or start > len(self.rows):
            start = self._first[message] = len(self.rows)
        end = start
        while end < len(self.rows) and self.rows[end].message == message:
            end += 1
        old = self.rows[start:end]
        new = [self._row(message, block, old[i] if i < len(old) else None) for i, block in enumerate(blocks)]
        same = 0
        while same < min(len(old), len(new)) and old[same] is new[same]:
            same += 1
        if same == len(old) == len(new):
            return
        self.rows[start:end] = new
        if len(new) != len(old) and end != len(self.rows) - len(new) + len(old):
            self._number()
        self.settle(start + same)

    def _row(self, message: MessageId, block: Block, old: Row[S] | None) -> Row[S]:
        if old is not None and old.block == block:
            return old
        row: Row[S] = Row(message, block, self.width)
        if old is not None and type(old.block) is type(block):
            row.is_unfolded = old.is_unfolded
            row.height = old.height
        return row

    def remove(self, message: MessageId) -> None:
        """Remove the rows of a message."""
        if self._first.pop(message, None) is not None:
            self.rows = [row for row in self.rows if row.message != message]
            self._number()
            self.settle(0)

    def resize(self, width: int) -> None:
        """Set the width and discard all lines."""
        self.width = width
        for row in self.rows:
            row.forget(width)
        self.settle(0)

    def settle(self, start: int = 0) -> None:
        """Recalculate the positions from a row on."""
        self.changed_from = start if self.changed_from is None else min(start, self.changed_from)
        del self._tops[start + 1 :]
        total = self._tops[-1]
        before = self.rows[start - 1] if start else None
        for row in self.rows[start:]:
            row.gap = 0 if before is None or _stick(before.block, row.block) else 1
            total += row.gap + row.height
            self._tops.append(total)
            before = row

    def _number(self) -> None:
        first: dict[MessageId, int] = {}
        for index, row in enumerate(self.rows):
            first.setdefault(row.message, index)
        for message in self._first:
            first.setdefault(message, len(self.rows))
        self._first = first


def _stick(upper: Block, lower: Block) -> bool:
    """Return True for two blocks without a gap: reasoning and tool calls."""
    return _is_work(upper) and _is_work(lower)


def _is_work(block: Block) -> bool:
    return isinstance(block, Thought) or (isinstance(block, Card) and not block.is_own)
