"""A change on the whole screen, in one column or two."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Label, Static

from holdfast.tui.differences import SPLIT_FROM, Differences
from holdfast.tui.diffs import DiffLine, counted
from holdfast.tui.hints import hints
from holdfast.tui.look import Look
from holdfast.tui.screens.dialog import Dialog

__all__ = ["DifferenceScreen"]


class DifferenceScreen(Dialog[str | None]):
    """Returns `undo` if the user wants to revert the change, else None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "turn", "One column or two"),
        ("u", "undo", "Undo"),
        ("j,down", "scroll(1)", "Down"),
        ("k,up", "scroll(-1)", "Up"),
        ("d,pagedown,space", "scroll(15)", "Page down"),
        ("b,pageup", "scroll(-15)", "Page up"),
        ("escape,q,enter", "leave", "Close"),
    ]

    def __init__(self, title: str, lines: Sequence[DiffLine], look: Look, *, can_undo: bool = False) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._look = look
        self._can_undo = can_undo
        self._split: bool | None = None

    def compose(self) -> ComposeResult:
        """Compose the screen."""
        more, less = counted(self._lines)
        with Vertical(classes="dialog whole"):
            yield Label(f"{self._title}   +{more} -{less}", classes="dialog-title", markup=False)
            with VerticalScroll(id="difference"):
                yield Static(id="difference-text")
            undo = (("u", "undo the last change"),) if self._can_undo else ()
            keys = hints(("t", "one column or two"), ("↑↓", "scroll"), *undo, ("esc", "close"))
            yield Label(keys, classes="dialog-hint")

    def on_mount(self) -> None:
        """Draw the change."""
        self._draw()
        self.query_one(VerticalScroll).focus()

    def _draw(self) -> None:
        self.query_one("#difference-text", Static).update(
            Differences(self._lines, self._look, split=self._split, name=self._title, wraps=True)
        )

    def action_turn(self) -> None:
        """Switch between one column and two."""
        is_split = self.query_one(VerticalScroll).size.width >= SPLIT_FROM if self._split is None else self._split
        self._split = not is_split
        self._draw()

    def action_scroll(self, by: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_undo(self) -> None:
        """Revert the change."""
        if self._can_undo:
            self.dismiss("undo")

    def action_leave(self) -> None:
        """Close the screen."""
        self.dismiss(None)
