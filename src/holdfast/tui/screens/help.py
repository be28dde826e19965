"""The keys, on one page."""

from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, Static

__all__ = ["HelpScreen"]

_KEYS = (
    ("enter", "send; while a run is going: steer it"),
    ("ctrl+j, shift+enter", "a new line"),
    ("up, down", "what you sent before"),
    ("esc esc", "cancel what runs; what waited comes back into the editor"),
    ("tab", "between the editor and the conversation"),
    ("j k, up down", "block by block in the conversation"),
    ("J K", "from prompt to prompt"),
    ("space", "fold and unfold a tool or a thought (or click it)"),
    ("y", "copy a block"),
    ("g G", "beginning, end"),
    ("ctrl+p", "all commands"),
    ("ctrl+s", "sessions"),
    ("ctrl+n", "a new session"),
    ("ctrl+l", "models"),
    ("ctrl+y", "let tools act without asking, or not"),
    ("ctrl+c", "leave; runs go on"),
)


class HelpScreen(ModalScreen[None]):
    """Any of the closing keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter,ctrl+g", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        table = Table.grid(padding=(0, 3))
        for key, what in _KEYS:
            table.add_row(f"[bold]{key}[/]", what)
        with Vertical(classes="dialog"):
            yield Label("Keys", classes="dialog-title")
            yield Static(table, id="keys")
            yield Label("esc close", classes="dialog-hint")
