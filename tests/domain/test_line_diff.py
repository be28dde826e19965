"""Line diffs and excerpts: correct, small, and computed in linear time."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain import line_diff
from holdfast.domain.line_diff import excerpt, unified_diff

LINES = st.lists(st.sampled_from(["", "a", "b", " a", "c c", "\t"]), max_size=30).map("\n".join)


def test_diffs_are_small() -> None:
    """Lines that occur once in both texts anchor the others."""
    old = "one\ntwo\nsame\nsame\nthree\nfour\n"
    assert unified_diff(old, "one\nsame\nsame\ntwo\nthree\nfour\n", "f").removals == 2
    moved = unified_diff("a\nb\nc\nd\ne\n", "e\na\nb\nc\nd\n", "f")
    assert (moved.additions, moved.removals) == (1, 1)
    assert (unified_diff(old, old, "f").text, unified_diff(old, old, "f").additions) == ("", 0)
    only = unified_diff("a\n", "a", "f")
    assert (only.text, only.additions, only.removals) == (
        "--- f\n+++ f\n(only line ends or the end of the file differ)",
        0,
        0,
    )
    plain = unified_diff("a\nb\n", "a\nc\nd\n", "f")
    assert plain.text == "--- f\n+++ f\n@@ -1,2 +1,3 @@\n a\n-b\n+c\n+d"
    assert plain.counts == "2 lines added, 1 removed"
    assert unified_diff("", "a\n", "f").counts == "1 line added, 0 removed"
    assert unified_diff("", "a\n", "f").text.split("\n")[2] == "@@ -0,0 +1,1 @@"


def test_adjacent_changes_share_a_hunk() -> None:
    lines = [str(number) for number in range(1, 21)]
    for gap, hunks in ((6, 1), (7, 2)):
        new = list(lines)
        new[3], new[4 + gap] = "x", "y"
        assert unified_diff("\n".join(lines), "\n".join(new), "f").text.count("@@ -") == hunks, gap
    new = list(lines)
    new[9] = "x"
    assert unified_diff("\n".join(lines), "\n".join(new), "f").text.split("\n")[2:] == [
        "@@ -7,7 +7,7 @@", " 7", " 8", " 9", "-10", "+x", " 11", " 12", " 13",
    ]  # fmt: skip


def test_long_diff_is_truncated_and_its_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = unified_diff("", "ab\ncd\n", "f")
    for most, is_cut in ((len(whole.text) + 1, False), (len(whole.text), True)):
        monkeypatch.setattr(line_diff, "MAX_DIFF_TEXT", most)
        found = unified_diff("", "ab\ncd\n", "f")
        assert found.text.endswith("… the rest of the difference is left out") is is_cut
        assert (found.additions, found.removals) == (2, 0)
    monkeypatch.setattr(line_diff, "MAX_DIFF_TEXT", 0)
    assert unified_diff("", "a\n", "f").text == "… the rest of the difference is left out"
    monkeypatch.undo()
    # Without anchors a short range is compared line by line, a long one is replaced as a whole.
    old, new = "a\na\nb\nb\n", "b\nb\na\na\n"
    for most, additions in ((16, 2), (15, 4)):
        monkeypatch.setattr(line_diff, "MAX_COMPARED_PAIRS", most)
        assert unified_diff(old, new, "f").additions == additions


@given(LINES, LINES)
def test_diff_can_be_applied(old: str, new: str) -> None:
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


def test_diff_equals_that_of_difflib() -> None:
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


def test_excerpt_has_a_few_lines_around_the_change() -> None:
    lines = [f"line {number}" for number in range(1, 21)]
    old = "\n".join(lines)
    new = old.replace("line 10", "changed")
    assert excerpt(old, new, len(old)) == (old, new)
    before, after = excerpt(old, new, len(old) - 1)
    assert before.split("\n") == [*lines[6:13], ""]
    assert after.split("\n") == [*lines[6:9], "changed", *lines[10:13], ""]
    assert excerpt(old, new, 10) == ("", "")
    assert excerpt("a\nb", "a\nc" + "x" * 9, 8) == ("", "")
    assert excerpt("x" * 9, "x" * 9 + "y", 9) == ("", "")
    assert excerpt("", "", 0) == ("", "")


@given(LINES, LINES, st.integers(0, 40))
def test_excerpt_contains_difference(old: str, new: str, most: int) -> None:
    first, second = excerpt(old, new, most)
    assert (first, second) == ("", "") or max(len(first), len(second)) <= most
    if (first, second) != ("", ""):
        head = old.find(first)
        assert head >= 0
        assert second in new
