"""Where a prompt is written: several lines, with the ones sent before within reach."""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

__all__ = ["Editor"]


class Editor(TextArea):
    """Enter sends, Shift-Enter or Ctrl-J begins a new line. Up and down at the edges go through what was sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", priority=True),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", show=False, priority=True),
    ]

    class Sent(Message):
        """A prompt is ready. `steer`: into the turn that is under way."""

        def __init__(self, text: str, *, steer: bool) -> None:
            super().__init__()
            self.text = text
            self.steer = steer

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, soft_wrap=True, show_line_numbers=False, tab_behavior="focus")
        self._history: list[str] = []
        self._place = 0
        self._draft = ""

    def remember(self, texts: list[str]) -> None:
        """What was sent earlier, oldest first."""
        self._history = texts
        self._place = len(texts)

    def take(self, text: str) -> None:
        """Put a text back, above what is there."""
        self.text = f"{text}\n{self.text}" if self.text.strip() else text
        self.move_cursor(self.document.end)
        self.focus()

    def action_send(self) -> None:
        text = self.text.strip()
        if not text:
            return
        self._history.append(text)
        self._place = len(self._history)
        self.text = ""
        self.post_message(self.Sent(text, steer=True))

    def action_newline(self) -> None:
        self.insert("\n")

    async def _on_key(self, event: events.Key) -> None:
        row, _ = self.cursor_location
        if event.key == "up" and row == 0 and self._place:
            self._recall(self._place - 1)
        elif event.key == "down" and row == self.document.line_count - 1 and self._place < len(self._history):
            self._recall(self._place + 1)
        else:
            await super()._on_key(event)
            return
        event.prevent_default()
        event.stop()

    def _recall(self, place: int) -> None:
        if self._place == len(self._history):
            self._draft = self.text
        self._place = place
        self.text = self._history[place] if place < len(self._history) else self._draft
        self.move_cursor(self.document.end)
