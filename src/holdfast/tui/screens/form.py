"""A form for the arguments of a command."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Label

from holdfast.domain.commands import CommandNote
from holdfast.tui.hints import hints
from holdfast.tui.screens.dialog import Dialog

__all__ = ["Form"]


class Form(Dialog[dict[str, str] | None]):
    """Returns the value of each argument, or None. Enter moves to the next field, and submits in the last one."""

    GROWS = "#fields"
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Close")]

    def __init__(self, note: CommandNote) -> None:
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
                    needed = "" if argument.required else "  (may stay empty)"
                    yield Label(f"{argument.name}{needed}", classes="field-name", markup=False)
                    yield Input(placeholder=argument.description, compact=True)
            yield Label("", classes="dialog-note", id="lacking", markup=False)
            keys = hints(("enter", "next, then send"), ("tab", "move"), ("esc", "leave it"))
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
                self.query_one("#lacking", Label).update(f"{argument.name} is needed.")
                field.focus()
                return
        self.dismiss(values)

    def action_leave(self) -> None:
        """Close the form."""
        self.dismiss(None)
