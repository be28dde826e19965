"""The response builder: for every division of a stream, the message and the published changes agree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import call_part, json_of, message, reasoning_part, split, text_part
from holdfast.domain.events import MessageDelta, MessagePart
from holdfast.domain.ids import ToolCallId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Finish, FinishPart, Part, Reasoning, ReasoningPart, ToolCall, ToolCallPart, text_of
from holdfast.domain.model_requests import (
    FinishedPart,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    StepFinish,
    StreamPart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsagePart,
)
from holdfast.domain.usage import Usage
from holdfast.engine.response_builder import Growth, ResponseBuilder

EMPTY = message("assistant")
STOP = FinishedPart("stop")


def start(id: str, name: str = "tool") -> ToolCallStart:
    return ToolCallStart(ToolCallId(id), name)


def arguments_delta(id: str, text: str) -> ToolCallDelta:
    return ToolCallDelta(ToolCallId(id), text)


def end(id: str) -> ToolCallEnd:
    return ToolCallEnd(ToolCallId(id))


def call(id: str, *arguments: str, name: str = "tool") -> list[StreamPart]:
    return [start(id, name), *(arguments_delta(id, piece) for piece in arguments), end(id)]


def assemble(*parts: StreamPart, taken: frozenset[ToolCallId] = frozenset()) -> tuple[ResponseBuilder, list[Growth]]:
    """Return the response after these parts, and all published changes; the time is 1 until text or a call arrives,
    then 2.
    """
    assembly = ResponseBuilder(EMPTY, taken)
    growth: list[Growth] = []
    for part in parts:
        now = 1 if isinstance(part, ReasoningDelta | ReasoningSignature | RedactedReasoning) else 2
        growth += assembly.feed(part, now)
        # The published changes yield the message after every single part.
        assert grow(EMPTY, growth).parts == assembly.message().parts
    return assembly, growth


def parts_of(*parts: StreamPart) -> tuple[Part, ...]:
    return assemble(*parts)[0].message().parts


def closed_reasoning(text: str, signature: str = "") -> ReasoningPart:
    return reasoning_part(text, finished_at=2, signature=signature)


# Text.


def test_text_grows_by_deltas() -> None:
    assembly, growth = assemble(TextDelta("Hel"), TextDelta("lo 😀"), TextDelta("!"))
    assert assembly.message().parts == (text_part("Hello 😀!"),)
    assert isinstance(growth[0], MessagePart)
    assert [(item.offset, item.text) for item in growth[1:] if isinstance(item, MessageDelta)] == [
        (3, "lo 😀"),
        (7, "!"),
    ]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["\nhi"], "hi"),
        (["\n", "hi"], "hi"),
        (["", "\n", "hi"], "hi"),
        (["\n\nhi"], "\nhi"),
        (["\n", "\n", "hi"], "\nhi"),
        (["hi", "\n"], "hi\n"),
        (["h", "\ni"], "h\ni"),
    ],
)
def test_one_leading_newline_is_removed(pieces: list[str], text: str) -> None:
    assert parts_of(*map(TextDelta, pieces)) == (text_part(text),)


def test_newline_after_another_part_is_kept() -> None:
    assert parts_of(ReasoningDelta("hm"), TextDelta("\nhi")) == (closed_reasoning("hm"), text_part("\nhi"))


def test_empty_text_creates_no_part() -> None:
    assert parts_of(TextDelta(""), ReasoningDelta(""), TextDelta("\n"), STOP) == ()


# Reasoning.


def test_reasoning_is_closed_when_text_begins() -> None:
    assembly, growth = assemble(ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("hi"))
    assert assembly.message().parts == (closed_reasoning("hm"), text_part("hi"))
    assert [item.content for item in growth if isinstance(item, MessagePart)] == [
        reasoning_part("h"),
        closed_reasoning("hm"),
        text_part("hi"),
    ]


def test_reasoning_is_closed_when_a_call_begins() -> None:
    assert parts_of(ReasoningDelta("hm"), start("c")) == (closed_reasoning("hm"), call_part("c", "", finished=False))


def test_reasoning_is_closed_at_the_end() -> None:
    assert parts_of(ReasoningDelta("hm")) == (reasoning_part("hm"),)
    assert parts_of(ReasoningDelta("hm"), STOP) == (closed_reasoning("hm"),)


def test_reasoning_and_text_keep_their_order() -> None:
    parts = parts_of(ReasoningDelta("1"), TextDelta("2"), ReasoningDelta("3"), TextDelta("4"), *call("c"), STOP)
    assert parts == (closed_reasoning("1"), text_part("2"), closed_reasoning("3"), text_part("4"), call_part("c"))


def test_signatures_and_redacted_reasoning_are_kept() -> None:
    parts = parts_of(
        ReasoningDelta("hm"), ReasoningSignature("si"), ReasoningSignature("g"), RedactedReasoning("x"),
        RedactedReasoning("y"), TextDelta("hi"),
    )  # fmt: skip
    assert parts == (ReasoningPart(Reasoning("hm", "sig", 1, 2, ("x", "y"))), text_part("hi"))


def test_redacted_reasoning_alone_is_reasoning() -> None:
    assert parts_of(RedactedReasoning("x"), TextDelta("hi"))[0] == ReasoningPart(Reasoning("", "", 1, 2, ("x",)))


# Calls.


def test_arguments_are_shown_when_they_are_complete() -> None:
    assembly, growth = assemble(*call("c1", '{"a"', ":1}", name="view"))
    assert [json_of(item.content) for item in growth if isinstance(item, MessagePart)] == [
        '{"type":"tool_call","data":{"id":"c1","name":"view","input":""}}',
        '{"type":"tool_call","data":{"id":"c1","name":"view","input":"{\\"a\\":1}","finished":true}}',
    ]
    assert len(growth) == 2
    assert assembly.malformed_calls == frozenset()


def test_missing_arguments_become_an_empty_object() -> None:
    assert parts_of(*call("c1"), *call("c2", "  ")) == (call_part("c1"), call_part("c2"))


@pytest.mark.parametrize("arguments", ["{", "[1]", "null", '"text"', "1", "{}{}", "{'a':1}"])
def test_arguments_other_than_an_object_become_empty_and_are_marked(arguments: str) -> None:
    assembly, _ = assemble(*call("c1", arguments), *call("c2", '{"a":1}'))
    assert assembly.message().parts == (call_part("c1"), call_part("c2", '{"a":1}'))
    assert assembly.malformed_calls == {"c1"}


def test_calls_may_be_interleaved() -> None:
    parts = parts_of(
        start("a"),
        start("b"),
        arguments_delta("a", '{"x"'),
        arguments_delta("b", "{}"),
        arguments_delta("a", ":1}"),
        end("b"),
        end("a"),
    )
    assert parts == (call_part("a", '{"x":1}'), call_part("b"))


def test_a_call_without_an_end_is_completed_with_the_stream() -> None:
    assembly, _ = assemble(
        start("a"), arguments_delta("a", '{"x":1}'), start("b"), arguments_delta("b", "{"), FinishedPart("tool_calls")
    )
    assert assembly.message().parts == (call_part("a", '{"x":1}'), call_part("b"))
    assert assembly.malformed_calls == {"b"}


def test_incomplete_call_stays_open() -> None:
    assert parts_of(start("a"), arguments_delta("a", '{"x":1}')) == (call_part("a", "", finished=False),)


def test_ids_are_unique_within_a_turn() -> None:
    taken = frozenset({ToolCallId("a"), ToolCallId("call")})
    assembly, _ = assemble(*call("a"), *call("a"), *call("a-2"), *call(""), *call(""), taken=taken)
    ids = [made.id for made in assembly.message().tool_calls]
    assert len(set(ids) - taken) == 5
    assert all(ids)


@pytest.mark.parametrize("id", ["same", ""])
def test_calls_with_the_same_id_get_unique_ids(id: str) -> None:
    """Some providers send no ids, or the same ones again."""
    assembly, _ = assemble(
        *call(id, "{"), *call(id, '{"n":2}'), start(id), arguments_delta(id, '{"n":3}'), *call(id, '{"n":4}'), STOP
    )
    made = assembly.message().tool_calls
    assert [item.input for item in made] == ["{}", '{"n":2}', '{"n":3}', '{"n":4}']
    assert all(item.finished for item in made)
    assert assembly.malformed_calls == {made[0].id}


# Other properties.


def test_usage_and_finish_are_kept() -> None:
    assembly, growth = assemble(UsagePart(Usage(1, 2)), FinishedPart("length"))
    assert (assembly.usage, assembly.finish, growth) == (Usage(1, 2), "length", [])


def test_a_finish_part_is_last_and_optional() -> None:
    assembly, _ = assemble(TextDelta("hi"), STOP)
    assert assembly.message(Finish("end_turn", 5)).parts == (text_part("hi"), FinishPart(Finish("end_turn", 5)))
    assert assembly.message().parts == (text_part("hi"),)


def test_open_parts_return_the_current_parts() -> None:
    assembly, _ = assemble(ReasoningDelta("a"), TextDelta("b"), TextDelta("c"), start("d"))
    parts = assembly.open_parts()
    assert tuple(item.content for item in parts) == assembly.message().parts
    assert [item.part for item in parts] == [0, 1, 2]


def test_size_counts_the_text_that_was_fed() -> None:
    assembly, _ = assemble(ReasoningDelta("abc"), TextDelta("de"), *call("c", '{"a"', ":1}"))
    assert assembly.size == 3 + 2 + 7


_texts = st.text(st.sampled_from("ab \n😀"), max_size=12)
_cuts = st.lists(st.integers(0, 40), max_size=4)


@st.composite
def _acts(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Draw kinds that alternate, so that neighbouring parts are not merged."""
    kinds = draw(st.lists(st.sampled_from(["text", "think", "call"]), max_size=6))
    alternating = [kind for place, kind in enumerate(kinds) if kind == "call" or kinds[place - 1 : place] != [kind]]
    return [(kind, draw(_texts)) for kind in alternating]


def _stream(acts: list[tuple[str, str]], cuts: list[list[int]]) -> list[StreamPart]:
    parts: list[StreamPart] = []
    for number, (kind, text) in enumerate(acts):
        places = cuts[number] if cuts else []
        if kind == "text":
            parts += map(TextDelta, split(text, places))
        elif kind == "think":
            parts += map(ReasoningDelta, split(text, places))
        else:
            parts += call(f"c{number}", *split(json_of({"text": text}), places))
    return [*parts, STOP]


@settings(deadline=None)
@given(_acts(), st.lists(_cuts, min_size=6, max_size=6))
def test_message_is_independent_of_chunk_boundaries(acts: list[tuple[str, str]], cuts: list[list[int]]) -> None:
    whole, _ = assemble(*_stream(acts, []))
    pieces, _ = assemble(*_stream(acts, cuts))
    assert pieces.message() == whole.message()
    spoken = "".join(text for kind, text in acts if kind == "text")
    assert text_of(pieces.message()) in (spoken, spoken.removeprefix("\n"))


_stray: st.SearchStrategy[StreamPart] = st.one_of(
    _texts.map(TextDelta),
    _texts.map(ReasoningDelta),
    _texts.map(ReasoningSignature),
    _texts.map(RedactedReasoning),
    st.sampled_from(["a", "b", ""]).map(start),
    st.just(UsagePart(Usage(1))),
)


@settings(deadline=None)
@given(st.lists(_stray, max_size=20), st.sampled_from(["stop", "tool_calls", "other"]))
def test_published_changes_add_up_to_the_message(parts: list[StreamPart], reason: StepFinish) -> None:
    """`assembled` compares after each part."""
    assembly, _ = assemble(*parts, FinishedPart(reason))
    made = assembly.message().tool_calls
    assert all(item.finished for item in made)
    assert len({item.id for item in made}) == len(made)


@pytest.mark.parametrize("kind", [TextDelta, ReasoningDelta])
def test_published_bytes_per_token_are_constant(kind: type[TextDelta] | type[ReasoningDelta]) -> None:
    """C-50: the deltas of 20,000 words are as long as the words, plus a constant overhead each."""
    assembly = ResponseBuilder(EMPTY)
    growth = [item for number in range(20_000) for item in assembly.feed(kind(f"{number:5} "), 1)]
    assert len(growth) == 20_000
    assert sum(len(json_of(item)) for item in growth) < 20_000 * 120
    assert grow(EMPTY, growth).parts == assembly.message().parts


def test_arguments_are_not_published_before_they_are_complete() -> None:
    """C-50: a call is published twice, however many pieces its arguments have."""
    assembly = ResponseBuilder(EMPTY)
    pieces = ['{"text":"', *["word "] * 20_000, '"}']
    growth = [item for part in call("c", *pieces) for item in assembly.feed(part, 1)]
    assert len(growth) == 2
    assert assembly.message().parts == (ToolCallPart(ToolCall(ToolCallId("c"), "tool", "".join(pieces), True)),)
