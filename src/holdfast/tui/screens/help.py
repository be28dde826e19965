"""The keys, on one page."""

from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label, Static

__all__ = ["KEYS", "HelpScreen"]

KEYS = (
    ("Writing", ""),
    ("enter", "send; while a run is going: steer it"),
    ("alt+enter, ctrl+q", "send as a turn of its own: it waits its turn"),
    ("ctrl+j, shift+enter", "a new line"),
    ("up, down", "what you sent before; ctrl+r finds it"),
    ("@", "name a file: it goes along"),
    ("/", "commands, at the beginning"),
    ("!", "run a shell command, at the beginning"),
    ("ctrl+o", "write in your own editor"),
    ("ctrl+v", "paste, also a picture; backspace takes it off again"),
    ("While it works", ""),
    ("esc esc", "cancel; what waited comes back into the editor"),
    ("ctrl+t", "to the prompts that wait: edit, move, remove, send now"),
    ("The conversation", ""),
    ("tab", "between the editor and the conversation"),
    ("j k, up down", "from block to block; J K from prompt to prompt"),
    ("space, click", "fold and unfold a tool or a thought; o all of them"),
    ("y, Y", "copy a block; only its code or command"),
    ("g G, d u", "beginning, end; half a page"),
    ("ctrl+f", "find; n N go on"),
    ("Everything else", ""),
    ("ctrl+p", "all commands"),
    ("ctrl+s, ctrl+n", "sessions; a new one"),
    ("ctrl+l", "models and keys"),
    ("f2", "how much the model thinks"),
    ("ctrl+y", "let tools act without asking, or not"),
    ("ctrl+g, f1", "this page"),
    ("ctrl+c", "leave; runs go on"),
)
"""Keys and what they do; without words it is a heading."""


class HelpScreen(ModalScreen[None]):
    """Any of the closing keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter,ctrl+g,f1", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        table = Table.grid(padding=(0, 3))
        for key, what in KEYS:
            table.add_row(f"[bold]{key}[/]" if what else f"[dim]{key}[/]", what)
        with Vertical(classes="dialog"):
            yield Label("Keys", classes="dialog-title")
            with VerticalScroll(id="keys"):
                yield Static(table)
            yield Label("esc close", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
