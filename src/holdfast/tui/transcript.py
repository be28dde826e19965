"""The conversation: drawn line by line, and only where somebody looks."""

from collections.abc import Sequence
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
from holdfast.tui.paint import paint
from holdfast.tui.rows import Row, Rows

__all__ = ["Transcript"]

_MARKED = Style(bgcolor="#2a2f45")


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
    ]

    class Copied(TextualMessage):
        """Somebody wants the text of a block."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.look: Look = DARK
        self.directory = ""
        self._rows: Rows[Strip] = Rows()
        self._cursor: int | None = None
        self._follows = True

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
        self._rows.resize(self._rows.width)
        self._changed()

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
        strip = lines[inside].crop_extend(0, width, self.rich_style)
        if index == self._cursor and self.has_focus:
            strip = strip.apply_style(_MARKED)
        return strip

    def _changed(self) -> None:
        self._draw_visible()
        self.virtual_size = Size(self._rows.width, self._rows.height)
        if self._follows:
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)
            self._draw_visible()
        self.refresh()

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
        row.lines = [_strip(line) for line in console.render_lines(drawn, options, pad=False)]
        row.height = len(row.lines)

    # Moving.

    def on_resize(self, event: events.Resize) -> None:
        width = max(10, event.size.width)
        if width != self._rows.width:
            self._rows.resize(width)
        self._changed()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follows = new_value >= self.max_scroll_y
        if not self._follows:
            self._draw_visible()

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
        self._follows = False
        self.scroll_to(y=0, animate=False)

    def action_bottom(self) -> None:
        self._cursor = None
        self._follows = True
        self._changed()

    def action_fold(self) -> None:
        if self._cursor is not None:
            self._fold(self._cursor)

    def _fold(self, index: int) -> None:
        row = self._rows.rows[index]
        if isinstance(row.block, Card | Thought):
            row.is_unfolded = not row.is_unfolded
            row.lines = None
            self._follows = self._follows and index == len(self._rows.rows) - 1
            self._draw(index, index)
            self._changed()

    def action_copy(self) -> None:
        if self._cursor is not None:
            self.post_message(self.Copied(_text_of(self._rows.rows[self._cursor].block)))

    def on_click(self, event: events.Click) -> None:
        line = event.y + self.scroll_offset.y
        if self._rows.rows and line < self._rows.height:
            self._cursor = self._rows.at(line)
            self._fold(self._cursor)
            self.refresh()


def _strip(segments: list[Segment]) -> Strip:
    return Strip([segment for segment in segments if segment.text != "\n"])


def _text_of(block: Block) -> str:
    return getattr(block, "content", "") or getattr(block, "text", "")
