"""The input line of a command: typed text, and below an approval or a question its choices.

`client/key_focus.py` decides whether a key edits the text or acts on the request. Keys are read before the request
may settle (`poll`), so that a key typed before it was drawn as active never acts on it, however late it is read.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple
from unicodedata import east_asian_width

from holdfast.cli.console.run_output import RunOutput
from holdfast.cli.console.terminal_keys import Key, Terminal
from holdfast.client import key_focus
from holdfast.client.key_focus import Focus, Kind

__all__ = ["Input", "InputLine", "Option"]


class Option(NamedTuple):
    """A choice. `letter` selects it after Tab has moved the focus to the request."""

    value: str
    label: str
    letter: str = ""


class Input(NamedTuple):
    """An input of the user.

    `option`: a choice was selected. `answer`: a line was entered into the focused request. `line`: a line was entered
    into the composer; `is_fresh` if it was begun after the request appeared. `end`: Ctrl-D on an empty line, or the
    terminal is gone.
    """

    kind: Literal["option", "answer", "line", "end"]
    text: str = ""
    is_fresh: bool = False


class InputLine:
    """The input line: reads keys and edits the typed text."""

    def __init__(
        self, terminal: Terminal, output: RunOutput, *, echoes: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the line. With `echoes`, typed text is also shown while no request is open."""
        self._terminal = terminal
        self._output = output
        self._echoes = echoes
        self._clock = clock
        self._focus = Focus()
        self._options: Sequence[Option] = ()
        self._selected = 0
        self._answer_text = ""
        self._keys: deque[tuple[int, Key]] = deque()
        self._is_stale = False
        """True if the text was begun before the current request appeared."""
        self._last_mark = ""
        self.text = ""

    @property
    def is_open(self) -> bool:
        """True while a request is shown."""
        return bool(self._focus.request)

    def start(self) -> None:
        """Switch the terminal to single keys without echo."""
        self._read()

    def open(self, request: str, kind: Kind, options: Sequence[Option]) -> None:
        """Offer the choices of a request that has just been printed."""
        self._options, self._selected, self._answer_text, self._last_mark = options, 0, "", ""
        # Reading switches the terminal to single keys; text that was typed earlier counts as typed now.
        self._read()
        self._is_stale = bool(self.text or self._keys)
        self._focus = key_focus.appear(self._focus, request, kind, self._now())
        self._draw()

    def close(self, notice: str = "") -> None:
        """Remove the request. Typed text is kept and shown again."""
        self._output.clear()
        self._focus = key_focus.disappear(self._focus)
        self._terminal.write(f"{notice}\n" if notice else "")
        if self.text and self._echoes:
            self._terminal.write(_on_one_line(self.text))

    def poll(self) -> Input | None:
        """Return the next input of the user; None if there is no more for now."""
        self._read()
        while self._keys:
            at, key = self._keys.popleft()
            done = self._press(key, at)
            self._focus = key_focus.edit(self._focus, is_empty=not self.text, at=at)
            if done is not None:
                return done
        if self._terminal.is_closed:
            return Input("end")
        self._focus, is_due = key_focus.release(self._focus, self._now())
        if is_due:
            return self._apply_key(Key("enter"))
        self._focus = key_focus.tick(self._focus, self._now())
        self._draw()
        return None

    def _read(self) -> None:
        keys, at = self._terminal.read_keys(), self._now()
        if self._terminal.is_resumed:
            # Enter ended the shell's `fg`, and the key may still be held.
            self._terminal.is_resumed = False
            self._focus, _ = key_focus.press(self._focus, "enter", at)
        self._keys.extend((at, key) for key in keys)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _press(self, key: Key, at: int) -> Input | None:
        was_open, name = self.is_open, key.name
        known = {"backspace", "erase_line", "erase_word", "end"}
        self._focus, route = key_focus.press(self._focus, "other" if name in known else name, at)
        if route.target == "request":
            return self._apply_key(key)
        if route.target in ("focus", "blur"):
            self._answer_text = ""
        if route.target != "composer":
            return None
        if name == "end":
            return Input("end") if not self.text else None
        if name == "enter":
            return self._finish(was_open=was_open)
        before = self.text
        self.text = _edit(route.restore + self.text, key)
        self._is_stale = self._is_stale and bool(self.text)
        if self._echoes and not was_open:
            self._terminal.write(_echo(before, self.text))
        return None

    def _finish(self, *, was_open: bool) -> Input | None:
        text, self.text = self.text, ""
        is_fresh, self._is_stale = not self._is_stale, False
        if not text.strip():
            return None
        if was_open:
            self._output.clear()
            self._terminal.write(f"> {_on_one_line(text)}\n")
        elif self._echoes:
            self._terminal.write("\n")
        return Input("line", text.strip(), is_fresh)

    def _apply_key(self, key: Key) -> Input | None:
        """Handle a key for the request."""
        is_question = self._focus.kind == "question"
        last = len(self._options) - 1
        if key.name in key_focus.ARROWS:
            self._selected = max(0, min(last, self._selected + (1 if key.name in ("right", "down") else -1)))
        elif key.name == "enter" and self._focus.is_focused and is_question and self._answer_text:
            return Input("answer", self._answer_text)
        elif key.name == "enter" and self._options:
            return Input("option", self._options[self._selected].value)
        elif self._focus.is_focused and is_question:
            self._answer_text = _edit(self._answer_text, key)
        elif self._focus.is_focused:
            taken = [option for option in self._options if option.letter and option.letter == key.text.lower()]
            return Input("option", taken[0].value) if taken else None
        elif key.text.isdecimal() and int(key.text) <= len(self._options):
            self._selected = int(key.text) - 1
        return None

    def _draw(self) -> None:
        if self.is_open:
            line = self._prompt()
            if not self._output.prompt(line) and (mark := self._mark()) != self._last_mark:
                # A terminal that cannot redraw a line gets a new line for every change.
                self._last_mark = mark
                self._terminal.write(f"{mark}\n" if mark else "")

    def _prompt(self) -> str:
        """Return the bottom line, cut at its beginning to fit."""
        if self._focus.is_focused and self._focus.kind == "question":
            return _fit(f"{self._choices()}  your answer (Esc: back): ", self._answer_text)
        if self._focus.is_focused:
            return _fit(f"{self._choices(letters=True)}  (Enter: answer, Esc: back to the prompt) ", "")
        if self._focus.is_settled:
            return _fit(f"{self._choices()}  (Enter: answer, arrows: choose) > ", "")
        if self.text:
            return _fit("(send or clear your text first · Tab: answer) > ", self.text)
        return _fit("(active in a moment · Tab: answer) > ", "")

    def _choices(self, *, letters: bool = False) -> str:
        shown = []
        for index, option in enumerate(self._options):
            letter = f"[{option.letter}] " if letters and option.letter else ""
            shown.append(f"{'▸ ' if index == self._selected else ''}{letter}{option.label}")
        return "  ".join(shown)

    def _mark(self) -> str:
        if not self._focus.is_active or not self._options:
            return ""
        return f"[▸ {self._options[self._selected].label}{': Esc: back' if self._focus.is_focused else ''}]"


def _edit(text: str, key: Key) -> str:
    match key.name:
        case "backspace":
            return text[:-1]
        case "erase_line":
            return ""
        case "erase_word":
            return text.rstrip().rpartition(" ")[0] + (" " if " " in text.rstrip() else "")
        case _:
            return text + key.text


def _on_one_line(text: str) -> str:
    return text.replace("\n", "⏎")


def _width(text: str) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in _on_one_line(text))


def _echo(before: str, after: str) -> str:
    """Return the output that changes one typed text into the other, at the end of the current line."""
    if after.startswith(before):
        return _on_one_line(after[len(before) :])
    return "\b \b" * _width(before[len(after) :])


def _fit(prompt: str, text: str) -> str:
    """Cut a line to the width of the terminal. A line that wraps could not be cleared."""
    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        columns = 0
    room = max(20, (columns or 80) - 1)
    if _width(prompt) > room * 2 // 3 and text:
        prompt = "> "
    shown = _on_one_line(text)
    while shown and _width(prompt) + _width(shown) > room:
        shown = shown[1:]
    return (prompt + shown)[:room]
