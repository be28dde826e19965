"""One line to be written, and a yes or no to be said."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Label

from holdfast.tui.hints import hints
from holdfast.tui.screens.dialog import Dialog

__all__ = ["Confirm", "Entry"]


class Entry(Dialog[str | None]):
    """Answers the line, or None. A secret one is not shown."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Close")]

    def __init__(self, title: str, value: str = "", *, hint: str = "", is_secret: bool = False) -> None:
        super().__init__()
        self._title = title
        self._value = value
        self._hint = hint
        self._is_secret = is_secret

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self._title, classes="dialog-title", markup=False)
            yield Input(self._value, password=self._is_secret, compact=True)
            if self._hint:
                yield Label(self._hint, classes="dialog-note", markup=False)
            yield Label(hints(("enter", "save"), ("esc", "leave it")), classes="dialog-hint")

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        self.dismiss(None)


class Confirm(Dialog[bool]):
    """Answers whether somebody pressed y."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "say(True)", "Yes"), ("n,escape,q", "say(False)", "No")]

    def __init__(self, title: str, text: str = "", yes: str = "yes") -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog warning"):
            yield Label(self._title, classes="dialog-title", markup=False)
            if self._text:
                yield Label(self._text, classes="dialog-note", markup=False)
            yield Label(hints(("y", self._yes), ("n, esc", "no")), classes="dialog-hint")

    def action_say(self, answer: bool) -> None:
        self.dismiss(answer)
