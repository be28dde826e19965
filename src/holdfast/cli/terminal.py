"""The user's terminal: written to on stderr, read key by key.

While keys are read the terminal neither waits for whole lines nor echoes: only then can the time of a key press be
compared with the time at which a request appeared. Signals (Ctrl-C, Ctrl-Z) work as usual.
"""

import atexit
import os
import select
import sys
import termios
from typing import Any

from holdfast.cli.key_decoder import Key, KeyDecoder

__all__ = ["Terminal"]

_LOCAL, _CHARS = 3, 6
"""Indices into the attributes of a terminal."""
_PASTES, _NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
"""Bracketed paste: the terminal marks where pasted text begins and ends."""


class Terminal:
    """stderr and stdin, if both are a terminal. With `opens`, stdin may have contained the prompt: then the controlling
    terminal is read instead, if stderr is a terminal and this process is in the foreground.
    """

    def __init__(self, *, opens: bool = False) -> None:
        self._input = 0
        if opens and os.isatty(2) and not os.isatty(0):
            self._input = _own_terminal()
        self._saved: list[Any] | None = None
        self._decoder = KeyDecoder()
        self.is_resumed = False
        """Set if the command was suspended since keys were last read; the caller resets it."""
        self.is_gone = False
        """Set when nothing can be read any more."""

    @property
    def is_there(self) -> bool:
        """True if both directions are a terminal."""
        return os.isatty(self._input) and os.isatty(2)

    def say(self, text: str) -> None:
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
            if not self._listen():
                return []
            found: list[Key] = []
            while select.select([self._input], [], [], 0)[0]:
                data = os.read(self._input, 4096)
                if not data:
                    self.is_gone = True
                    break
                found += self._decoder.feed(data)
        except (OSError, ValueError, termios.error):
            self.is_gone = True
        return found if not self.is_gone else []

    def release(self) -> None:
        """Restore the attributes of the terminal."""
        saved, self._saved = self._saved, None
        if saved is None:
            return
        if os.environ.get("TERM") != "dumb":
            self.say(_NO_PASTES)
        try:
            if self._is_foreground():
                termios.tcsetattr(self._input, termios.TCSADRAIN, saved)
        except (OSError, termios.error):
            return

    def _listen(self) -> bool:
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
            self.say(_PASTES)
        return True

    def _is_foreground(self) -> bool:
        """Return True if the process may access the terminal: a background process would be stopped."""
        try:
            return os.tcgetpgrp(self._input) == os.getpgrp()
        except OSError:
            # Not the controlling terminal: there is no job control to respect.
            return True


def _own_terminal() -> int:
    try:
        opened = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        if os.tcgetpgrp(opened) == os.getpgrp():
            return opened
        os.close(opened)
    except OSError:
        pass
    return 0
