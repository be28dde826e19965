"""The prompt editor: several lines, with a history of sent prompts."""

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from holdfast.tui.attachments import mention_at, path_in_paste
from holdfast.tui.keys import NEWLINES, QUEUES
from holdfast.tui.screens.picker import fitted

__all__ = ["Completer", "Composer"]


_LONG_LINES = 10
_LONG_COLUMNS = 1_000


class Composer(TextArea):
    """Enter sends, Alt-Enter queues, Shift-Enter or Ctrl-J inserts a new line. Up and down at the edges move through
    the history.
    """

    class Sent(Message):
        """A prompt is ready. `queues`: it gets a turn of its own instead of steering the current one."""

        def __init__(self, text: str, *, queues: bool) -> None:
            super().__init__()
            self.text = text
            self.queues = queues

    class Pasted(Message):
        """A paste that becomes an attachment: a long text, or the path of an image."""

        def __init__(self, text: str, *, is_path: bool = False) -> None:
            super().__init__()
            self.text = text
            self.is_path = is_path

    class ImageWanted(Message):
        """The paste key was pressed: the clipboard may contain an image."""

    class Emptied(Message):
        """Backspace was pressed in an empty editor."""

    class Chose(Message):
        """A key for the list of completions."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Completing(Message):
        """The word before the cursor can be completed; `kind` is `file`, `command` or empty."""

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
        """True while completions are shown: the keys that select belong to them."""
        self.has_attachments = False
        # Not as bindings, because those are handled before letters that were typed earlier.
        self._acts: dict[str, Callable[[], None]] = {
            "enter": self.action_send,
            "ctrl+v": self.action_paste_any,
            **dict.fromkeys(QUEUES, self.action_queue),
            **dict.fromkeys(NEWLINES, self.action_newline),
        }

    def remember(self, texts: list[str]) -> None:
        """Set the history, oldest first."""
        self._history = texts
        self._place = len(texts)

    @property
    def sent(self) -> list[str]:
        """The history, oldest first."""
        return self._history

    def take(self, text: str) -> None:
        """Insert a text above the current one."""
        self.text = f"{text}\n\n{self.text}" if self.text.strip() else text
        self.move_cursor(self.document.end)
        self.focus()

    def action_send(self) -> None:
        """Send the text."""
        self._send(queues=False)

    def action_queue(self) -> None:
        """Send the text with a turn of its own."""
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
        """Insert a new line."""
        self.insert("\n")

    def action_paste_any(self) -> None:
        """Paste an image or text."""
        self.post_message(self.ImageWanted())

    def complete(self, text: str) -> None:
        """Replace the letters before the cursor by a completion."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if text.startswith("/"):
            self.text = ""
            return
        letters = mention_at(before) or ""
        name = f'"{text}"' if " " in text else text
        self.replace(f"{name} ", (row, column - len(letters)), (row, column))

    def on_text_area_changed(self) -> None:
        """Request completions for the word before the cursor."""
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
        """Turn a long text or an image path into an attachment; leave other text to the text area, which handles it
        next.
        """
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


# Completions above the editor for `@` and `/`.

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
