"""Completions above the editor for `@` and `/`."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from holdfast.tui.screens.picker import fitted

__all__ = ["Completer"]

_WIDEST = 36


class Completer(OptionList, can_focus=False):
    """The list of completions. The editor keeps the focus; the app forwards the keys that select."""

    class Picked(Message):
        """A completion was selected: a path, or `/` and a command."""

        def __init__(self, value: str) -> None:
            super().__init__()
            self.value = value

    def offer(self, names: Sequence[tuple[str, str]]) -> None:
        """Show these completions, each a value and a description. An empty sequence hides the list."""
        self.clear_options()
        self.display = bool(names)
        wide = min(max((cell_len(value) for value, _ in names), default=0), _WIDEST)
        for value, detail in names:
            name = fitted(value, wide) if detail else value
            line = Text.assemble(name, ("  ", ""), (detail, "dim"))
            self.add_option(Option(line, id=value))
        if names:
            self.highlighted = 0

    def pick(self) -> None:
        """Select the highlighted completion."""
        if self.display and self.highlighted is not None:
            self.post_message(self.Picked(str(self.get_option_at_index(self.highlighted).id)))
            self.offer(())

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Select the completion that was clicked."""
        event.stop()
        self.highlighted = event.option_index
        self.pick()
