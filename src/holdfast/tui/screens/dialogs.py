"""Dialogs: one line of text, confirmations, and a form for the arguments of a command."""

from typing import ClassVar, TypeVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from holdfast.domain.extensions import CommandInfo
from holdfast.tui.key_hints import key_hints

__all__ = ["AutoApprove", "Confirm", "Dialog", "Form", "TextInput"]


T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """Base class of dialogs, which limits their height. `GROWS` selects the part that scrolls, and `REST` is the number
    of lines that the other parts need.

    The limit is a number of lines instead of a share of the screen, because a box with automatic height ignores shares.
    """

    GROWS: ClassVar[str] = ""
    REST: ClassVar[int] = 8

    def on_mount(self) -> None:
        """Fit the dialog to the screen."""
        self._fit()

    def on_resize(self) -> None:
        """Fit the dialog to the new size."""
        self._fit()

    def _fit(self) -> None:
        room = max(3, self.app.size.height * 9 // 10 - self.REST)
        for part in self.query(self.GROWS) if self.GROWS else ():
            part.styles.max_height = room


class TextInput(Dialog[str | None]):
    """A dialog for one line of text. Returns the line, or None. A secret is not displayed."""

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
            yield Label(key_hints(("enter", "save"), ("esc", "cancel")), classes="dialog-hint")

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)

    def action_leave(self) -> None:
        """Close the dialog."""
        self.dismiss(None)


class Confirm(Dialog[bool]):
    """A question with the answers yes and no. Returns True if the user pressed y."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "answer(True)", "Yes"), ("n,escape,q", "answer(False)", "No")]

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
            yield Label(key_hints(("y", self._yes), ("n, esc", "no")), classes="dialog-hint")

    def action_answer(self, answer: bool) -> None:
        """Close the dialog with this answer."""
        self.dismiss(answer)


class AutoApprove(Dialog[bool]):
    """Confirmation of auto-approval. No letter confirms it, because it may be opened by a typing error in the middle of
    a word: the selection starts at No, and requires an arrow and Enter.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,up", "choose(False)", "No"),
        ("right,down", "choose(True)", "Yes"),
        ("tab", "select_other", "Other"),
        ("enter", "answer", "Confirm"),
        ("escape", "leave", "No"),
    ]

    _is_chosen = False

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
        with Vertical(classes="dialog warning"):
            yield Label("Let all tools act without asking?", classes="dialog-title")
            text = "Commands run and files change without approval in every session of this workspace until you end it."
            yield Label(text, classes="dialog-note")
            yield Label("", id="answers")
            yield Label(key_hints(("←→", "choose"), ("enter", "confirm"), ("esc", "no")), classes="dialog-hint")

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

    def action_select_other(self) -> None:
        """Select the other answer."""
        self.action_choose(not self._is_chosen)

    def action_answer(self) -> None:
        """Close the dialog with the selected answer."""
        self.dismiss(self._is_chosen)

    def action_leave(self) -> None:
        """Close the dialog with No."""
        self.dismiss(False)


class Form(Dialog[dict[str, str] | None]):
    """A form for the arguments of a command. Returns the value of each argument, or None.

    Enter moves to the next field, and submits in the last one.
    """

    GROWS = "#fields"
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Close")]

    def __init__(self, note: CommandInfo) -> None:
        super().__init__()
        self._note = note

    def compose(self) -> ComposeResult:
        """Compose the form."""
        with Vertical(classes="dialog"):
            yield Label(f"/{self._note.name}", classes="dialog-title", markup=False)
            if self._note.description:
                yield Label(self._note.description, classes="dialog-note", markup=False)
            with VerticalScroll(id="fields"):
                for argument in self._note.arguments:
                    needed = "" if argument.required else "  (optional)"
                    yield Label(f"{argument.name}{needed}", classes="field-name", markup=False)
                    yield Input(placeholder=argument.description, compact=True)
            yield Label("", classes="dialog-note", id="missing", markup=False)
            keys = key_hints(("enter", "next, then send"), ("tab", "move"), ("esc", "cancel"))
            yield Label(keys, classes="dialog-hint")

    def on_mount(self) -> None:
        """Focus the first field."""
        self.query(Input).first().focus()

    @on(Input.Submitted)
    def _next(self, event: Input.Submitted) -> None:
        fields = list(self.query(Input))
        place = fields.index(event.input)
        if place + 1 < len(fields):
            fields[place + 1].focus()
            return
        values = {argument.name: field.value for argument, field in zip(self._note.arguments, fields, strict=True)}
        for argument, field in zip(self._note.arguments, fields, strict=True):
            if argument.required and not field.value.strip():
                self.query_one("#missing", Label).update(f"{argument.name} is required.")
                field.focus()
                return
        self.dismiss(values)

    def action_leave(self) -> None:
        """Close the form."""
        self.dismiss(None)
