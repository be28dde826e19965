"""The keys, on one page."""

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Label, Static

from holdfast.tui.hints import hints
from holdfast.tui.screens.dialog import Dialog

_WIDE = 118
"""From so many columns on the page has two."""

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


class HelpScreen(Dialog[None]):
    """Any of the closing keys closes it."""

    GROWS = "#keys"
    REST = 6
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,enter,ctrl+g,f1", "dismiss", "Close"),
        ("j", "scroll(1)", "Down"),
        ("k", "scroll(-1)", "Up"),
        ("space", "scroll(12)", "Page down"),
    ]

    def compose(self) -> ComposeResult:
        is_wide = self.app.size.width >= _WIDE
        with Vertical(classes="dialog wide" if is_wide else "dialog"):
            yield Label("Keys", classes="dialog-title")
            with VerticalScroll(id="keys"):
                yield Static(_beside(KEYS) if is_wide else _below(KEYS))
            yield Label(hints(("↑↓", "scroll"), ("esc", "close")), classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


def _below(keys: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3))
    for key, what in keys:
        table.add_row(f"[bold]{key}[/]" if what else f"[dim]{key}[/]", what)
    return table


def _beside(keys: Sequence[tuple[str, str]]) -> Table:
    """In two columns, cut at a heading near the middle."""
    headings = [place for place, (_, what) in enumerate(keys) if not what]
    cut = min(headings, key=lambda place: abs(place - len(keys) / 2))
    table = Table.grid(padding=(0, 4))
    table.add_row(_below(keys[:cut]), _below(keys[cut:]))
    return table
