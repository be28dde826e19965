"""Retained and displayed output of commands."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.workspace.process import output_capture
from holdfast.workspace.process.output_capture import MAX_SHOWN, Output, OutputFiles, shorten

TEXT = "aä€🙂\r\n\x1b[31mred\x1b[0m\n"


@given(st.text(max_size=300), st.lists(st.integers(0, 1_200), max_size=8))
def test_character_may_be_split_anywhere(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    output = Output()
    received = "".join(output.feed(data[a:b]) for a, b in pairwise(places)) + output.finish()
    assert received == output.buffered == data.decode()
    assert output.size == len(received)


def test_result_does_not_depend_on_fragmentation() -> None:
    output = Output()
    received = [output.feed(bytes([byte])) for byte in TEXT.encode()]
    assert "".join(received) == output.buffered == TEXT
    assert "�" not in output.buffered


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"a\xffb", "a�b"), (b"\xe2\x82", "�"), (b"ok\xf0\x9f", "ok�"), (b"\xe2\x82\xac", "€")],
)
def test_invalid_utf_8_is_replaced(data: bytes, text: str) -> None:
    output = Output()
    received = output.feed(data) + output.finish()
    assert received == output.excerpt() == text
    assert output.finish() == ""


@given(st.integers(1, 50), st.lists(st.text(alphabet="ab\n€", max_size=40), max_size=30))
def test_head_and_tail_are_kept_and_the_rest_is_counted(held: int, pieces: list[str]) -> None:
    output = Output(held)
    for piece in pieces:
        output.feed(piece.encode())
    text = "".join(pieces)
    assert output.size == len(text)
    assert output.is_whole == (output.buffered == text)
    assert len(output.buffered) <= 3 * held + 40
    assert output.buffered.startswith(text[:held])
    assert output.buffered.endswith(text[-held:] if len(text) >= 2 * held else "")
    if not output.is_whole:
        half = held // 2 if held > 1 else 0
        shown = output.excerpt(2 * half)
        assert shown == shorten(text, 2 * half) or half == 0


def test_short_output_is_shown_in_full() -> None:
    text = "x" * MAX_SHOWN
    output = Output()
    output.feed(text.encode())
    assert output.excerpt() == text == shorten(text)


def test_long_output_is_truncated_in_the_middle() -> None:
    text = "".join(f"line {number}\n" for number in range(10_000))
    output = Output()
    output.feed(text.encode())
    shown = output.excerpt()
    half = MAX_SHOWN // 2
    first, last = shown[:half], shown[-half:]
    missing = 10_000 - first.count("\n") - last.count("\n")
    assert text.startswith(first)
    assert text.endswith(last)
    assert shown[half:-half] == f"\n\n... [{missing} lines truncated] ...\n\n"
    assert shown == shorten(text)


def test_memory_is_bounded() -> None:
    output = Output(1_000)
    for _ in range(10_000):
        output.feed(b"abcdefg\n" * 10)
    assert output.size == 800_000
    assert len(output.buffered) < 3_500
    assert "lines truncated" in output.excerpt(500)


def test_small_pieces_are_merged() -> None:
    output = Output(10_000)
    for _ in range(50_000):
        output.feed(b"a")
    assert output.size == 50_000
    assert output.buffered == "a" * len(output.buffered)
    assert 20_000 <= len(output.buffered) <= 21_024


# Files for output that is too long to be shown


@pytest.mark.parametrize(("pieces", "is_whole"), [(["abc", "de"], True), (["abcde"], True), (["abc", "def"], False)])
def test_a_file_is_cut_at_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[str], is_whole: bool
) -> None:
    monkeypatch.setattr(output_capture, "_MAX_FILE_SIZE", 5)
    file = OutputFiles(tmp_path / "out").new_file("out")
    for piece in (*pieces, "" if is_whole else "more"):
        file.add(piece)
    file.close()
    assert file.path is not None
    assert (file.describe() == "All of it") == is_whole
    assert file.path.read_text() == "abcde" + ("" if is_whole else "\n[The rest was not kept.]\n")
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OutputFiles(tmp_path).new_file("out")
    is_named = []
    for text in ("begin", "more", "ignored"):
        file.add(text)
        is_named.append(file.path is not None)
        if file._file is not None:
            os.close(file._file.fileno())
    assert is_named == [True, False, False]
    (tmp_path / "blocked").write_text("")
    lost = OutputFiles(tmp_path / "blocked").new_file("out")
    lost.add("x")
    assert lost.path is None


def test_the_oldest_files_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_capture, "_MAX_FILES", 2)
    files = OutputFiles(tmp_path)
    paths = []
    for number, owner in enumerate(("a", "b", "a")):
        path = files.for_owner(owner).new_path("out")
        path.write_text("x")
        os.utime(path, ns=(number, number))
        paths.append(path)
    assert [path.exists() for path in paths] == [False, True, True]


def test_files_of_a_session_are_removed_and_no_others(tmp_path: Path) -> None:
    """Names in messages are untrusted: only files of the directory itself are removed."""
    files = OutputFiles(tmp_path / "out")
    own, other = (files.for_owner(owner).new_path("out") for owner in ("s", "t"))
    outside = tmp_path / "old.txt"
    earlier = tmp_path / "out/old.txt"
    for path in (own, other, outside, earlier):
        path.write_text("x")
    files.remove("s", ["../old.txt", str(outside)])
    assert [path.exists() for path in (own, other, outside, earlier)] == [False, True, True, False]


def test_an_excerpt_never_shows_more_than_is_kept() -> None:
    output = Output(4)
    output.feed(b"abcdefghijkl")
    assert output.excerpt(100) == shorten_reference("abcd", "ijkl")
    assert output.excerpt(4) == shorten_reference("ab", "kl")


def shorten_reference(head: str, tail: str) -> str:
    output = Output(1)
    output.feed(b"xyz")
    return output.excerpt(2).replace("x", head, 1)[:-1] + tail
