"""The scripted model: its script, its failures, and the end of its streams."""

from collections.abc import Iterable
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import message, request_of, text_part
from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import ToolCallId
from holdfast.domain.model_requests import (
    FinishedPart,
    ModelRequest,
    ReasoningDelta,
    ReasoningSignature,
    StreamPart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsagePart,
)
from holdfast.domain.usage import Usage
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, ScriptedModels, Step, Think, tokens_of

REQUEST = request_of([message("user", text_part("hi"))])


async def play(model: ScriptedModel, request: ModelRequest = REQUEST) -> list[StreamPart]:
    return [part async for part in model.stream(request)]


async def parts_of(*steps: Step) -> list[StreamPart]:
    return await play(ScriptedModel(steps))


@settings(deadline=None)
@given(st.text(st.sampled_from("ab \n"), max_size=30))
def test_words_yield_the_text(text: str) -> None:
    tokens = list(tokens_of(text))
    assert "".join(tokens) == text
    assert all(tokens)
    assert all(" " not in token[1:] for token in tokens)


async def test_text_is_streamed_word_by_word() -> None:
    assert await parts_of(Step((Say("to be or"),))) == [
        TextDelta("to"), TextDelta(" be"), TextDelta(" or"), FinishedPart("stop"),
    ]  # fmt: skip


async def test_reasoning_may_be_signed() -> None:
    assert await parts_of(Step((Think("h m", "sig"), Think("x"), Say("a")))) == [
        ReasoningDelta("h"), ReasoningDelta(" m"), ReasoningSignature("sig"), ReasoningDelta("x"), TextDelta("a"),
        FinishedPart("stop"),
    ]  # fmt: skip


async def test_a_tool_call_is_streamed_in_parts() -> None:
    assert await parts_of(Step((Call("view", '{"a":1}', ToolCallId("c1")),))) == [
        ToolCallStart(ToolCallId("c1"), "view"),
        ToolCallDelta(ToolCallId("c1"), '{"a'),
        ToolCallDelta(ToolCallId("c1"), '":1}'),
        ToolCallEnd(ToolCallId("c1")),
        FinishedPart("tool_calls"),
    ]


async def test_calls_get_unique_ids() -> None:
    model = ScriptedModel([Step((Call("a"), Call("b"))), Step((Call("c"),))])
    parts = [*await play(model), *await play(model)]
    ids = [part.id for part in parts if isinstance(part, ToolCallStart)]
    assert len(set(ids)) == 3


async def test_usage_is_reported_if_present() -> None:
    assert UsagePart(Usage(1, 2)) in await parts_of(Step((Say("a"),), Usage(1, 2)))
    assert not any(isinstance(part, UsagePart) for part in await parts_of(Step((Say("a"),))))


async def test_explicit_finish_reason_is_used() -> None:
    assert (await parts_of(Step((Call("a"),), finish="length")))[-1] == FinishedPart("length")
    assert await parts_of(Step((), finish="other")) == [FinishedPart("other")]


async def test_steps_are_played_in_order_until_the_script_ends() -> None:
    model = ScriptedModel([Step((Say("one"),)), Step((Say("two"),))])
    assert [(await play(model))[0] for _ in range(2)] == [TextDelta("one"), TextDelta("two")]
    with pytest.raises(ProviderError, match="over"):
        await play(model)
    assert model.open_streams == 0
    assert model.requests == [REQUEST] * 3


async def test_script_may_use_the_request() -> None:
    model = ScriptedModel(lambda request: Step((Say(f"{len(request.messages)}"),)))
    assert (await play(model))[0] == TextDelta("1")


async def test_step_can_fail() -> None:
    model = ScriptedModel([Step((Say("a b"), Fail("gone"), Say("never")))])
    stream = model.stream(REQUEST)
    assert [await anext(stream), await anext(stream)] == [TextDelta("a"), TextDelta(" b")]
    with pytest.raises(ProviderError, match="gone") as caught:
        await anext(stream)
    assert caught.value.title == "Scripted failure"
    assert model.open_streams == 0


async def test_step_can_end_the_stream() -> None:
    assert await parts_of(Step((Say("a"), Fail(hangs_up=True), Say("never")), Usage(1))) == [TextDelta("a")]


async def test_ending_the_iteration_closes_the_stream() -> None:
    model = ScriptedModel([Step((Say("a b c"),))])
    async with aclosing(model.stream(REQUEST)) as stream:
        assert await anext(stream) == TextDelta("a")
        assert model.open_streams == 1
    assert model.open_streams == 0


async def test_pause_is_called_after_each_part() -> None:
    pauses: list[float] = []

    def pause() -> float:
        pauses.append(0.0)
        return 0.0

    model = ScriptedModel([Step((Say("a b"),))], pause=pause)
    assert len(await play(model)) == len(pauses) == 3


async def test_the_model_identifies_itself_as_scripted() -> None:
    assert ScriptedModel([]).info.model == "scripted"


def words_of(parts: Iterable[StreamPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


async def test_large_and_small_model() -> None:
    large, small = ScriptedModel([]), ScriptedModel([])
    both = ScriptedModels(large, small)
    assert (await both.large(), await both.small()) == (large, small)
    alone = await ScriptedModels(large).small()
    for _ in range(2):
        assert words_of(await play(alone)) == "A scripted conversation"
