"""The input line of `run` and `attach`, on a real pseudo-terminal with a virtual clock."""

import os
import pty
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.console import input_line
from holdfast.cli.console.input_line import Input, InputLine, Option
from holdfast.cli.console.run_output import RunOutput
from holdfast.cli.console.terminal_keys import Key, KeyDecoder, Terminal
from holdfast.client.key_focus import SETTLE, Kind

OPTIONS = (Option("allow", "once", "y"), Option("allow_always", "always"), Option("deny", "no", "n"))


@pytest.mark.parametrize(
    ("pieces", "names"),
    [
        ([b"a\r"], ["a", "enter"]),
        ([b"\x1b[A", b"\x1bOB\x1b[C\x1b[D"], ["up", "down", "right", "left"]),
        ([b"\x1b[", b"A"], ["up"]),
        ([b"\x1b"], ["escape"]),
        ([b"\x1b[1;5C\x1b[3~x"], ["other", "other", "x"]),
        ([b"\x1bax"], ["other", "x"]),
        ([b"\x1b[200~y\n\ty\r\n\x1b[201~2"], ["y\n    y", "2"]),
        ([b"\x1b[200~ab", b"c\x1b[201~"], ["abc"]),
        ([b"\x1b[200~\x1b[201~"], ["other"]),
        (["ü".encode()[:1], "ü".encode()[1:]], ["ü"]),
        ([b"\x7f\x15\x17\x04\t\x00"], ["backspace", "erase_line", "erase_word", "end", "tab", "other"]),
    ],
)
def test_terminal_bytes_are_decoded_to_keys(pieces: list[bytes], names: list[str]) -> None:
    decoder = KeyDecoder()
    keys = [key for piece in pieces for key in decoder.feed(piece)]
    assert [key.text or key.name for key in keys] == names
    assert all(key.name in ("text", key.text) for key in keys if key.text)
    assert Key("2", "2") in keys or "2" not in names


class Keyboard:
    """A line with a request open, and the other end of its terminal."""

    def __init__(self, master: int, slave: int) -> None:
        self._master = master
        self._slave = slave
        self.seconds = 1_000.0
        terminal = Terminal()
        terminal._input = slave
        self.line = InputLine(terminal, RunOutput("stream", is_quiet=True), echoes=True, clock=lambda: self.seconds)
        self.line.start()
        self.done: list[Input] = []
        self._terminal = terminal

    def open(self, name: str, kind: Kind = "approval") -> None:
        self.line.open(name, kind, OPTIONS)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())
        self.poll()

    def wait(self, milliseconds: int) -> None:
        while milliseconds > 0:
            self.seconds += min(milliseconds, 100) / 1000
            milliseconds -= 100
            self.poll()

    def poll(self) -> None:
        while (done := self.line.poll()) is not None:
            self.done.append(done)

    def reset_terminal(self) -> None:
        """As a shell does."""
        attributes = termios.tcgetattr(self._slave)
        attributes[3] |= termios.ICANON | termios.ECHO
        termios.tcsetattr(self._slave, termios.TCSANOW, attributes)

    def close(self) -> None:
        self._terminal.release()


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    master, slave = pty.openpty()
    made = Keyboard(master, slave)
    try:
        yield made
    finally:
        made.close()
        os.close(master)
        os.close(slave)


WORDS = st.lists(
    st.tuples(
        st.text("ysnaß /allow-deny", min_size=1, max_size=6),
        st.sampled_from((0, 30, 300, 700, 3_000)),
        st.integers(0, SETTLE - 1),
        st.booleans(),
    ),
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(words=WORDS, kind=st.sampled_from(("approval", "question")))
def test_typed_lines_never_select_an_option(words: list[tuple[str, int, int, bool]], kind: Kind) -> None:
    with keyboard() as board:
        board.open("first", kind)
        typed = ""
        for number, (word, pause, before_enter, appears) in enumerate(words):
            for letter in word:
                board.type(letter)
                board.wait(pause)
            if appears:
                board.open(f"request {number}", kind)
            typed += word
            board.wait(before_enter)
            if typed.strip():
                board.type("\n")
        assert all(done.kind == "line" for done in board.done)
        kept = "".join(done.text for done in board.done) + board.line.text
        assert "".join(kept.split()) == "".join(typed.split())
        board.type("\x15")
        board.wait(SETTLE + 1_100)
        board.done.clear()
        board.type("\x1b[B\n")
        assert board.done == [Input("option", "allow_always")]


def test_held_enter_tab_and_free_text_for_a_question() -> None:
    with keyboard() as board:
        board.type("text\n")
        board.open("a")
        board.wait(SETTLE + 100)
        for _ in range(40):
            board.type("\n")
            board.wait(30)
        assert [done.kind for done in board.done] == ["line"]
        board.type("draft\ty")
        assert board.done[1:] == [Input("option", "allow")]
        assert board.line.text == "draft"
        board.line.close()
        board.open("q", "question")
        board.type("\tmy 2 words\n")
        assert board.done[2:] == [Input("answer", "my 2 words")]
        board.line.close()
        board.type("\x15/allow")
        board.open("b")
        board.type("\n/allow\n")
        assert board.done[3:] == [Input("line", "/allow", is_fresh=False), Input("line", "/allow", is_fresh=True)]


def test_after_a_suspension_a_held_enter_does_not_answer() -> None:
    """A shell resets the terminal when it suspends a command; `fg` ends with Enter."""
    with keyboard() as board:
        board.open("a")
        board.wait(SETTLE + 100)
        board.reset_terminal()
        for _ in range(20):
            board.type("\n")
            board.wait(30)
        assert board.done == []
        board.wait(SETTLE + 1_100)
        board.type("\n")
        assert board.done == [Input("option", "allow")]


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("ab", Key("backspace"), "a"),
        ("", Key("backspace"), ""),
        ("a b", Key("erase_line"), ""),
        ("one two", Key("erase_word"), "one "),
        ("one two  ", Key("erase_word"), "one "),
        ("one ", Key("erase_word"), ""),
        ("one", Key("erase_word"), ""),
        ("", Key("erase_word"), ""),
        ("a", Key("text", "b c"), "ab c"),
        ("a", Key("other"), "a"),
    ],
)
def test_editing_keys(text: str, key: Key, expected: str) -> None:
    assert input_line._edit(text, key) == expected
