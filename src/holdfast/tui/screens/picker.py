"""A list one can narrow down by typing."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

__all__ = ["Choice", "Picked", "Picker", "matching"]


class Choice(msgspec.Struct, frozen=True):
    """One line: what it is called, what is known about it, and the value it stands for."""

    value: str
    title: str
    detail: str = ""
    mark: str = ""


class Picked(msgspec.Struct, frozen=True):
    """What somebody chose, and with which key: enter, or one that means something else here."""

    value: str
    key: str = "enter"


def matching(choices: Sequence[Choice], words: str) -> list[Choice]:
    """Those that contain every word, the best first: a title that begins with it, then one that has it."""
    wanted = words.lower().split()
    found = [choice for choice in choices if all(word in f"{choice.title} {choice.detail}".lower() for word in wanted)]
    if not wanted:
        return found
    first = wanted[0]
    return sorted(
        found, key=lambda choice: (not choice.title.lower().startswith(first), first not in choice.title.lower())
    )


class Picker(ModalScreen[Picked | None]):
    """Answers what was chosen, or None. `keys` are others than enter that choose, `start` is marked at first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close"),
        Binding("pagedown", "page(8)", show=False, priority=True),
        Binding("pageup", "page(-8)", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[Choice],
        hint: str = "",
        *,
        keys: Sequence[str] = (),
        start: str = "",
        empty: str = "Nothing fits.",
    ) -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._hint = hint or "enter choose · esc close"
        self._keys = keys
        self._start = start
        self._empty = empty

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self._title, classes="dialog-title")
            yield Input(placeholder="Type to narrow it down", compact=True)
            yield OptionList()
            yield Label(self._empty, id="nothing")
            yield Label(self._hint, classes="dialog-hint")

    def on_mount(self) -> None:
        self._fill("")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def _fill(self, words: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        shown = matching(self._choices, words)
        for choice in shown:
            line = Text.assemble((f"{choice.mark or ' '} ", "bold"), choice.title, ("  ", ""), (choice.detail, "dim"))
            line.no_wrap, line.overflow = True, "ellipsis"
            options.add_option(Option(line, id=choice.value))
        self.query_one("#nothing").display = not shown
        options.display = bool(shown)
        if shown:
            values = [choice.value for choice in shown]
            options.highlighted = values.index(self._start) if self._start in values and not words else 0

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and options.option_count:
            options.action_cursor_up() if event.key == "up" else options.action_cursor_down()
            event.stop()
        elif event.key in self._keys:
            event.stop()
            event.prevent_default()
            self._choose(event.key)

    def action_page(self, by: int) -> None:
        options = self.query_one(OptionList)
        if options.option_count:
            options.highlighted = max(0, min((options.highlighted or 0) + by, options.option_count - 1))

    @on(Input.Submitted)
    def _chosen_by_enter(self) -> None:
        self._choose("enter")

    def _choose(self, key: str) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None and options.option_count:
            self.dismiss(Picked(str(options.get_option_at_index(options.highlighted).id), key))
        elif key != "enter":
            self.dismiss(Picked("", key))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(Picked(str(event.option.id)))

    def action_leave(self) -> None:
        self.dismiss(None)
