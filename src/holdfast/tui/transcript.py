"""The conversation: drawn line by line, and only where somebody looks."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message as TextualMessage
from textual.scroll_view import ScrollView
from textual.strip import Strip

from holdfast.domain.ids import MessageId
from holdfast.tui.blocks import Block, Card, Saying, Thought
from holdfast.tui.look import DARK, Look
from holdfast.tui.paint import markdown_theme, paint
from holdfast.tui.rows import Row, Rows
from holdfast.tui.texts import code_of_block, lines_with, marked, text_of_block

__all__ = ["Transcript"]


class Transcript(ScrollView, can_focus=True):
    """Blocks of messages below each other. It follows its end, unless somebody scrolled up."""

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
    """Who unfolds something with the mouse goes on writing: the letters are meant for the editor."""

    class Moved(TextualMessage):
        """Somebody left the end, or came back to it."""

    class Copied(TextualMessage):
        """Somebody wants the text of a block."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.look: Look = DARK
        self._markdown = markdown_theme(DARK)
        self.directory = ""
        self._rows: Rows[Strip] = Rows()
        self._cursor: int | None = None
        self._follows = True
        self._words = ""
        self._found_line = 0
        self._unfolds = False

    # What is shown.

    def clear(self) -> None:
        self._rows.clear()
        self._cursor = None
        self._follows = True
        self._changed()

    def put(self, message: MessageId, blocks: Sequence[Block]) -> None:
        self._rows.put(message, blocks)

    def drop(self, message: MessageId) -> None:
        self._rows.remove(message)

    def show(self) -> None:
        """Draw what was put since the last time."""
        self._changed()

    def set_look(self, look: Look) -> None:
        self.look = look
        self._markdown = markdown_theme(look)
        self._rows.resize(self._rows.width)
        self._changed()

    @property
    def follows(self) -> bool:
        """Whether what comes next will be seen."""
        return self._follows

    @property
    def rows(self) -> Rows[Strip]:
        return self._rows

    # Drawing.

    def render_line(self, y: int) -> Strip:
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
            strip = Strip(Segment.apply_style(strip, post_style=Style.parse(self.look.marked)), strip.cell_length)
        return marked(strip, self._words, Style.parse(self.look.found)) if self._words else strip

    def _changed(self) -> None:
        """Bring the screen up to date: all of it if something moved, else from the first line that changed."""
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
        """Draw what is in sight and a page around it. Guesses that were wrong above do not move what one reads."""
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
        """Whether anything was drawn."""
        wrong = [index for index in range(first, last + 1) if self._rows.rows[index].lines is None]
        for index in wrong:
            self._draw_row(self._rows.rows[index])
        if wrong:
            self._rows.settle(wrong[0])
        return bool(wrong)

    def _draw_row(self, row: Row[Strip]) -> None:
        console = self.app.console
        options = console.options.update(width=max(10, self._rows.width), height=None)
        drawn = paint(row.block, self.look, is_unfolded=row.is_unfolded, directory=self.directory)
        with console.use_theme(self._markdown):
            lines = [_strip(line) for line in console.render_lines(drawn, options, pad=False)]
        row.lines = _trimmed(lines)
        row.height = len(row.lines)

    # Moving.

    def on_resize(self) -> None:
        width = max(10, self.scrollable_content_region.width)
        if width != self._rows.width:
            self._rows.resize(width)
        self._changed()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follow(new_value >= self.max_scroll_y)
        if not self._follows:
            self._draw_visible()

    def _follow(self, follows: bool) -> None:
        if follows is not self._follows:
            self._follows = follows
            self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        if not self._rows.rows:
            return
        start = len(self._rows.rows) if self._cursor is None else self._cursor
        self._go(min(max(0, start + by), len(self._rows.rows) - 1))

    def action_prompt(self, by: int) -> None:
        """To the next thing somebody asked."""
        index = len(self._rows.rows) if self._cursor is None else self._cursor
        index += by
        while 0 <= index < len(self._rows.rows):
            if isinstance(self._rows.rows[index].block, Saying):
                self._go(index)
                return
            index += by

    def _go(self, index: int) -> None:
        self._cursor = index
        row = self._rows.rows[index]
        self._draw(index, index)
        top = self._rows.top(index)
        self.virtual_size = Size(self._rows.width, self._rows.height)
        self.scroll_to_region(Region(0, top, 1, min(row.gap + row.height, self.size.height)), animate=False)
        self.refresh()

    def action_top(self) -> None:
        self._cursor = 0 if self._rows.rows else None
        self._follow(False)
        self.scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        self._cursor = None
        self._follow(True)
        self._changed()

    def action_fold(self) -> None:
        if self._cursor is not None:
            self._fold(self._cursor)

    def _fold(self, index: int) -> None:
        row = self._rows.rows[index]
        if isinstance(row.block, Card | Thought):
            row.is_unfolded = not row.is_unfolded
            row.lines = None
            # What one opens stays where it is, and grows downwards.
            self._follows = False
            self._draw(index, index)
            self._changed()
            self._follow(self.scroll_offset.y >= self.max_scroll_y)
            self.post_message(self.Moved())

    def action_fold_all(self) -> None:
        """Everything that is folded, or nothing of it."""
        self._unfolds = not self._unfolds
        for row in self._rows.rows:
            if isinstance(row.block, Card | Thought) and row.is_unfolded is not self._unfolds:
                row.is_unfolded = self._unfolds
                row.lines = None
        self._changed()

    def action_half(self, by: int) -> None:
        self.scroll_relative(y=by * max(1, self.size.height // 2), animate=False)

    def action_copy(self) -> None:
        self._copy(text_of_block)

    def action_copy_code(self) -> None:
        self._copy(code_of_block)

    def _copy(self, taken: Callable[[Block], str]) -> None:
        rows = self._rows.rows
        index = self._cursor
        if index is None:
            # Nothing is marked: the newest that has something to give.
            index = next((at for at in reversed(range(len(rows))) if taken(rows[at].block)), None)
        if index is not None and (text := taken(rows[index].block)):
            self.post_message(self.Copied(text))

    # Finding.

    def find(self, words: str) -> tuple[int, int]:
        """Mark what contains the words and go to the newest of it: its place, and how many there are."""
        self._words = words.strip().casefold()
        found = self._found()
        if found:
            before = [index for index in found if self._cursor is None or index <= self._cursor]
            self._reveal((before or found)[-1], -1)
        self.refresh()
        return self._place(found), len(found)

    def find_next(self, by: int) -> tuple[int, int]:
        """To the next line of the row with the words, or to the next row that has them, around the ends."""
        found = self._found()
        if found and not self._step(by):
            cursor = self._cursor if self._cursor is not None else len(self._rows.rows)
            later = [index for index in found if index > cursor]
            earlier = [index for index in found if index < cursor]
            self._reveal((later or found)[0] if by > 0 else (earlier or found)[-1], by)
        return self._place(found), len(found)

    def action_next(self, by: int) -> None:
        self.find_next(by)

    def _found(self) -> list[int]:
        if not self._words:
            return []
        return [at for at, row in enumerate(self._rows.rows) if self._words in text_of_block(row.block).casefold()]

    def _place(self, found: list[int]) -> int:
        return found.index(self._cursor) + 1 if self._cursor in found else 0

    def _lines(self, index: int) -> list[int]:
        """Which lines of a row show the words."""
        self._draw(index, index)
        return lines_with(self._rows.rows[index].lines or (), self._words)

    def _step(self, by: int) -> bool:
        """Whether the row at hand shows the words once more, further on."""
        if self._cursor is None or self._cursor >= len(self._rows.rows):
            return False
        lines = [line for line in self._lines(self._cursor) if (line - self._found_line) * by > 0]
        if lines:
            self._look_at(self._cursor, lines[0] if by > 0 else lines[-1])
        return bool(lines)

    def _reveal(self, index: int, by: int) -> None:
        """To the line of a row that has the words; a folded row is opened if they are hidden in it."""
        row = self._rows.rows[index]
        lines = self._lines(index)
        if not lines and isinstance(row.block, Card | Thought) and not row.is_unfolded:
            row.is_unfolded = True
            row.lines = None
            lines = self._lines(index)
        self._look_at(index, (lines or [0])[0 if by > 0 else -1])

    def _look_at(self, index: int, line: int) -> None:
        self._follow(False)
        self._cursor, self._found_line = index, line
        self.virtual_size = Size(self._rows.width, self._rows.height)
        top = self._rows.top(index) + self._rows.rows[index].gap + line
        self.scroll_to(y=max(0, top - self.size.height // 3), animate=False, immediate=True)
        self._draw_visible()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        line = event.y + self.scroll_offset.y
        if self._rows.rows and line < self._rows.height:
            self._cursor = self._rows.at(line)
            self._fold(self._cursor)
            self.refresh()


def _trimmed(lines: list[Strip]) -> list[Strip]:
    """Without the empty lines around a piece: the gaps between blocks are enough."""
    first, last = 0, len(lines)
    while first < last - 1 and _is_empty(lines[first]):
        first += 1
    while last - 1 > first and _is_empty(lines[last - 1]):
        last -= 1
    return lines[first:last]


def _is_empty(strip: Strip) -> bool:
    return not strip.text.strip() and not any(segment.style and segment.style.bgcolor for segment in strip)


def _strip(segments: list[Segment]) -> Strip:
    return Strip([segment for segment in segments if segment.text != "\n"])
