"""The search line for the conversation."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

__all__ = ["SearchBar"]


class SearchBar(Horizontal):
    """Sends the search words and the direction; shows the number of matches."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,shift+enter,ctrl+p", "go(-1)", "Previous", priority=True),
        Binding("down,ctrl+n,ctrl+f", "go(1)", "Next", priority=True),
        Binding("escape", "close", "Close", priority=True),
    ]

    class Changed(Message):
        """The search words have changed."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    class Moved(Message):
        """Move to the next match, or to the previous one."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Closed(Message):
        """The search was closed."""

    def compose(self) -> ComposeResult:
        """Compose the line."""
        yield Static("find", id="find-name")
        yield Input(placeholder="words in the conversation", compact=True)
        yield Static("", id="find-count")

    def open(self) -> None:
        """Open the line with the last words selected, so that typing replaces them."""
        self.display = True
        words = self.query_one(Input)
        words.focus()
        self.post_message(self.Changed(words.value))

    def show_position(self, place: int, count: int) -> None:
        """Show the position and the number of matches."""
        words = self.query_one(Input).value.strip()
        self.query_one("#find-count", Static).update(f"{place} of {count}" if count else "no matches" if words else "")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(event.value))

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Moved(-1))

    def action_go(self, by: int) -> None:
        """Move to another match."""
        self.post_message(self.Moved(by))

    def action_close(self) -> None:
        """Close the line."""
        self.display = False
        self.post_message(self.Closed())
