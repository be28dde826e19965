"""A pager for text, such as the output of a job."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Label, Static

from holdfast.tui.exact_text import shown_exactly
from holdfast.tui.hints import hints
from holdfast.tui.screens.dialog import Dialog

__all__ = ["ReadingScreen"]


class ReadingScreen(Dialog[None]):
    """Shows a text; a log is shown from its end."""

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
                yield Static(shown_exactly(self._text.expandtabs(4)))
            yield Label(hints(("↑↓", "scroll"), ("esc", "close")), classes="dialog-hint")

    def on_mount(self) -> None:
        """Focus the text; scroll a log to its end."""
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        if self._is_log:
            scroll.scroll_end(animate=False)

    def action_scroll(self, by: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
