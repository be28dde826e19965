"""Loop detection: the same step more than five times among the last ten."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import call_part, message, result_part, text_part
from holdfast.domain.messages import Message
from holdfast.engine.agent_loop import WINDOW, is_repeating, signature

A, B = b"a", b"b"


def step(*calls: tuple[str, str, str]) -> bytes | None:
    """Build a step from calls given as name, input and result."""
    made = [call_part(f"c{number}", input, name=name) for number, (name, input, _) in enumerate(calls)]
    results = [message("tool", result_part(f"c{number}", content)) for number, (_, _, content) in enumerate(calls)]
    return signature(message("assistant", text_part("so"), *made), results)


def test_the_same_step_has_the_same_signature() -> None:
    assert step(("view", "{}", "x")) == step(("view", "{}", "x"))


def test_ids_and_texts_do_not_matter() -> None:
    one = signature(message("assistant", text_part("a"), call_part("c1")), [message("tool", result_part("c1", "x"))])
    other = signature(message("assistant", text_part("b"), call_part("c2")), [message("tool", result_part("c2", "x"))])
    assert one == other


@pytest.mark.parametrize(
    "other",
    [
        (("view", "{}", "y"),),
        (("view", '{"a":1}', "x"),),
        (("ls", "{}", "x"),),
        (("view", "{}", "x"), ("view", "{}", "x")),
        (("view{}", "", "x"),),
        (("view", "{}x", ""),),
    ],
)
def test_a_different_step_has_a_different_signature(other: tuple[tuple[str, str, str], ...]) -> None:
    assert step(*other) != step(("view", "{}", "x"))


def test_results_are_matched_by_id_not_by_order() -> None:
    assistant = message("assistant", call_part("c1"), call_part("c2"))
    results: list[Message] = [message("tool", result_part("c1", "x")), message("tool", result_part("c2", "y"))]
    assert signature(assistant, results) == signature(assistant, results[::-1])


def test_step_without_calls_has_no_signature() -> None:
    assert signature(message("assistant", text_part("hi")), []) is None


def test_fewer_than_ten_steps_are_never_a_loop() -> None:
    assert not is_repeating([A] * (WINDOW - 1))
    assert is_repeating([A] * WINDOW)


def test_five_repetitions_are_tolerated_six_are_not() -> None:
    assert not is_repeating([A] * 5 + [B] * 5)
    assert is_repeating([A] * 6 + [B] * 4)
    assert is_repeating([A, B, A, B, A, A, B, A, B, A])


def test_steps_without_calls_do_not_count() -> None:
    assert not is_repeating([None] * 20)
    assert not is_repeating([None] * 5 + [A] * 5)


def test_only_the_last_ten_steps_count() -> None:
    assert not is_repeating([A] * 6 + [bytes([number]) for number in range(5)])


@settings(deadline=None)
@given(st.lists(st.sampled_from([A, B, b"c", None]), max_size=25))
def test_loop_rule_on_random_steps(signatures: list[bytes | None]) -> None:
    last = signatures[-WINDOW:]
    expected = len(signatures) >= WINDOW and any(last.count(item) > 5 for item in (A, B, b"c"))
    assert is_repeating(signatures) == expected
