"""Dialogs for one line of text, and for confirmations."""

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Label

from holdfast.tui.hints import hints
from holdfast.tui.screens.dialog import Dialog

__all__ = ["AutoApprove", "Confirm", "Entry"]


class Entry(Dialog[str | None]):
    """Returns the line, or None. A secret is not displayed."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Close")]

    def __init__(self, title: str, value: str = "", *, hint: str = "", is_secret: bool = False) -> None:
        super().__init__()
        self._title = title
        self._value = value
        self._hint = hint
        self._is_secret = is_secret

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
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
        """Close the dialog."""
        self.dismiss(None)


class Confirm(Dialog[bool]):
    """Returns True if the user pressed y."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "say(True)", "Yes"), ("n,escape,q", "say(False)", "No")]

    def __init__(self, title: str, text: str = "", yes: str = "yes") -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._yes = yes

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
        with Vertical(classes="dialog warning"):
            yield Label(self._title, classes="dialog-title", markup=False)
            if self._text:
                yield Label(self._text, classes="dialog-note", markup=False)
            yield Label(hints(("y", self._yes), ("n, esc", "no")), classes="dialog-hint")

    def action_say(self, answer: bool) -> None:
        """Close the dialog with this answer."""
        self.dismiss(answer)


class AutoApprove(Dialog[bool]):
    """Confirmation of auto-approval. No letter confirms it, because it may be opened by a typing error in the middle of
    a word: the selection starts at No, and requires an arrow and Enter.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,up", "choose(False)", "No"),
        ("right,down", "choose(True)", "Yes"),
        ("tab", "turn", "Other"),
        ("enter", "say", "Take it"),
        ("escape", "leave", "No"),
    ]

    _is_chosen = False

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
        with Vertical(classes="dialog warning"):
            yield Label("Let all tools act without asking?", classes="dialog-title")
            text = (
                "Commands run and files change unasked, in every session of this workspace, until it is switched off."
            )
            yield Label(text, classes="dialog-note")
            yield Label("", id="answers")
            yield Label(hints(("←→", "choose"), ("enter", "take it"), ("esc", "no")), classes="dialog-hint")

    def on_mount(self) -> None:
        """Draw the answers."""
        self._draw()

    def _draw(self) -> None:
        words = ("No, keep asking", "Yes, act without asking")
        pieces = [
            (f" {'▸' if at == self._is_chosen else ' '} {word} ", "reverse" if at == self._is_chosen else "")
            for at, word in enumerate(words)
        ]
        self.query_one("#answers", Label).update(Text.assemble(" ", *pieces))

    def action_choose(self, yes: bool) -> None:
        """Select an answer."""
        self._is_chosen = yes
        self._draw()

    def action_turn(self) -> None:
        """Select the other answer."""
        self.action_choose(not self._is_chosen)

    def action_say(self) -> None:
        """Close the dialog with the selected answer."""
        self.dismiss(self._is_chosen)

    def action_leave(self) -> None:
        """Close the dialog with No."""
        self.dismiss(False)
