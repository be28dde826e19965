"""The keyboard between composer and request: a table shared with the page, and random typing."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client import key_focus
from holdfast.client.key_focus import SETTLE, Focus, Kind

CASES = json.loads(Path(__file__).with_name("answer_focus.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_table(case: dict[str, Any]) -> None:
    state = Focus(repeat=case.get("repeat", key_focus.REPEAT))
    for step in case["steps"]:
        state = _run(state, *step)


def _run(state: Focus, name: str, *values: Any) -> Focus:  # noqa: ANN401
    match name:
        case "appear":
            return key_focus.appear(state, *values)
        case "disappear":
            return key_focus.disappear(state)
        case "edit":
            return key_focus.edit(state, is_empty=values[0], at=values[1])
        case "tick":
            state = key_focus.tick(state, values[0])
        case "press":
            key, at, target, *more = values
            state, route = key_focus.press(state, key, at, is_repeat="repeat" in more)
            assert route.target == target
            assert [f"restores {route.restore}"] * bool(route.restore) == [item for item in more if item != "repeat"]
            return state
        case "click":
            state, route = key_focus.click(state, values[0])
            assert route.target == values[1]
            return state
        case "release":
            state, is_due = key_focus.release(state, values[0])
            assert ("enter" if is_due else "nothing") == values[1]
            return state
        case _:
            pass
    assert ("active" if state.is_active else "inactive") == values[-1]
    return state


KEYS = st.sampled_from(["text"] * 8 + ["1", "5", "other", "escape"])
Word: TypeAlias = tuple[list[tuple[int, str]], int]
PAUSES = st.integers(0, 400) | st.integers(0, 5_000)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(["approval", "question"]),
    words=st.lists(st.tuples(st.lists(st.tuples(PAUSES, KEYS)), st.integers(0, SETTLE - 1)), max_size=8),
    appearances=st.lists(st.integers(0, 8_000), min_size=1, max_size=4),
)
def test_typed_text_never_answers(kind: Kind, words: list[Word], appearances: list[int]) -> None:
    """Any pause between letters, less than 500 ms before Enter; the timer runs every 20 ms."""
    state, now, text = Focus(), 0, 0
    due = sorted(appearances)

    def pass_time(until: int) -> None:
        nonlocal state, now
        while now < until:
            now = min(now + 20, until)
            while due and due[0] <= now:
                due.pop(0)
                state = key_focus.appear(state, f"r{len(due)}", kind, now)
            state, is_due = key_focus.release(state, now)
            assert not is_due
            state = key_focus.tick(key_focus.edit(state, is_empty=not text, at=now), now)

    for letters, before_enter in words:
        for pause, key in letters:
            pass_time(now + pause)
            state, route = key_focus.press(state, key, now)
            if key == "text":
                text += 1 + len(route.restore)
            elif key.isdigit():
                # A settled question takes a digit as a choice, which answers nothing by itself.
                assert route.target == "composer" or (kind == "question" and not text)
                text += route.target == "composer"
            assert route.target == "composer" or key.isdigit()
        if not letters or all(key in ("other", "escape") for _, key in letters) or state.digits:
            continue
        pass_time(now + before_enter)
        state, route = key_focus.press(state, "enter", now)
        assert route.target == "composer"
        text = 0


@settings(max_examples=100, deadline=None)
@given(history=st.lists(st.tuples(st.integers(0, 900), KEYS), max_size=12), after=st.integers(SETTLE, 5_000))
def test_a_deliberate_answer_always_works(history: list[tuple[int, str]], after: int) -> None:
    state, now = key_focus.appear(Focus(), "a", "approval", 0), 0
    for pause, key in history:
        now += pause
        state, _ = key_focus.press(key_focus.tick(state, now), key, now)
    focused, route = key_focus.press(state, "tab", now)
    assert route.target == "focus"
    assert key_focus.press(focused, "enter", now)[1].target == "request"
    emptied = key_focus.edit(key_focus.edit(state, is_empty=False, at=now), is_empty=True, at=now)
    settled = key_focus.tick(emptied, now + after)
    assert settled.is_active
    moved, route = key_focus.press(settled, "down", now + after + 1)
    assert route.target == "request"
    assert key_focus.press(moved, "enter", now + after + 2)[1].target == "request"
