"""Full-screen views of a diff and of a text, such as the output of a job."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Label, Static

from holdfast.domain.line_diff import DiffLine, count_changes
from holdfast.tui.diff_render import SPLIT_WIDTH, DiffView
from holdfast.tui.key_hints import key_hints
from holdfast.tui.screens.dialogs import Dialog
from holdfast.tui.terminal_text import escaped_text
from holdfast.tui.themes import Palette

__all__ = ["DiffScreen", "PagerScreen"]


class DiffScreen(Dialog[str | None]):
    """A diff on the whole screen, in one column or two. Returns `undo` if the user wants to revert it, else None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "switch_columns", "One column or two"),
        ("u", "undo", "Undo"),
        ("j,down", "scroll(1)", "Down"),
        ("k,up", "scroll(-1)", "Up"),
        ("d,pagedown,space", "scroll(15)", "Page down"),
        ("b,pageup", "scroll(-15)", "Page up"),
        ("escape,q,enter", "leave", "Close"),
    ]

    def __init__(self, title: str, lines: Sequence[DiffLine], palette: Palette, *, can_undo: bool = False) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._palette = palette
        self._can_undo = can_undo
        self._split: bool | None = None

    def compose(self) -> ComposeResult:
        """Compose the screen."""
        more, less = count_changes(self._lines)
        with Vertical(classes="dialog whole"):
            yield Label(f"{self._title}   +{more} -{less}", classes="dialog-title", markup=False)
            with VerticalScroll(id="difference"):
                yield Static(id="difference-text")
            undo = (("u", "undo the last change"),) if self._can_undo else ()
            keys = key_hints(("t", "one column or two"), ("↑↓", "scroll"), *undo, ("esc", "close"))
            yield Label(keys, classes="dialog-hint")

    def on_mount(self) -> None:
        """Draw the change."""
        self._draw()
        self.query_one(VerticalScroll).focus()

    def _draw(self) -> None:
        self.query_one("#difference-text", Static).update(
            DiffView(self._lines, self._palette, split=self._split, name=self._title, wraps=True)
        )

    def action_switch_columns(self) -> None:
        """Switch between one column and two."""
        is_split = self.query_one(VerticalScroll).size.width >= SPLIT_WIDTH if self._split is None else self._split
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


class PagerScreen(Dialog[None]):
    """A text on the whole screen; a log is shown from its end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("j,down", "scroll(1)", "Down"),
        ("k,up", "scroll(-1)", "Up"),
        ("pagedown,space", "scroll(15)", "Page down"),
        ("pageup,b", "scroll(-15)", "Page up"),
        ("escape,q,enter", "dismiss", "Close"),
    ]

    def __init__(self, title: str, text: str, *, is_log: bool = True) -> None:
        super().__init__()
        self._is_log = is_log
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Compose the screen."""
        with Vertical(classes="dialog whole"):
            yield Label(self._title, classes="dialog-title", markup=False)
            with VerticalScroll(id="difference"):
                yield Static(escaped_text(self._text.expandtabs(4)))
            yield Label(key_hints(("↑↓", "scroll"), ("esc", "close")), classes="dialog-hint")

    def on_mount(self) -> None:
        """Focus the text; scroll a log to its end."""
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        if self._is_log:
            scroll.scroll_end(animate=False)

    def action_scroll(self, by: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
