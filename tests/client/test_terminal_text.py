"""Terminal control sequences in untrusted text are removed, however they are split."""

import random

import pytest

from holdfast.client import terminal_text
from holdfast.client.terminal_text import BIDI, CONTROLS, EscapeFilter, sanitize, strip_escapes
from planting import CLAUSES, assert_every_clause_decides

CASES: list[tuple[str, str]] = [
    ("plain\ttext\n", "plain\ttext\n"),
    ("\x1b[1;31mred\x1b[0m plain", "red plain"),
    ("\x1b]0;title\x07after", "after"),
    ("\x1b]52;c;AAAA\x1b\\after", "after"),
    ("\x1bPq#0\x1b\\after", "after"),
    ("\x9b31mred \x9dtitle\x9cafter", "red after"),
    ("\x1b(Bq\x1b", "q"),
    ("\x1bcx", "x"),
    ("x\x1b]never ended\nnext", "x\nnext"),
    ("\x1b[31\nx", "\nx"),
    ("\x1b\x1b[2Jx", "x"),
    ("\x1b]a\x1b]b\x07c", "c"),
    ("\x1b]a\x18b", "b"),
    ("\x1b[38;5;1é", "é"),
    ("10 %\r20 %\x08\x00\x7f", "10 %20 %"),
    ("日本語\u200e", "日本語\u200e"),
    # The first and the last character of each class, in each state.
    *((f"\x1b{final}x", "x") for final in "0?@~"),
    *((f"\x1b{middle}~x", "x") for middle in " /"),
    ("\x1b(5x", "x"),
    ("\x1b(é", "é"),
    *((f"\x1b[{parameter}~x", "x") for parameter in "0?"),
    *((f"\x1b[{middle}5qx", "x") for middle in " /"),
    *((f"\x1b[{final}x", "x") for final in "@~"),
    *((f"\x1b{string}a\x9cx", "x") for string in "]PX^_"),
    *((f"{string}a{end}x", "x") for string in "\x90\x98\x9d\x9e\x9f" for end in "\x07\x18\x1a\x9c"),
    ("\x1b]a\x1b(Bx", "x"),
    ("\x1b]a\x1b[31mx", "x"),
    ("\x1b[3\x1b]a\x07x", "x"),
    ("\x1b[3\x9b1mx", "x"),
    ("[31m(B]0", "[31m(B]0"),
    ("\x1b[m[31m(B]0", "[31m(B]0"),
    ("\x1b[m\x08\tx", "\tx"),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_sequences_are_removed_wherever_they_are_split(text: str, expected: str) -> None:
    assert strip_escapes(text) == expected
    for place in range(len(text) + 1):
        pieces = EscapeFilter()
        assert pieces.feed(text[:place]) + pieces.feed(text[place:]) == expected, place
    pieces = EscapeFilter()
    assert "".join(map(pieces.feed, text)) == expected


def test_no_control_character_is_ever_left() -> None:
    source = random.Random(7)
    letters = [*map(chr, CONTROLS), *map(chr, BIDI), *"[]PX^_\\;0?mJH a\né"]
    forbidden = {*map(chr, CONTROLS)} - {"\n", "\t"}
    for _ in range(2000):
        text = "".join(source.choices(letters, k=source.randrange(30)))
        pieces = EscapeFilter()
        place = source.randrange(len(text) + 1)
        shown = pieces.feed(text[:place]) + pieces.feed(text[place:])
        assert shown == strip_escapes(text), repr(text)
        assert not forbidden & set(shown), repr(text)
        assert not {*map(chr, BIDI)} & set(sanitize(text)), repr(text)
        assert shown.count("\n") == text.count("\n"), "a line is never lost"


def test_every_mistake_in_the_states_is_noticed() -> None:
    def check() -> None:
        for text, expected in CASES:
            assert strip_escapes(text) == expected, repr(text)

    functions = [EscapeFilter._is_shown, EscapeFilter._next_state, terminal_text._in_sequence]
    equivalent = {
        "if char == '\\\\':; return 'text' -> (nothing)": "a backslash is also the final character of a short sequence",
    }
    assert_every_clause_decides(functions, check, equivalent, CLAUSES | {"comparison", "exit"})
