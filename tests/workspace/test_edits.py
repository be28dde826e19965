"""Text replacement: correct, and in time linear in the size of the text."""

import re

import pytest

from holdfast.domain.errors import ToolError
from holdfast.workspace.files.text_edit import replace_text
from holdfast.workspace.files.text_encoding import TextFormat, decode, line_ending


def edited(text: str, old: str, new: str, *, replace_all: bool = False) -> str:
    return replace_text(text, old, new, replace_all=replace_all).text


def refused(text: str, old: str, new: str = "new") -> str:
    with pytest.raises(ToolError) as raised:
        replace_text(text, old, new, replace_all=False)
    return str(raised.value)


def test_overlapping_matches_are_two() -> None:
    assert "2 times" in refused("aaa", "aa")


def test_indentation_is_adapted() -> None:
    text = "class A:\n  def f(self):\n    return 1\n"
    assert edited(text, "    def f(self):\n        return 1", "    def f(self):\n        if x:\n            y()") == (
        "class A:\n  def f(self):\n    if x:\n        y()\n"
    )
    assert edited("\tx = 1\n\ty = 2\n", "    x = 1\n    y = 2\n", "    x = 2\n        z\n") == "\tx = 2\n\t\tz\n"
    assert edited("    a\n        b\n", "a\n    b\n", "a\n    c\n") == "    a\n        c\n"
    assert edited("  a  =  1\n", "a = 1", "a = 2") == "  a = 2\n"


def test_lost_indentation_is_not_guessed() -> None:
    """All lines would have the same depth, which is another program in some languages."""
    why = refused("\tif x:\n\t\ty()\n", "if x:\ny()", "if x:\nz()")
    assert "indented differently" in why
    assert why.endswith("\n\tif x:\n\t\ty()")


def test_white_space_tolerance_for_whole_lines_only() -> None:
    assert "not in the file" in refused("x = foo( a )\n", "foo(a)")
    assert "times" in refused(" a\n  a\n", "a\t")
    assert edited(" a\n  a\n", "a\t", "b", replace_all=True) == " b\n  b\n"


def test_lines_are_removed_whole() -> None:
    assert edited("a\n\tb\nc\n", "  b\n", "") == "a\nc\n"


def test_line_numbers_of_view_are_stripped() -> None:
    done = replace_text("one\ntwo\nthree\n", "     1|one\n     2|two", "     1|one\n     2|TWO", replace_all=False)
    assert done.text == "one\nTWO\nthree\n"
    assert "line numbers" in done.note


def test_mixed_line_endings_are_kept() -> None:
    assert edited("a\r\nb\nc\r\n", "b", "x") == "a\r\nx\nc\r\n"
    assert edited("a\r\nb\r\nc\n", "a\nb\n", "x\ny\n") == "x\r\ny\r\nc\n"
    assert line_ending("a\r\nb\n") == "\n"


def test_hints() -> None:
    assert "line 2:\n  the file has: two\n  you sent:     twoo" in refused("one\ntwo\nthree\n", "one\ntwoo\nthree")
    assert "hello world" in refused("x\nhello world\n", "hello wrld")
    assert "real line breaks" in refused("a\nb\n", "qqqq\\nzzzz")
    assert "Nothing similar" in refused("a\nb\n", "something else")
    assert "white space" in refused("a\nb\n", "   ")
    assert "outside of the file" in refused("a\nb", "b\nc\nd")


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("same line\n" * 500_000, "same  line\n" * 400 + "other"),
        ("same line\n" * 500_000, "same line\n" * 400 + "other"),
        ("a" * 5_000_000, "a" * 3_000 + "b"),
        ("ab\n" * 1_500_000, " ab\n" * 300 + "x"),
    ],
    ids=["lines", "exact", "one line", "short lines"],
)
def test_repetitive_text_of_5_megabytes_takes_linear_time(text: str, old: str) -> None:
    """Quadratic comparison would take hours and exceed the time limit of the test."""
    assert "not in the file" in refused(text, old)


def test_line_ending_formats_round_trip() -> None:
    for data in (b"", b"a\r\n", "\ufeffä".encode(), "\ufeffä".encode("utf-16-le"), "\ufeffä".encode("utf-16-be")):
        text, form = decode(data, "f")
        assert "\ufeff" not in text
        assert form.encode(text) == data
    for data in (b"\xff", b"a\0b", "é".encode("latin-1"), "ab".encode("utf-16-le")):
        with pytest.raises(ToolError, match="UTF-8"):
            decode(data, "f")
    with pytest.raises(ToolError, match="unpaired surrogate"):
        TextFormat().encode("\ud800")


@pytest.mark.parametrize("old", ["a b", "a  b", "a b\n", "a  b\n"])
def test_ambiguous_lines_are_counted_from_one(old: str) -> None:
    """By an exact match, and by one up to white space."""
    message = refused("a b\nc\na b\nd\n", old)
    assert re.findall(r"\b\d+\b", message)[-2:] == ["1", "3"], message
