"""The prompt editor with its history of sent prompts, and the list of completions."""

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from holdfast.tui.attachments import open_mention, pasted_path
from holdfast.tui.key_hints import NEWLINE_KEYS, QUEUE_KEYS
from holdfast.tui.screens.picker import fit_width

__all__ = ["Completer", "Composer"]


_MAX_NAME_WIDTH = 36
_ATTACH_LINES = 10
_ATTACH_COLUMNS = 1_000
"""A paste with more lines, or with a longer line, becomes an attachment."""


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

    class ImageRequested(Message):
        """The paste key was pressed: the clipboard may contain an image."""

    class Emptied(Message):
        """Backspace was pressed in an empty composer."""

    class CompletionKey(Message):
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
            placeholder="Describe what to do.  @ a file · / commands · ! a shell command",
        )
        self._sent: list[str] = []
        self._position = 0
        self._draft = ""
        self.completes = False
        """True while completions are shown: the keys that select belong to them."""
        self.has_attachments = False
        # Not as bindings, because those are handled before letters that were typed earlier.
        self._key_actions: dict[str, Callable[[], None]] = {
            "enter": self.action_send,
            "ctrl+v": self.action_paste_any,
            **dict.fromkeys(QUEUE_KEYS, self.action_queue),
            **dict.fromkeys(NEWLINE_KEYS, self.action_newline),
        }

    def set_sent_prompts(self, texts: list[str]) -> None:
        """Replace the history of sent prompts, oldest first."""
        self._sent = texts
        self._position = len(texts)

    @property
    def sent_prompts(self) -> list[str]:
        """The prompts that were sent, oldest first."""
        return self._sent

    def set_text(self, text: str) -> None:
        """Replace the text and move the cursor to its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def restore(self, text: str) -> None:
        """Insert a text that was sent above the current one."""
        self.set_text(f"{text}\n\n{self.text}" if self.text.strip() else text)
        self.focus()

    def action_send(self) -> None:
        """Send the text."""
        self._send(queues=False)

    def action_queue(self) -> None:
        """Send the text with a turn of its own."""
        self._send(queues=True)

    def _send(self, *, queues: bool) -> None:
        if self.completes:
            self.post_message(self.CompletionKey("enter"))
            return
        text = self.text.strip()
        if not text and not self.has_attachments:
            return
        if text:
            self._sent.append(text)
        self._position = len(self._sent)
        self.text = ""
        self.post_message(self.Sent(text, queues=queues))

    def action_newline(self) -> None:
        """Insert a new line."""
        self.insert("\n")

    def action_paste_any(self) -> None:
        """Paste an image or text."""
        self.post_message(self.ImageRequested())

    def complete(self, text: str) -> None:
        """Replace the letters before the cursor by a completion."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if text.startswith("/"):
            self.text = ""
            return
        letters = open_mention(before) or ""
        name = f'"{text}"' if " " in text else text
        self.replace(f"{name} ", (row, column - len(letters)), (row, column))

    def on_text_area_changed(self) -> None:
        """Request completions for the word before the cursor."""
        self.set_class(self.text.startswith("!"), "shell")
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if row == 0 and before.startswith("/") and " " not in before and self.document.line_count == 1:
            self.post_message(self.Completing("command", before[1:]))
        elif (letters := open_mention(before)) is not None:
            self.post_message(self.Completing("file", letters))
        else:
            self.post_message(self.Completing("", ""))

    async def _on_paste(self, event: events.Paste) -> None:
        """Turn a long text or an image path into an attachment; leave other text to the text area, which handles it
        next.
        """
        lines = event.text.splitlines()
        path = pasted_path(event.text)
        is_long = len(lines) > _ATTACH_LINES or any(len(line) > _ATTACH_COLUMNS for line in lines)
        if path is None and not is_long:
            return
        event.prevent_default()
        event.stop()
        self.post_message(self.Pasted(path or event.text, is_path=path is not None))

    async def _on_key(self, event: events.Key) -> None:
        row, _ = self.cursor_location
        if self.completes and event.key in ("up", "down", "escape"):
            self.post_message(self.CompletionKey(event.key))
        elif (action := self._key_actions.get(event.key)) is not None:
            action()
        elif event.key == "backspace" and not self.text:
            self.post_message(self.Emptied())
        elif event.key == "up" and row == 0 and self._position:
            self._show_sent_prompt(self._position - 1)
        elif event.key == "down" and row == self.document.line_count - 1 and self._position < len(self._sent):
            self._show_sent_prompt(self._position + 1)
        else:
            await super()._on_key(event)
            return
        event.prevent_default()
        event.stop()

    def _show_sent_prompt(self, position: int) -> None:
        if self._position == len(self._sent):
            self._draft = self.text
        self._position = position
        self.set_text(self._sent[position] if position < len(self._sent) else self._draft)


class Completer(OptionList, can_focus=False):
    """The list of completions above the composer, for `@` and `/`.

    The composer keeps the focus; the app forwards the keys that select.
    """

    class Picked(Message):
        """A completion was selected: a path, or `/` and a command."""

        def __init__(self, value: str) -> None:
            super().__init__()
            self.value = value

    def offer(self, completions: Sequence[tuple[str, str]]) -> None:
        """Show these completions, each a value and a description. An empty sequence hides the list."""
        self.clear_options()
        self.display = bool(completions)
        width = min(max((cell_len(value) for value, _ in completions), default=0), _MAX_NAME_WIDTH)
        for value, detail in completions:
            name = fit_width(value, width) if detail else value
            line = Text.assemble(name, ("  ", ""), (detail, "dim"))
            self.add_option(Option(line, id=value))
        if completions:
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
