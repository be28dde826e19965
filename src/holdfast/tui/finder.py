"""The line in which one writes what to look for in the conversation."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

__all__ = ["Finder"]


class Finder(Horizontal):
    """Says what is looked for, and in which direction to go on; shows how many there are."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,shift+enter,ctrl+p", "go(-1)", "Previous", priority=True),
        Binding("down,ctrl+n,ctrl+f", "go(1)", "Next", priority=True),
        Binding("escape", "close", "Close", priority=True),
    ]

    class Sought(Message):
        """Other words."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Gone(Message):
        """To the next place, or the one before."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Closed(Message):
        """Enough."""

    def compose(self) -> ComposeResult:
        yield Static("find", id="find-name")
        yield Input(placeholder="words in the conversation", compact=True)
        yield Static("", id="find-count")

    def open(self) -> None:
        """With what was looked for last: marked, so that other words take its place."""
        self.display = True
        words = self.query_one(Input)
        words.focus()
        self.post_message(self.Sought(words.value))

    def tell(self, place: int, count: int) -> None:
        words = self.query_one(Input).value.strip()
        self.query_one("#find-count", Static).update(f"{place} of {count}" if count else "nothing" if words else "")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Sought(event.value))

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Gone(-1))

    def action_go(self, by: int) -> None:
        self.post_message(self.Gone(by))

    def action_close(self) -> None:
        self.display = False
        self.post_message(self.Closed())
