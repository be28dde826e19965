"""A list that is filtered by typing."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from holdfast.tui.key_hints import key_hints
from holdfast.tui.screens.dialogs import Dialog

__all__ = ["Picker", "PickerItem", "PickerResult", "filter_items", "fit_width"]

_MAX_WIDTH = 110
_FRAME_WIDTH = 10
"""Columns beside a line: the frame, the mark, a scroll bar."""
_MIN_TITLE_WIDTH = 24


class PickerItem(msgspec.Struct, frozen=True):
    """A list entry: title, details, and the value it represents.

    Entries of one `group` are listed below its name. One that `is_rare` is shown only if it matches typed words.
    """

    value: str
    title: str
    detail: str = ""
    mark: str = ""
    group: str = ""
    is_rare: bool = False


class PickerResult(msgspec.Struct, frozen=True):
    """The selected value, and the key that selected it: enter, or another one with a special meaning."""

    value: str
    key: str = "enter"


def filter_items(choices: Sequence[PickerItem], words: str) -> list[PickerItem]:
    """Return the entries that contain every word; titles that begin with the first word come first, then titles that
    contain it.
    """
    wanted = words.lower().split()
    if not wanted:
        return [choice for choice in choices if not choice.is_rare]
    found = [choice for choice in choices if all(word in _search_text(choice) for word in wanted)]
    first = wanted[0]
    return sorted(
        found, key=lambda choice: (not choice.title.lower().startswith(first), first not in choice.title.lower())
    )


def _search_text(choice: PickerItem) -> str:
    return f"{choice.title} {choice.detail} {choice.group}".lower()


def fit_width(text: str, wide: int) -> str:
    """Pad or cut a text to this width."""
    return set_cell_size(text, wide) if cell_len(text) <= wide else f"{set_cell_size(text, wide - 1)}…"


class Picker(Dialog[PickerResult | None]):
    """Returns the selection, or None. `keys` are additional keys that select, `start` is highlighted first."""

    GROWS = "OptionList"
    REST = 8
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close"),
        Binding("pagedown", "page(1)", show=False, priority=True),
        Binding("pageup", "page(-1)", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[PickerItem],
        hint: Sequence[tuple[str, str]] = (("enter", "choose"), ("esc", "close")),
        *,
        keys: Sequence[str] = (),
        start: str = "",
        empty: str = "No matches.",
    ) -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._hint = hint
        self._keys = keys
        self._start = start
        self._empty = empty

    def compose(self) -> ComposeResult:
        """Compose the dialog."""
        with Vertical(classes="dialog"):
            yield Label(self._title, classes="dialog-title", markup=False)
            yield Input(placeholder="Type to filter", compact=True)
            yield OptionList(compact=True)
            yield Label(self._empty, id="no-matches", markup=False)
            yield Label(key_hints(*self._hint), classes="dialog-hint")

    def on_mount(self) -> None:
        """Fill the list and focus the input."""
        self._fill("")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def _fill(self, words: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        shown = filter_items(self._choices, words)
        wide = self._title_width(shown)
        group = ""
        for choice in shown:
            if choice.group != group and not words:
                options.add_option(Option(Text(f"  {choice.group}", style="bold"), disabled=True))
            group = choice.group
            title = fit_width(choice.title, wide) if choice.detail else choice.title
            line = Text.assemble((f"{choice.mark or ' '} ", "bold"), title, ("  ", ""), (choice.detail, "dim"))
            options.add_option(Option(line, id=choice.value))
        self.query_one("#no-matches").display = not shown
        options.display = bool(shown)
        if shown:
            values = [choice.value for choice in shown]
            first = self._start if self._start in values and not words else values[0]
            options.highlighted = options.get_option_index(first)

    def _title_width(self, shown: Sequence[PickerItem]) -> int:
        """Return the width of titles: details have their own column, and titles are cut only if both do not fit."""
        room = min(self.app.size.width * 94 // 100, _MAX_WIDTH) - _FRAME_WIDTH
        details = max((cell_len(choice.detail) for choice in shown), default=0)
        widest = max((cell_len(choice.title) for choice in shown), default=0)
        return min(widest, max(_MIN_TITLE_WIDTH, room * 3 // 5, room - details))

    def on_key(self, event: events.Key) -> None:
        """Handle the arrows and the additional keys."""
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and options.option_count:
            options.action_cursor_up() if event.key == "up" else options.action_cursor_down()
            event.stop()
        elif event.key in self._keys:
            event.stop()
            event.prevent_default()
            self._choose(event.key)

    def action_page(self, by: int) -> None:
        """Move by a page."""
        options = self.query_one(OptionList)
        # Its public actions have no types.
        options._move_page(1 if by > 0 else -1)

    @on(Input.Submitted)
    def _submit_search(self) -> None:
        self._choose("enter")

    def _choose(self, key: str) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None and options.option_count:
            self.dismiss(PickerResult(str(options.get_option_at_index(options.highlighted).id), key))
        elif key != "enter":
            self.dismiss(PickerResult("", key))

    @on(OptionList.OptionSelected)
    def _select_option(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(PickerResult(str(event.option.id)))

    def action_leave(self) -> None:
        """Close the dialog."""
        self.dismiss(None)
