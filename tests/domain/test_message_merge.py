"""Folding of message deltas: duplicates are ignored, and deltas that would leave a gap are dropped."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import (
    MESSAGE,
    SESSION,
    call_part,
    deltas,
    finish_part,
    full_part,
    message,
    reasoning_part,
    split,
    text_part,
    with_repeats,
)
from holdfast.domain.events import MessageDelta, MessagePart
from holdfast.domain.message_merge import grow, text_length
from holdfast.domain.messages import Part

EMPTY = message("assistant")
TEXT = message("assistant", text_part(""))


def delta(offset: int, text: str, part: int = 0) -> MessageDelta:
    return MessageDelta(SESSION, MESSAGE, part, offset, text)


@settings(deadline=None)
@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=12), st.integers())
def test_any_split_with_repeats_yields_the_text(text: str, cuts: list[int], seed: int) -> None:
    reported = with_repeats(deltas(split(text, cuts)), seed)
    assert grow(TEXT, reported).parts == (text_part(text),)
    assert grow(message("assistant", reasoning_part("")), reported).parts == (reasoning_part(text),)


@settings(deadline=None)
@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=8), st.integers(0, 8), st.integers())
def test_folding_in_two_parts_equals_folding_at_once(text: str, cuts: list[int], place: int, seed: int) -> None:
    reported = with_repeats(deltas(split(text, cuts)), seed)
    assert grow(grow(TEXT, reported[:place]), reported[place:]) == grow(TEXT, reported)


@settings(deadline=None)
@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=8), st.data())
def test_lost_delta_is_repaired_by_the_full_part(text: str, cuts: list[int], data: st.DataObject) -> None:
    reported = deltas(split(text, cuts))
    lost = data.draw(st.integers(0, len(reported) - 1))
    damaged = grow(TEXT, reported[:lost] + reported[lost + 1 :])
    before = "".join(item.text for item in reported[:lost])
    assert damaged.parts == ((text_part(before),) if reported[lost].text else (text_part(text),))
    assert grow(damaged, [full_part(text_part(text))]).parts == (text_part(text),)


def test_overlapping_text_is_dropped() -> None:
    grown = grow(message("assistant", text_part("hello")), [delta(3, "lo wor"), delta(0, "he"), delta(9, "ld")])
    assert grown.parts == (text_part("hello world"),)


def test_delta_after_a_gap_is_ignored() -> None:
    grown = grow(message("assistant", text_part("ab")), [delta(3, "x"), delta(2, "c"), delta(4, "y")])
    assert grown.parts == (text_part("abc"),)


def test_offsets_count_code_points() -> None:
    grown = grow(TEXT, [delta(0, "a😀"), delta(2, "é"), delta(3, "!")])
    assert grown.parts == (text_part("a😀é!"),)


def test_parts_are_added_at_the_end_and_replaced_in_their_place() -> None:
    grown = grow(
        EMPTY,
        [
            full_part(reasoning_part("a")),
            full_part(text_part("b"), 1),
            full_part(reasoning_part("c", finished_at=2), 0),
        ],
    )
    assert grown.parts == (reasoning_part("c", finished_at=2), text_part("b"))


def test_a_part_beyond_the_end_is_ignored() -> None:
    assert grow(EMPTY, [full_part(text_part("x"), 1), delta(0, "y"), delta(0, "y", 5)]).parts == ()


def test_full_part_replaces_earlier_deltas() -> None:
    grown = grow(TEXT, [delta(0, "wrong"), full_part(text_part("ri")), delta(2, "ght")])
    assert grown.parts == (text_part("right"),)


def test_deltas_are_applied_to_their_parts() -> None:
    start = message("assistant", reasoning_part("a"), text_part("b"))
    assert grow(start, [delta(1, "1", 0), delta(1, "2", 1), delta(2, "3", 0)]).parts == (
        reasoning_part("a13"),
        text_part("b2"),
    )


@pytest.mark.parametrize("part", [call_part("c1"), finish_part()])
def test_deltas_of_other_part_types_are_ignored(part: Part) -> None:
    assert text_length(part) is None
    assert grow(message("assistant", part), [delta(0, "x")]).parts == (part,)


def test_nothing_else_of_the_message_changes() -> None:
    grown = grow(TEXT, [delta(0, "x")])
    assert (grown.id, grown.role, grown.session_id, grown.updated_at) == (TEXT.id, TEXT.role, TEXT.session_id, 1)
    assert TEXT.parts == (text_part(""),)


def test_length_of_a_growing_part() -> None:
    assert text_length(text_part("😀a")) == 2
    assert text_length(reasoning_part("abc")) == 3


def test_growth_is_linear() -> None:
    """C-50: twenty thousand words fold at once; one concatenation for each would take minutes."""
    words = [f"{number:9} " for number in range(20_000)]
    growth: list[MessageDelta | MessagePart] = [*deltas(words)]
    assert grow(TEXT, growth).parts == (text_part("".join(words)),)
