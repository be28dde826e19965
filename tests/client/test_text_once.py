"""`StreamedText`: each piece of a growing text is returned exactly once."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.text_once import NewText, StreamedText


@given(text=st.text(), ranges=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))))
def test_overlapping_and_repeated_pieces_yield_the_text_once(text: str, ranges: list[tuple[int, int]]) -> None:
    streamed, shown = StreamedText(), ""
    for start, length in [*ranges, (0, len(text))]:
        new, is_restart = streamed.add(start, text[start : start + length])
        assert not is_restart
        shown += new
        assert shown == streamed.text == text[: len(shown)]
    assert shown == text


def test_a_gap_returns_nothing_until_the_complete_text_arrives() -> None:
    streamed = StreamedText()
    assert streamed.add(0, "one ") == NewText("one ")
    assert streamed.add(6, "o") == NewText("")
    assert streamed.add(0, "one two") == NewText("two")


def test_a_different_text_restarts_at_the_offset() -> None:
    streamed = StreamedText()
    streamed.add(0, "half an answer")
    assert streamed.add(5, "a loaf") == NewText("a loaf", is_restart=True)
    assert streamed.text == "half a loaf"
    assert streamed.add(0, "half") == NewText(""), "a shorter text with the same beginning is not a restart"
