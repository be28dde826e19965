"""The agent loop: when a turn continues or ends, and the order of its events."""

import asyncio
from collections.abc import AsyncGenerator
from itertools import count

import msgspec
import pytest

from engine.helpers import PATIENT, fixed_tool, info, results_of, run_to_end, texts_of
from holdfast.domain.errors import ProviderError
from holdfast.domain.events import Event, MessageEvent, RunEvent, SessionEvent
from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import FinishReason, text_of
from holdfast.domain.model_requests import FinishedPart, ModelInfo, ModelRequest, StepFinish, StreamPart, TextDelta
from holdfast.domain.usage import Price, Usage
from holdfast.engine.ports import Model
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.settings import EngineSettings, Limits
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import Gate, GatedModel, GatedTool
from holdfast.testing.harness import CountingClock, FixedModels, Harness

DONE = Step((Say("done"),))
AGAIN = Step((Call("tool"),))


def endless_calls(request: ModelRequest) -> Step:
    """Call the tool in each step, with new arguments."""
    return Step((Call("tool", f'{{"n":{len(request.messages)}}}'),))


def settings_with(limits: Limits) -> EngineSettings:
    return msgspec.structs.replace(PATIENT, limits=limits)


# End of a step.


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("tool_calls", "tool_use"),
        ("content_filter", "content_filter"),
        ("other", "unknown"),
    ],
)
async def test_each_finish_has_its_reason(finish: StepFinish, reason: FinishReason) -> None:
    model = ScriptedModel([Step((Say("hi"),), finish=finish)])
    harness = await run_to_end(model)
    assert await harness.finishes() == [reason]
    assert (harness.end_of("r1").outcome, harness.end_of("r1").text) == ("completed", "hi")
    assert len(model.requests) == 1


async def test_a_step_with_calls_is_followed_by_another() -> None:
    model = ScriptedModel(
        [Step((Say("let me look"), Call("tool"))), Step((Think("hm"), Say("I see"), Call("tool"))), DONE]
    )
    harness = await run_to_end(model, fixed_tool("tool"))
    await harness.assert_valid(model.requests)
    assert await harness.finishes() == ["tool_use", "tool_use", "end_turn"]
    assert [len(request.messages) for request in model.requests] == [1, 3, 5]
    assert harness.end_of("r1").text == "done"
    assert harness.end_of("r1").message_id == (await harness.messages())[-1].id
    assert (await harness.run("r1")).step == 3


async def test_request_contains_prompt_tools_and_limits() -> None:
    model = ScriptedModel([DONE], info=ModelInfo("test", "m", max_output_tokens=77))
    harness = await run_to_end(model, fixed_tool("tool"), path="/somewhere")
    (request,) = model.requests
    assert request.session_id == harness.session
    assert "/somewhere" in request.system
    assert [spec.name for spec in request.tools] == ["tool"]
    assert request.max_output_tokens == 77
    answer = (await harness.messages())[-1]
    assert (answer.provider, answer.model) == ("test", "m")


# Failures.


async def test_stream_that_ends_without_output_fails_the_run() -> None:
    once = msgspec.structs.replace(PATIENT, retries=RetryPolicy(most=0))
    harness = await run_to_end(
        ScriptedModel([Step((Think("hm"), Say("I was about"), Fail(hangs_up=True)))]), settings=once
    )
    end = harness.end_of("r1")
    assert (end.outcome, end.text, end.cancelled) == ("failed", "I was about", False)
    assert end.error
    assert await harness.finishes() == ["error"]


async def test_a_provider_error_has_title_and_details() -> None:
    harness = await run_to_end(ScriptedModel([Step((Say("so far"), Fail("too many requests")))]))
    finish = (await harness.messages())[-1].finish
    assert finish is not None
    assert (finish.reason, finish.message, finish.details) == ("error", "Scripted failure", "too many requests")
    assert (harness.end_of("r1").error, harness.end_of("r1").text) == ("too many requests", "so far")
    assert (await harness.run("r1")).error == "too many requests"
    assert [notice.type for notice in harness.notices()] == ["error", "agent_finished"]


async def test_an_error_with_open_calls_leaves_results() -> None:
    tool = fixed_tool("tool")
    harness = await run_to_end(ScriptedModel([Step((Call("tool"), Fail()))]), tool)
    assert tool.started == 0
    assert [result.is_error for result in results_of(await harness.messages())] == [True]


async def test_an_error_in_a_later_step_keeps_the_earlier_ones() -> None:
    harness = await run_to_end(ScriptedModel([AGAIN, Step((Fail(),))]), fixed_tool("tool"))
    assert await harness.finishes() == ["tool_use", "error"]
    assert [message.role for message in await harness.messages()] == ["user", "assistant", "tool", "assistant"]


async def test_an_unusable_model_fails_the_run_with_an_error_message() -> None:
    """C-22."""
    harness = await run_to_end(FixedModels(ProviderError("no key", title="Not configured")))
    user, answer = await harness.messages()
    assert text_of(user) == "go"
    assert answer.finish is not None
    assert (answer.finish.message, answer.finish.details) == ("Not configured", "no key")
    assert harness.end_of("r1").outcome == "failed"


async def test_an_internal_error_is_shown_without_its_details() -> None:
    def broken(_: ModelRequest) -> Step:
        raise ZeroDivisionError("secret")

    harness = await run_to_end(ScriptedModel(broken))
    assert harness.end_of("r1").outcome == "failed"
    assert "secret" not in harness.end_of("r1").error


# Loops and limits.


async def test_loop_of_identical_steps_ends_the_turn() -> None:
    """After ten steps, six of them identical, the turn ends as if the model had finished."""
    model = ScriptedModel(lambda _: AGAIN)
    harness = await run_to_end(model, fixed_tool("tool"))
    assert len(model.requests) == 10
    assert harness.end_of("r1").outcome == "completed"
    assert await harness.finishes() == ["tool_use"] * 10


async def test_steps_with_different_results_do_not_end_the_turn() -> None:
    count = 0

    def script(_: ModelRequest) -> Step:
        nonlocal count
        count += 1
        return DONE if count > 30 else Step((Call("tool", f'{{"n":{count % 2}}}'),))

    harness = await run_to_end(ScriptedModel(script), fixed_tool("tool"))
    assert harness.end_of("r1").text == "done"


async def test_step_limit_ends_the_run() -> None:
    model = ScriptedModel(endless_calls)
    harness = await run_to_end(model, fixed_tool("tool"), settings=settings_with(Limits(steps=3)))
    assert len(model.requests) == 3
    assert harness.end_of("r1").outcome == "failed"
    assert harness.end_of("r1").error.startswith("limit")
    assert await harness.finishes() == ["tool_use"] * 3 + ["error"]


async def test_time_limit_ends_the_run() -> None:
    harness = await run_to_end(
        ScriptedModel(endless_calls), fixed_tool("tool"), settings=settings_with(Limits(minutes=0.0001))
    )
    assert harness.end_of("r1").error.startswith("limit")


async def test_wall_clock_jump_does_not_count_for_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example after a laptop was suspended overnight."""
    days = count(step=86_400_000)
    monkeypatch.setattr(CountingClock, "now_ms", lambda _: next(days))
    harness = await run_to_end(
        ScriptedModel([AGAIN, DONE]), fixed_tool("tool"), settings=settings_with(Limits(minutes=480))
    )
    assert harness.end_of("r1").outcome == "completed"


async def test_cost_limit_ends_the_run() -> None:
    usage = Usage(output_tokens=400_000)
    model = ScriptedModel(lambda request: Step(endless_calls(request).acts, usage), info=info(price=Price(output=1.0)))
    harness = await run_to_end(model, fixed_tool("tool"), settings=settings_with(Limits(cost=1.0)))
    assert len(model.requests) == 3
    assert harness.end_of("r1").error.startswith("limit")


async def test_limits_of_zero_are_unlimited() -> None:
    harness = await run_to_end(
        ScriptedModel([AGAIN, DONE]), fixed_tool("tool"), settings=settings_with(Limits(0, 0.0, 0.0))
    )
    assert harness.end_of("r1").outcome == "completed"


async def test_call_ids_repeated_by_the_model_are_made_unique() -> None:
    """Clients match results by call id: an id that the session has seen is not used again."""
    call = Step((Call("tool", id=ToolCallId("call_1")),))
    model = ScriptedModel([call, DONE, call, call, DONE])
    harness = await Harness.open(model, tools=[fixed_tool("tool")])
    for run in ("r1", "r2"):
        await harness.prompt("go", run)
        await harness.wait_until_idle()
    messages = await harness.ledger.messages(harness.workspace.record.id, harness.session)
    calls = [call.id for message in messages for call in message.tool_calls]
    assert calls == ["call_1", "call_1-2", "call_1-3"]
    assert [result.tool_call_id for message in messages for result in message.tool_results] == calls
    await harness.assert_valid(model.requests)


# Folded prompts.


async def test_a_folded_prompt_is_in_the_next_request() -> None:
    tool = GatedTool("tool")
    model = ScriptedModel([AGAIN, DONE])
    harness = await Harness.open(model, tools=[tool])
    await harness.prompt("go", "r1")
    await tool.gate.reached.wait()
    await harness.prompt("and quickly")
    await harness.prompt("please")
    tool.gate.open()
    await harness.wait_until_idle()
    assert texts_of(model.requests[0].messages, "user") == ["go"]
    assert texts_of(model.requests[1].messages, "user") == ["go", "and quickly", "please"]
    assert await harness.outline() == [
        "user:go", "assistant:[tool]", "tool:tool done", "user:and quickly", "user:please", "assistant:done",
    ]  # fmt: skip
    await harness.assert_valid(model.requests)


# Published events.


def name_of(event: Event) -> str:
    match event:
        case MessageEvent(change=change):
            end = change.object.finish
            return f"{change.object.role} {change.type}{' ' + end.reason if end else ''}"
        case SessionEvent(change=change):
            return f"session {change.type}"
        case RunEvent(change=change):
            return f"run {change.type}"
        case _:
            return type(event).__name__


async def test_the_order_of_events_in_a_turn() -> None:
    harness = await run_to_end(ScriptedModel([Step((Think("hm"), Say("hi"), Call("tool"))), DONE]), fixed_tool("tool"))
    events = [name_of(event) for number, event in harness.published.events if number is not None]
    assert events[1:] == [
        "run created", "run updated", "user created stop",
        "run updated", "assistant created",
        "assistant updated", "assistant updated", "assistant updated", "assistant updated",
        "tool created stop", "session updated", "assistant updated tool_use",
        "run updated", "assistant created",
        "assistant updated end_turn", "session updated", "RunCompleteEvent",
    ]  # fmt: skip


async def test_call_is_stored_before_it_runs() -> None:
    """After a crash the call is known, whatever its effects were."""
    tool = GatedTool("tool")
    harness = await Harness.open(ScriptedModel([AGAIN, DONE]), tools=[tool])
    await harness.prompt("go", "r1")
    await tool.gate.reached.wait()
    (call,) = (await harness.messages())[-1].tool_calls
    assert call.finished
    tool.gate.open()
    await harness.wait_until_idle()


# Cancelling.


class Endless:
    """A model that streams without a pause for very long."""

    info = ModelInfo("test", "endless")

    def __init__(self) -> None:
        self.is_streaming = False
        self.started = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        self.is_streaming = True
        self.started.set()
        try:
            for _ in range(50_000):
                yield TextDelta("and ")
            yield FinishedPart("stop")
        finally:
            self.is_streaming = False


async def test_a_model_that_never_pauses_can_be_cancelled() -> None:
    model = Endless()
    harness = await Harness.open(model, settings=PATIENT)
    await harness.prompt("go", "r1")
    await model.started.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert not model.is_streaming
    assert harness.end_of("r1").outcome == "cancelled"
    assert 2 < len(harness.end_of("r1").text.split()) < 5_000


@pytest.mark.parametrize("after", range(6))
async def test_a_cancel_closes_the_providers_stream(after: int) -> None:
    """R4: at any point of the response."""
    step = Step((Think("h m", "sig"), Say("a b"), Call("tool")))
    model = GatedModel(ScriptedModel([step]), after=after)
    model.midway.shut()
    harness = await Harness.open(model, tools=[fixed_tool("tool")], settings=PATIENT)
    await harness.prompt("go", "r1")
    await model.midway.reached.wait()
    assert model.open_streams == 1
    await harness.cancel()
    await harness.wait_until_idle()
    assert model.open_streams == 0
    assert await harness.finishes() == ["canceled"]
    assert harness.notices()[0].type == "agent_finished"
    await harness.assert_valid()


class SlowModels(FixedModels):
    """Models whose lookup waits at a gate."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.gate = Gate()

    async def large(self) -> Model:
        await self.gate()
        return await super().large()


async def test_cancel_before_the_response_leaves_a_canceled_turn() -> None:
    """C-38: the run has started, its response has not."""
    model = ScriptedModel([DONE])
    models = SlowModels(model)
    harness = await Harness.open(models, settings=PATIENT)
    await harness.prompt("go", "r1")
    await models.gate.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert await harness.outline() == ["user:go", "assistant:"]
    assert await harness.finishes() == ["canceled"]
    assert model.requests == []
    assert [notice.type for notice in harness.notices()] == ["agent_finished"]
    await harness.assert_valid()


async def test_parts_after_the_end_of_a_response_are_ignored() -> None:
    class Chatty(Endless):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
            yield TextDelta("hi")
            yield FinishedPart("stop")
            yield TextDelta("!")

    harness = await run_to_end(Chatty())
    assert harness.end_of("r1").text == "hi!"
