"""The help page with all keys."""

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Label, Static

from holdfast.tui.key_hints import key_hints
from holdfast.tui.screens.dialogs import Dialog

_WIDE = 115
"""Minimum width for two columns."""

__all__ = ["KEYS", "HelpScreen"]

KEYS = (
    ("Writing", ""),
    ("enter", "send; steers the current run"),
    ("alt+enter, ctrl+q", "send as a turn of its own"),
    ("ctrl+j, shift+enter", "a new line"),
    ("up, down", "earlier prompts"),
    ("ctrl+r", "find an earlier prompt"),
    ("@", "attach a file of the project"),
    ("/", "at the start: commands"),
    ("!", "at the start: shell command"),
    ("ctrl+o", "write in your own editor"),
    ("ctrl+v", "paste text or an image"),
    ("backspace", "remove the last attachment"),
    ("While it works", ""),
    ("esc esc", "cancel, restore the queue"),
    ("ctrl+t", "edit the queued prompts"),
    ("↳ ⋯", "steers; has its own turn"),
    ("When a tool asks", ""),
    ("←→, enter", "answer, ½ s after the last key"),
    ("tab", "go to the request; esc goes back"),
    ("a s d, r", "then: once, session, no; why not"),
    ("1 to 9", "mark a choice of a question"),
    ("The conversation", ""),
    ("tab", "go there, and back"),
    ("page up, page down", "scroll; ctrl+end follows again"),
    ("j k, up down", "from block to block"),
    ("J K", "from prompt to prompt"),
    ("space, click", "fold or unfold; o all of them"),
    ("y, Y", "copy a block; only its code"),
    ("g G, d u", "beginning, end; half a page"),
    ("ctrl+f", "find; n N: next, previous"),
    ("Everything else", ""),
    ("ctrl+p", "all commands"),
    ("ctrl+s, ctrl+n", "sessions; a new one"),
    ("ctrl+l, f2", "models; reasoning effort"),
    ("ctrl+y", "auto-approve, after confirmation"),
    ("ctrl+g, f1", "this page"),
    ("ctrl+z, ctrl+c", "suspend; leave: runs continue"),
)
"""Keys and what they do; a pair without description is a heading."""


class HelpScreen(Dialog[None]):
    """The help page."""

    GROWS = "#keys"
    REST = 6
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,enter,ctrl+g,f1", "dismiss", "Close"),
        ("j", "scroll(1)", "Down"),
        ("k", "scroll(-1)", "Up"),
        ("space", "scroll(12)", "Page down"),
    ]

    def __init__(self, accent: str = "bold", screen: str = "") -> None:
        """Create the page. `screen` is the name under which other clients see answers from here."""
        super().__init__()
        self._accent = accent
        self._screen = screen

    def compose(self) -> ComposeResult:
        """Compose the page."""
        is_wide = self.app.size.width >= _WIDE
        with Vertical(classes="dialog wide" if is_wide else "dialog"):
            yield Label("Keys", classes="dialog-title")
            with VerticalScroll(id="keys"):
                yield Static((_two_columns if is_wide else _one_column)(KEYS, self._accent))
            name = (("", f"other clients see this one as {self._screen}"),) if self._screen else ()
            yield Label(key_hints(("↑↓", "scroll"), ("esc", "close"), *name), classes="dialog-hint")

    def on_mount(self) -> None:
        """Focus the list."""
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, by: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


def _one_column(keys: Sequence[tuple[str, str]], accent: str) -> Table:
    table = Table.grid(padding=(0, 2))
    for at, (key, what) in enumerate(keys):
        if at and not what:
            table.add_row()
        table.add_row(Text(key, style="bold" if what else accent), what)
    return table


def _two_columns(keys: Sequence[tuple[str, str]], accent: str) -> Table:
    """Return two columns, split at a heading near the middle."""
    headings = [place for place, (_, what) in enumerate(keys) if not what]
    cut = min(headings, key=lambda place: abs(place - len(keys) / 2))
    table = Table.grid(padding=(0, 4), expand=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_row(_one_column(keys[:cut], accent), _one_column(keys[cut:], accent))
    return table
