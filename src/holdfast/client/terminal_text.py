"""Removes terminal control sequences from untrusted text, for the command line and the terminal app. Pure.

Text of models, tools, files and other people reaches a terminal, which would obey control sequences in it: change the
clipboard or the title, hide what was printed before, or answer on the user's behalf. There are two treatments:

* `sanitize` and `EscapeFilter` remove sequences and controls from text that is to be read.
* `printable` makes every such character visible, where the user decides about exactly this text.

The grammar is that of ECMA-48: control sequences (CSI), control strings (OSC, DCS, SOS, PM, APC) and other escape
sequences, in their 7-bit and 8-bit forms. The result never contains an escape or other control character, so a sequence
that this grammar does not know loses its introducer and is text.
"""

from typing import Literal, TypeAlias

__all__ = [
    "BIDI",
    "CONTROLS",
    "EscapeFilter",
    "final_line",
    "printable",
    "sanitize",
    "strip_controls",
    "strip_escapes",
]

CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x61C)
"""Characters that change the order in which text is displayed."""

_State: TypeAlias = Literal["text", "escape", "intermediate", "csi", "string", "string escape"]

_ALLOWED_CONTROLS = "\n\t"
_NO_BIDI = dict.fromkeys(BIDI)
_NO_CONTROLS = dict.fromkeys((*CONTROLS, *BIDI))
_STRINGS_7BIT = "]PX^_"
_STRINGS_8BIT = "\x90\x98\x9d\x9e\x9f"
_INTRODUCERS = ("\x1b", "\x9b", *_STRINGS_8BIT)
_CANCEL = "\x07\x18\x1a\x9c"
"""The end of a control string, in one character: BEL, CAN, SUB, ST."""


class EscapeFilter:
    """Removes control sequences and control characters from text that arrives in pieces, where a sequence may be split.

    A line break ends every sequence: one that is never completed hides the rest of its line, not all that follows.
    """

    def __init__(self, kept: str = _ALLOWED_CONTROLS) -> None:
        self._dropped = dict.fromkeys(code for code in CONTROLS if chr(code) not in kept)
        self._state: _State = "text"

    def feed(self, text: str) -> str:
        """Return the text of a piece without control sequences and control characters."""
        if self._state == "text" and not any(mark in text for mark in _INTRODUCERS):
            return text.translate(self._dropped)
        return "".join([char for char in text if self._is_shown(char)])

    def _is_shown(self, char: str) -> bool:
        following = self._next_state(char)
        if following is not None:
            self._state = following
            return False
        self._state = "text"
        return ord(char) not in self._dropped

    def _next_state(self, char: str) -> _State | None:
        """Return the state after a character of a sequence, or None if the character is not part of one."""
        state = self._state
        if char == "\n":
            return None
        if state == "string":
            return "text" if char in _CANCEL else "string escape" if char == "\x1b" else "string"
        if state == "string escape":
            if char == "\\":
                return "text"
            state = "escape"
        if char == "\x1b":
            return "escape"
        if char == "\x9b" or (state == "escape" and char == "["):
            return "csi"
        if char in _STRINGS_8BIT or (state == "escape" and char in _STRINGS_7BIT):
            return "string"
        return _in_sequence(state, char)


def _in_sequence(state: _State, char: str) -> _State | None:
    if state == "text":
        return None
    if "\x20" <= char <= "\x2f":
        return "csi" if state == "csi" else "intermediate"
    if state == "csi" and "\x30" <= char <= "\x3f":
        return "csi"
    return "text" if "\x30" <= char <= "\x7e" else None


def strip_escapes(text: str, kept: str = _ALLOWED_CONTROLS) -> str:
    """Return text without control sequences and control characters, except those `kept`."""
    return EscapeFilter(kept).feed(text)


def sanitize(text: str) -> str:
    """Return text that neither controls a terminal nor changes the order in which it is displayed."""
    return strip_escapes(text).translate(_NO_BIDI)


def printable(text: str) -> str:
    """Return text on one line in which every character that is not printable is visible as an escape.

    For approvals, paths and settings, where a hidden character could deceive the reader.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def strip_controls(text: str) -> str:
    """Return text without control characters and characters that change its order. Sequences are not recognised: of
    one that was split or repaired, the rest remains as text.
    """
    return text.translate(_NO_CONTROLS)


def final_line(line: str) -> str:
    """Return a line of a command's output as a terminal would finally show it: without colours and overwritten text."""
    line = strip_escapes(line, kept="\r\t")
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line
