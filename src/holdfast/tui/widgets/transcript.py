"""The conversation view: rendered line by line, and only where visible.

A conversation may have tens of thousands of lines, and it changes many times per second while a model writes. Three
things keep the cost of a frame independent of its length:

* `TranscriptRows` (pure) knows the position of every block. The height of a block that was never rendered is estimated
  from its text, and corrected when the block is rendered. A change recalculates the positions after it only.
* `Transcript` renders the blocks of the visible page and of the pages around it. If the correction of an estimate above
  the visible text changes its position, the scroll offset is adjusted so that the text does not move.
* Blocks are values: one that equals its predecessor keeps its rendered lines. While an answer is streamed, only its
  last piece is rendered again (see `split_markdown` in `blocks.py`).

The view follows its end until the user scrolls up, and again when the end is visible.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message as TextualMessage
from textual.scroll_view import ScrollView
from textual.strip import Strip

from holdfast.domain.ids import MessageId
from holdfast.tui.block_render import (
    block_code,
    block_text,
    highlight_matches,
    markdown_theme,
    matching_lines,
    render_block,
)
from holdfast.tui.blocks import AnswerBlock, Block, NoticeBlock, PromptBlock, ReasoningBlock, ToolBlock, TurnEndBlock
from holdfast.tui.themes import DARK, Palette

__all__ = ["Transcript", "TranscriptRow", "TranscriptRows", "estimate_height"]


S = TypeVar("S")


class TranscriptRow(Generic[S]):
    """One block of the conversation, with its lines once it was rendered."""

    __slots__ = ("block", "gap", "height", "is_unfolded", "lines", "message")

    def __init__(self, message: MessageId, block: Block, width: int) -> None:
        self.message = message
        self.block = block
        self.is_unfolded = False
        self.gap = 1
        self.lines: Sequence[S] | None = None
        self.height = estimate_height(block, width)

    def forget(self, width: int) -> None:
        """Discard the lines."""
        self.lines = None
        self.height = estimate_height(self.block, width)


def estimate_height(block: Block, width: int) -> int:
    """Estimate the height of a block."""
    wide = max(8, width - 4)
    match block:
        case PromptBlock(text=text) | AnswerBlock(text=text):
            return sum(1 + len(line) // wide for line in text.split("\n")) or 1
        case ReasoningBlock() | TurnEndBlock():
            return 1
        case ToolBlock(content=content):
            return 1 + min(9, content.count("\n") + 1) if content else 1
        case NoticeBlock(text=text):
            return 1 + bool(text)


class TranscriptRows(Generic[S]):
    """The layout of a conversation: its rows, and the line at which each begins. Pure."""

    def __init__(self) -> None:
        self.width = 80
        self.rows: list[TranscriptRow[S]] = []
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

    def set_blocks(self, message: MessageId, blocks: Sequence[Block]) -> None:
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

    def _row(self, message: MessageId, block: Block, old: TranscriptRow[S] | None) -> TranscriptRow[S]:
        if old is not None and old.block == block:
            return old
        row: TranscriptRow[S] = TranscriptRow(message, block, self.width)
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
            row.gap = 0 if before is None or _are_adjacent(before.block, row.block) else 1
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


def _are_adjacent(upper: Block, lower: Block) -> bool:
    """Return True for two blocks without a gap: reasoning and tool calls."""
    return _is_work(upper) and _is_work(lower)


def _is_work(block: Block) -> bool:
    return isinstance(block, ReasoningBlock) or (isinstance(block, ToolBlock) and not block.is_own)


class Transcript(ScrollView, can_focus=True):
    """Blocks of messages below each other. It follows its end, unless the user scrolled up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("j,down", "move(1)", "Down"),
        ("k,up", "move(-1)", "Up"),
        ("space,enter", "fold", "Fold"),
        ("J,shift+down", "prompt(1)", "Next prompt"),
        ("K,shift+up", "prompt(-1)", "Previous prompt"),
        ("G,end", "bottom", "End"),
        ("g,home", "top", "Beginning"),
        ("y,c", "copy", "Copy"),
        ("Y,C", "copy_code", "Copy code"),
        ("o", "fold_all", "Fold or unfold all"),
        ("d,ctrl+d", "half(1)", "Half a page down"),
        ("u,ctrl+u", "half(-1)", "Half a page up"),
        ("n", "next(1)", "Next found"),
        ("N", "next(-1)", "Previous found"),
    ]

    FOCUS_ON_CLICK = False
    """After a click the editor keeps the focus, so that the user can continue to type."""

    class Moved(TextualMessage):
        """The view has left its end, or returned to it."""

    class Copied(TextualMessage):
        """The text of a block is to be copied."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.palette: Palette = DARK
        self._markdown = markdown_theme(DARK)
        self.directory = ""
        self._rows: TranscriptRows[Strip] = TranscriptRows()
        self._cursor: int | None = None
        self._follows = True
        self._words = ""
        self._found_line = 0
        self._unfolds = False

    # Content.

    def clear(self) -> None:
        """Remove everything."""
        self._rows.clear()
        self._cursor = None
        self._follows = True
        self.draw_changes()

    def set_blocks(self, message: MessageId, blocks: Sequence[Block]) -> None:
        """Set the blocks of a message; drawn with the next `draw_changes`."""
        self._rows.set_blocks(message, blocks)

    def remove_message(self, message: MessageId) -> None:
        """Remove a message."""
        self._rows.remove(message)

    def set_palette(self, palette: Palette) -> None:
        """Set the styles and render everything again."""
        self.palette = palette
        self._markdown = markdown_theme(palette)
        self._rows.resize(self._rows.width)
        self.draw_changes()

    @property
    def follows(self) -> bool:
        """True if the view follows its end."""
        return self._follows

    @property
    def rows(self) -> TranscriptRows[Strip]:
        """The layout of the conversation."""
        return self._rows

    # Drawing.

    def render_line(self, y: int) -> Strip:
        """Return a visible line."""
        line = y + self.scroll_offset.y
        width = self.size.width
        if not self._rows.rows or line >= self._rows.height:
            return Strip.blank(width, self.rich_style)
        index = self._rows.at(line)
        row = self._rows.rows[index]
        inside = line - self._rows.top(index) - row.gap
        lines = row.lines or ()
        if not 0 <= inside < len(lines):
            return Strip.blank(width, self.rich_style)
        strip = lines[inside].crop_extend(0, width, self.rich_style).apply_style(self.rich_style)
        if index == self._cursor and (self.has_focus or self._words):
            strip = Strip(Segment.apply_style(strip, post_style=Style.parse(self.palette.marked)), strip.cell_length)
        return highlight_matches(strip, self._words, Style.parse(self.palette.found)) if self._words else strip

    def draw_changes(self) -> None:
        """Draw the changes since the last call: the whole view if something moved, else from the first changed line."""
        before = (self.virtual_size, self.scroll_offset)
        self._draw_visible()
        self.virtual_size = Size(self._rows.width, self._rows.height)
        if self._follows:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)
            self._draw_visible()
        first, self._rows.changed_from = self._rows.changed_from, None
        if (self.virtual_size, self.scroll_offset) != before or first is None or first >= len(self._rows.rows):
            self.refresh()
            return
        top = max(0, self._rows.top(first) - self.scroll_offset.y)
        if top < self.size.height:
            self.refresh(Region(0, top, self.size.width, self.size.height - top))

    def _draw_visible(self) -> None:
        """Render the visible part and a page around it. Corrected estimates above do not move the visible text."""
        page = max(1, self.size.height)
        top = max(0, self._rows.height - page) if self._follows else self.scroll_offset.y
        for _ in range(3):
            if not self._rows.rows:
                return
            first, last = self._rows.at(max(0, top - page)), self._rows.at(top + 2 * page)
            anchor = self._rows.at(top)
            before = self._rows.top(anchor)
            if not self._draw(first, last):
                return
            shift = self._rows.top(anchor) - before
            if self._follows:
                top = max(0, self._rows.height - page)
            elif shift:
                top += shift
                self.virtual_size = Size(self._rows.width, self._rows.height)
                self.scroll_to(y=top, animate=False, immediate=True)

    def _draw(self, first: int, last: int) -> bool:
        """Render these rows where needed. Returns True if any was rendered."""
        wrong = [index for index in range(first, last + 1) if self._rows.rows[index].lines is None]
        for index in wrong:
            self._draw_row(self._rows.rows[index])
        if wrong:
            self._rows.settle(wrong[0])
        return bool(wrong)

    def _draw_row(self, row: TranscriptRow[Strip]) -> None:
        console = self.app.console
        options = console.options.update(width=max(10, self._rows.width), height=None)
        drawn = render_block(row.block, self.palette, is_unfolded=row.is_unfolded, directory=self.directory)
        with console.use_theme(self._markdown):
            lines = [_to_strip(line) for line in console.render_lines(drawn, options, pad=False)]
        row.lines = _trim_empty_lines(lines)
        row.height = len(row.lines)

    # Navigation.

    def on_resize(self) -> None:
        """Adapt to a new width."""
        width = max(10, self.scrollable_content_region.width)
        if width != self._rows.width:
            self._rows.resize(width)
        self.draw_changes()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end if it is visible; otherwise render the visible part."""
        super().watch_scroll_y(old_value, new_value)
        self._follow(new_value >= self.max_scroll_y)
        if not self._follows:
            self._draw_visible()

    def _follow(self, follows: bool) -> None:
        if follows is not self._follows:
            self._follows = follows
            self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        """Move the cursor by blocks."""
        if not self._rows.rows:
            return
        start = len(self._rows.rows) if self._cursor is None else self._cursor
        self._move_cursor(min(max(0, start + by), len(self._rows.rows) - 1))

    def action_prompt(self, by: int) -> None:
        """Move the cursor to the next or previous prompt."""
        index = len(self._rows.rows) if self._cursor is None else self._cursor
        index += by
        while 0 <= index < len(self._rows.rows):
            if isinstance(self._rows.rows[index].block, PromptBlock):
                self._move_cursor(index)
                return
            index += by

    def _move_cursor(self, index: int) -> None:
        self._cursor = index
        row = self._rows.rows[index]
        self._draw(index, index)
        top = self._rows.top(index)
        self.virtual_size = Size(self._rows.width, self._rows.height)
        self.scroll_to_region(Region(0, top, 1, min(row.gap + row.height, self.size.height)), animate=False)
        self.refresh()

    def action_top(self) -> None:
        """Go to the beginning."""
        self._cursor = 0 if self._rows.rows else None
        self._follow(False)
        self.scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        """Go to the end and follow it."""
        self._cursor = None
        self._follow(True)
        self.draw_changes()

    def action_fold(self) -> None:
        """Fold or unfold the block at the cursor."""
        if self._cursor is not None:
            self._fold(self._cursor)

    def _fold(self, index: int) -> None:
        row = self._rows.rows[index]
        if isinstance(row.block, ToolBlock | ReasoningBlock):
            row.is_unfolded = not row.is_unfolded
            row.lines = None
            # An unfolded block stays where it is, and grows downwards.
            self._follows = False
            self._draw(index, index)
            self.draw_changes()
            self._follow(self.scroll_offset.y >= self.max_scroll_y)
            self.post_message(self.Moved())

    def action_fold_all(self) -> None:
        """Unfold everything, or fold it again."""
        self._unfolds = not self._unfolds
        for row in self._rows.rows:
            if isinstance(row.block, ToolBlock | ReasoningBlock) and row.is_unfolded is not self._unfolds:
                row.is_unfolded = self._unfolds
                row.lines = None
        self.draw_changes()

    def action_half(self, by: int) -> None:
        """Scroll by half a page."""
        self.scroll_relative(y=by * max(1, self.size.height // 2), animate=False)

    def action_copy(self) -> None:
        """Copy the text of a block."""
        self._copy(block_text)

    def action_copy_code(self) -> None:
        """Copy the code of a block."""
        self._copy(block_code)

    def _copy(self, taken: Callable[[Block], str]) -> None:
        rows = self._rows.rows
        index = self._cursor
        if index is None:
            # Without a cursor use the newest block that has such text.
            index = next((at for at in reversed(range(len(rows))) if taken(rows[at].block)), None)
        if index is not None and (text := taken(rows[index].block)):
            self.post_message(self.Copied(text))

    # Search.

    def find(self, words: str) -> tuple[int, int]:
        """Highlight the words and go to the newest match. Returns its position and the number of matches."""
        self._words = words.strip().casefold()
        found = self._matching_blocks()
        if found:
            before = [index for index in found if self._cursor is None or index <= self._cursor]
            self._reveal((before or found)[-1], -1)
        self.refresh()
        return self._match_number(found), len(found)

    def find_next(self, by: int) -> tuple[int, int]:
        """Go to the next matching line of the row, or to the next matching row, wrapping around."""
        found = self._matching_blocks()
        if found and not self._step(by):
            cursor = self._cursor if self._cursor is not None else len(self._rows.rows)
            later = [index for index in found if index > cursor]
            earlier = [index for index in found if index < cursor]
            self._reveal((later or found)[0] if by > 0 else (earlier or found)[-1], by)
        return self._match_number(found), len(found)

    def action_next(self, by: int) -> None:
        """Go to the next match."""
        self.find_next(by)

    def _matching_blocks(self) -> list[int]:
        if not self._words:
            return []
        return [at for at, row in enumerate(self._rows.rows) if self._words in block_text(row.block).casefold()]

    def _match_number(self, found: list[int]) -> int:
        return found.index(self._cursor) + 1 if self._cursor in found else 0

    def _lines(self, index: int) -> list[int]:
        """Return the lines of a row that contain the words."""
        self._draw(index, index)
        return matching_lines(self._rows.rows[index].lines or (), self._words)

    def _step(self, by: int) -> bool:
        """Go to another match in the current row. Returns False if there is none."""
        if self._cursor is None or self._cursor >= len(self._rows.rows):
            return False
        lines = [line for line in self._lines(self._cursor) if (line - self._found_line) * by > 0]
        if lines:
            self._scroll_to_line(self._cursor, lines[0] if by > 0 else lines[-1])
        return bool(lines)

    def _reveal(self, index: int, by: int) -> None:
        """Go to the matching line of a row; a folded row is unfolded if the match is hidden."""
        row = self._rows.rows[index]
        lines = self._lines(index)
        if not lines and isinstance(row.block, ToolBlock | ReasoningBlock) and not row.is_unfolded:
            row.is_unfolded = True
            row.lines = None
            lines = self._lines(index)
        self._scroll_to_line(index, (lines or [0])[0 if by > 0 else -1])

    def _scroll_to_line(self, index: int, line: int) -> None:
        self._follow(False)
        self._cursor, self._found_line = index, line
        self.virtual_size = Size(self._rows.width, self._rows.height)
        top = self._rows.top(index) + self._rows.rows[index].gap + line
        self.scroll_to(y=max(0, top - self.size.height // 3), animate=False, immediate=True)
        self._draw_visible()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Fold or unfold the block that was clicked."""
        line = event.y + self.scroll_offset.y
        if self._rows.rows and line < self._rows.height:
            self._cursor = self._rows.at(line)
            self._fold(self._cursor)
            self.refresh()


def _trim_empty_lines(lines: list[Strip]) -> list[Strip]:
    """Remove the empty lines around a block: the gaps between blocks are sufficient."""
    first, last = 0, len(lines)
    while first < last - 1 and _is_empty(lines[first]):
        first += 1
    while last - 1 > first and _is_empty(lines[last - 1]):
        last -= 1
    return lines[first:last]


def _is_empty(strip: Strip) -> bool:
    return not strip.text.strip() and not any(segment.style and segment.style.bgcolor for segment in strip)


def _to_strip(segments: list[Segment]) -> Strip:
    return Strip([segment for segment in segments if segment.text != "\n"])
