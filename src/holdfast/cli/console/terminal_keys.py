"""The terminal of the user: output on stderr, input key by key.

`KeyDecoder` converts the bytes of a terminal to keys and is pure; `Terminal` reads and writes. While keys are
read, the terminal neither waits for whole lines nor echoes: only then can the time of a key press be compared with the
time at which a request appeared. Signals (Ctrl-C, Ctrl-Z) are not affected.
"""

import atexit
import codecs
import os
import select
import sys
import termios
from typing import Any, NamedTuple

__all__ = ["Key", "KeyDecoder", "Terminal"]


class Key(NamedTuple):
    """A key press. `name` is a name of `answer_focus.press`, or of an editing key; `text` is set for characters and
    pastes.
    """

    name: str
    text: str = ""


_PASTE_BEGIN, _PASTE_END = "\x1b[200~", "\x1b[201~"
_SEQUENCES = {
    **{
        f"\x1b{lead}{letter}": name
        for lead in "[O"
        for letter, name in zip("ABCD", ("up", "down", "right", "left"), strict=True)
    },
}
_CONTROLS = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x15": "erase_line",
    "\x17": "erase_word",
    "\x04": "end",
}


class KeyDecoder:
    """Decodes bytes; keeps an incomplete sequence or paste until the rest arrives."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[Key]:
        """Return the keys that are complete with these bytes."""
        text, self._rest = self._rest + self._utf8.decode(data), ""
        keys: list[Key] = []
        while text:
            key, length = _decode_first(text)
            if key is None:
                self._rest = text
                break
            keys.append(key)
            text = text[length:]
        return keys


def _decode_first(text: str) -> tuple[Key | None, int]:
    """Return the first key and its length; None if it is incomplete."""
    if text[0] == "\x1b":
        return _decode_sequence(text)
    if name := _CONTROLS.get(text[0]):
        return Key(name), 1
    if not text[0].isprintable():
        return Key("other"), 1
    return Key(text[0] if text[0] in "123456789" else "text", text[0]), 1


def _decode_sequence(text: str) -> tuple[Key | None, int]:
    if text.startswith(_PASTE_BEGIN):
        inside, end, _ = text[len(_PASTE_BEGIN) :].partition(_PASTE_END)
        if not end:
            return None, 0
        lines = inside.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
        pasted = "".join(char for char in lines.expandtabs(4) if char == "\n" or char.isprintable())
        return Key("text" if pasted else "other", pasted), len(_PASTE_BEGIN) + len(inside) + len(_PASTE_END)
    if len(text) == 1 or text[1] not in "[O":
        # Escape alone, or Alt with a key, which types nothing.
        return (Key("escape"), 1) if len(text) == 1 else (Key("other"), 2)
    for length in range(3, len(text) + 1):
        if text[1] == "O" or "@" <= text[length - 1] <= "~":
            return Key(_SEQUENCES.get(text[:length], "other")), length
    return None, 0


_LOCAL, _CHARS = 3, 6
"""Indices into the attributes of a terminal."""
_ENABLE_PASTE, _DISABLE_PASTE = "\x1b[?2004h", "\x1b[?2004l"
"""Bracketed paste: the terminal marks where pasted text begins and ends."""


class Terminal:
    """stderr and stdin, if both are a terminal. With `opens`, stdin may have contained the prompt: then the controlling
    terminal is read instead, if stderr is a terminal and this process is in the foreground.
    """

    def __init__(self, *, uses_tty: bool = False) -> None:
        self._input = 0
        if uses_tty and os.isatty(2) and not os.isatty(0):
            self._input = _open_controlling_terminal()
        self._saved: list[Any] | None = None
        self._decoder = KeyDecoder()
        self.is_resumed = False
        """Set if the command was suspended since keys were last read; the caller resets it."""
        self.is_closed = False
        """Set when nothing can be read any more."""

    @property
    def is_usable(self) -> bool:
        """True if both directions are a terminal."""
        return os.isatty(self._input) and os.isatty(2)

    def write(self, text: str) -> None:
        """Write text to stderr."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return

    def discard_input(self) -> None:
        """Discard input that was typed before now."""
        try:
            if self._is_foreground():
                termios.tcflush(self._input, termios.TCIFLUSH)
        except (OSError, termios.error):
            return

    def read_keys(self) -> list[Key]:
        """Return the keys that have arrived, without waiting."""
        try:
            if not self._read_single_keys():
                return []
            found: list[Key] = []
            while select.select([self._input], [], [], 0)[0]:
                data = os.read(self._input, 4096)
                if not data:
                    self.is_closed = True
                    break
                found += self._decoder.feed(data)
        except (OSError, ValueError, termios.error):
            self.is_closed = True
        return found if not self.is_closed else []

    def release(self) -> None:
        """Restore the attributes of the terminal."""
        saved, self._saved = self._saved, None
        if saved is None:
            return
        if os.environ.get("TERM") != "dumb":
            self.write(_DISABLE_PASTE)
        try:
            if self._is_foreground():
                termios.tcsetattr(self._input, termios.TCSADRAIN, saved)
        except (OSError, termios.error):
            return

    def _read_single_keys(self) -> bool:
        """Switch to reading keys instead of lines. A shell resets this when it suspends and resumes the command."""
        if not self._is_foreground():
            return False
        now = termios.tcgetattr(self._input)
        if not now[_LOCAL] & termios.ICANON:
            return True
        if self._saved is None:
            atexit.register(self.release)
        else:
            self.is_resumed = True
        self._saved = [*now[:_CHARS], list(now[_CHARS])]
        now[_LOCAL] &= ~(termios.ICANON | termios.ECHO)
        now[_CHARS][termios.VMIN], now[_CHARS][termios.VTIME] = 1, 0
        termios.tcsetattr(self._input, termios.TCSADRAIN, now)
        if os.environ.get("TERM") != "dumb":
            self.write(_ENABLE_PASTE)
        return True

    def _is_foreground(self) -> bool:
        """Return True if the process may access the terminal: a background process would be stopped."""
        try:
            return os.tcgetpgrp(self._input) == os.getpgrp()
        except OSError:
            # Not the controlling terminal: there is no job control to respect.
            return True


def _open_controlling_terminal() -> int:
    try:
        opened = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        if os.tcgetpgrp(opened) == os.getpgrp():
            return opened
        os.close(opened)
    except OSError:
        pass
    return 0
