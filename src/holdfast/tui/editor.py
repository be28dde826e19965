"""Where a prompt is written: several lines, with the ones sent before within reach."""

from collections.abc import Callable

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from holdfast.tui.files import path_in_paste
from holdfast.tui.keyboard import NEWLINES, QUEUES
from holdfast.tui.mentions import mention_at

__all__ = ["Editor"]

_LONG_LINES = 10
_LONG_COLUMNS = 1_000


class Editor(TextArea):
    """Enter sends, Alt-Enter queues, Shift-Enter or Ctrl-J begins a new line. Up and down at the edges go through
    what was sent before.
    """

    class Sent(Message):
        """A prompt is ready. `queues`: it is to have a turn of its own, not to steer the one under way."""

        def __init__(self, text: str, *, queues: bool) -> None:
            super().__init__()
            self.text = text
            self.queues = queues

    class Pasted(Message):
        """Too long to be part of the text, or a picture's path: it becomes an attachment."""

        def __init__(self, text: str, *, is_path: bool = False) -> None:
            super().__init__()
            self.text = text
            self.is_path = is_path

    class ImageWanted(Message):
        """Somebody pressed the key for pasting: there may be a picture on the clipboard."""

    class Emptied(Message):
        """Backspace, where there is nothing left to delete."""

    class Chose(Message):
        """A key that is for the names that are offered above."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Completing(Message):
        """The word before the cursor could be completed; `kind` is `file`, `command` or nothing."""

        def __init__(self, kind: str, letters: str) -> None:
            super().__init__()
            self.kind = kind
            self.letters = letters

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(
            id=id,
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Say what you want done.  @ a file · / commands · ! a shell command",
        )
        self._history: list[str] = []
        self._place = 0
        self._draft = ""
        self.completes = False
        """Whether names are offered above: their keys are not the editor's then."""
        self.has_attachments = False
        # Not as bindings: those overtake the letters that were typed before them.
        self._acts: dict[str, Callable[[], None]] = {
            "enter": self.action_send,
            "ctrl+v": self.action_paste_any,
            **dict.fromkeys(QUEUES, self.action_queue),
            **dict.fromkeys(NEWLINES, self.action_newline),
        }

    def remember(self, texts: list[str]) -> None:
        """What was sent earlier, oldest first."""
        self._history = texts
        self._place = len(texts)

    @property
    def sent(self) -> list[str]:
        return self._history

    def take(self, text: str) -> None:
        """Put a text back, above what is there."""
        self.text = f"{text}\n\n{self.text}" if self.text.strip() else text
        self.move_cursor(self.document.end)
        self.focus()

    def action_send(self) -> None:
        self._send(queues=False)

    def action_queue(self) -> None:
        self._send(queues=True)

    def _send(self, *, queues: bool) -> None:
        if self.completes:
            self.post_message(self.Chose("enter"))
            return
        text = self.text.strip()
        if not text and not self.has_attachments:
            return
        if text:
            self._history.append(text)
        self._place = len(self._history)
        self.text = ""
        self.post_message(self.Sent(text, queues=queues))

    def action_newline(self) -> None:
        self.insert("\n")

    def action_paste_any(self) -> None:
        self.post_message(self.ImageWanted())

    def complete(self, text: str) -> None:
        """Put a whole name in the place of the letters before the cursor."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if text.startswith("/"):
            self.text = ""
            return
        letters = mention_at(before) or ""
        name = f'"{text}"' if " " in text else text
        self.replace(f"{name} ", (row, column - len(letters)), (row, column))

    def on_text_area_changed(self) -> None:
        self.set_class(self.text.startswith("!"), "shell")
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if row == 0 and before.startswith("/") and " " not in before and self.document.line_count == 1:
            self.post_message(self.Completing("command", before[1:]))
        elif (letters := mention_at(before)) is not None:
            self.post_message(self.Completing("file", letters))
        else:
            self.post_message(self.Completing("", ""))

    async def _on_paste(self, event: events.Paste) -> None:
        """What is neither long nor a picture is left to the text area, which hears of it next."""
        lines = event.text.splitlines()
        path = path_in_paste(event.text)
        is_long = len(lines) > _LONG_LINES or any(len(line) > _LONG_COLUMNS for line in lines)
        if path is None and not is_long:
            return
        event.prevent_default()
        event.stop()
        self.post_message(self.Pasted(path or event.text, is_path=path is not None))

    async def _on_key(self, event: events.Key) -> None:
        row, _ = self.cursor_location
        if self.completes and event.key in ("up", "down", "escape"):
            self.post_message(self.Chose(event.key))
        elif (act := self._acts.get(event.key)) is not None:
            act()
        elif event.key == "backspace" and not self.text:
            self.post_message(self.Emptied())
        elif event.key == "up" and row == 0 and self._place:
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
