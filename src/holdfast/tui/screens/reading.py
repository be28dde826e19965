"""Text to be read: what a job has said so far."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label, Static

from holdfast.tui.screens.permission import shown_exactly

__all__ = ["ReadingScreen"]


class ReadingScreen(ModalScreen[None]):
    """Shows the end of the text first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("j,down", "scroll(1)", "Down"),
        ("k,up", "scroll(-1)", "Up"),
        ("pagedown,space", "scroll(15)", "Page down"),
        ("pageup,b", "scroll(-15)", "Page up"),
        ("escape,q,enter", "dismiss", "Close"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog whole"):
            yield Label(self._title, classes="dialog-title", markup=False)
            with VerticalScroll(id="difference"):
                yield Static(shown_exactly(self._text.expandtabs(4)))
            yield Label("↑↓ scroll · esc close", classes="dialog-hint")

    def on_mount(self) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        scroll.scroll_end(animate=False)

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
