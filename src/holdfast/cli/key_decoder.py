"""Decodes the bytes of a terminal into key presses. Pure."""

import codecs
from typing import NamedTuple

__all__ = ["Key", "KeyDecoder"]


class Key(NamedTuple):
    """A key press. `name` is a name of `answer_focus.press`, or of an editing key; `text` is set for characters and
    pastes.
    """

    name: str
    text: str = ""


_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
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
            key, length = _first(text)
            if key is None:
                self._rest = text
                break
            keys.append(key)
            text = text[length:]
        return keys


def _first(text: str) -> tuple[Key | None, int]:
    """Return the first key and its length; None if it is incomplete."""
    if text[0] == "\x1b":
        return _sequence(text)
    if name := _CONTROLS.get(text[0]):
        return Key(name), 1
    if not text[0].isprintable():
        return Key("other"), 1
    return Key(text[0] if text[0] in "123456789" else "text", text[0]), 1


def _sequence(text: str) -> tuple[Key | None, int]:
    if text.startswith(_PASTE):
        inside, end, _ = text[len(_PASTE) :].partition(_PASTED)
        if not end:
            return None, 0
        lines = inside.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
        pasted = "".join(char for char in lines.expandtabs(4) if char == "\n" or char.isprintable())
        return Key("text" if pasted else "other", pasted), len(_PASTE) + len(inside) + len(_PASTED)
    if len(text) == 1 or text[1] not in "[O":
        # Escape alone, or Alt with a key, which types nothing.
        return (Key("escape"), 1) if len(text) == 1 else (Key("other"), 2)
    for length in range(3, len(text) + 1):
        if text[1] == "O" or "@" <= text[length - 1] <= "~":
            return Key(_SEQUENCES.get(text[:length], "other")), length
    return None, 0
