"""Text replacement and diffs: correct, and in time linear in the size of the text."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import ToolError
from holdfast.domain.line_diff import excerpt, unified_diff
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
    assert "different depths" in why
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
    assert "Nothing like it" in refused("a\nb\n", "something else")
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


LINES = st.lists(st.sampled_from(["", "a", "b", " a", "c c", "\t"]), max_size=30).map("\n".join)


@given(LINES, LINES)
def test_a_diff_can_be_applied(old: str, new: str) -> None:
    """The diff turns the first text into the second."""
    difference = unified_diff(old, new, "x")
    before, after = old.split("\n"), new.split("\n")
    before, after = (lines[:-1] if lines[-1] == "" else lines for lines in (before, after))
    hunks = difference.text.split("\n")[2:] if difference.text else []
    out: list[str] = []
    at = 0
    for line in hunks:
        if line.startswith("@@"):
            begin, count = (int(item) for item in line.split()[1][1:].split(","))
            begin = begin - 1 if count else begin
            out += before[at:begin]
            at = begin
        elif line.startswith("+"):
            out.append(line[1:])
        elif line.startswith(("-", " ")):
            assert before[at] == line[1:]
            at += 1
            out += [line[1:]] * line.startswith(" ")
    assert out + before[at:] == after
    marks = [line[0] for line in hunks if line[:2] != "@@" and not line.startswith("(")]
    assert (marks.count("+"), marks.count("-")) == (difference.additions, difference.removals)


def test_a_diff_equals_that_of_difflib() -> None:
    old = "".join(f"{number}\n" for number in range(20))
    new = old.replace("3\n", "three\n", 1).replace("17\n", "")
    ours = unified_diff(old, new, "f")
    theirs = difflib.unified_diff(old.splitlines(), new.splitlines(), "f", "f", lineterm="")
    assert ours.text.splitlines() == [*theirs]


def test_large_texts_are_compared_in_linear_time() -> None:
    old = "same\n" * 400_000
    assert unified_diff(old, "x\n" + old + "y\n", "f").additions >= 2
    lines = [f"line {number}\n" for number in range(100_000)]
    new = [*lines[:10], "new\n", *lines[10:99_990], *lines[99_995:]]
    difference = unified_diff("".join(lines), "".join(new), "f")
    assert (difference.additions, difference.removals) == (1, 5)
    assert len(unified_diff("".join(lines), "", "f").text) < 101_000


@given(LINES, LINES, st.integers(0, 40))
def test_excerpt_contains_difference(old: str, new: str, most: int) -> None:
    first, second = excerpt(old, new, most)
    assert (first, second) == ("", "") or max(len(first), len(second)) <= most
    if (first, second) != ("", ""):
        head = old.find(first)
        assert head >= 0
        assert second in new


def test_line_ending_formats_round_trip() -> None:
    for data in (b"", b"a\r\n", "\ufeffä".encode(), "\ufeffä".encode("utf-16-le"), "\ufeffä".encode("utf-16-be")):
        text, form = decode(data, "f")
        assert "\ufeff" not in text
        assert form.encode(text) == data
    for data in (b"\xff", b"a\0b", "é".encode("latin-1"), "ab".encode("utf-16-le")):
        with pytest.raises(ToolError, match="UTF-8"):
            decode(data, "f")
    with pytest.raises(ToolError, match="half character"):
        TextFormat().encode("\ud800")
