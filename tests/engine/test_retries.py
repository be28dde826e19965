"""Retries of failed provider requests; the output of a failed attempt is withdrawn first."""

import asyncio

import msgspec
import pytest

from engine.helpers import PATIENT, fixed_tool, info, message, result_part, run_to_end, text_part, texts_of
from holdfast.domain.errors import ProviderError, Trouble
from holdfast.domain.events import AgentEvent, LiveEvent
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.engine.history import conversation, shortened, size_of
from holdfast.engine.ports import Outlet
from holdfast.engine.retries import RetryPolicy, retry_delay
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.harness import FixedModels, Harness, PublishedEvents

NO_WAITS = msgspec.structs.replace(PATIENT, retries=RetryPolicy(first=0.0))
PASSING: list[Trouble] = ["busy", "connection", "cut", "stalled"]
LASTING: list[Trouble] = ["credentials", "quota", "overflow", "refused", "other"]


def failing(trouble: Trouble, text_part: str = "", retry_after: float | None = None) -> Step:
    words = (Say(text_part),) if text_part else ()
    return Step((*words, Fail(f"it is {trouble}", trouble=trouble, retry_after=retry_after)))


# The schedule.


def test_waits_double_up_to_a_bound() -> None:
    policy = RetryPolicy(most=5, first=1.0, longest=6.0)
    waits = [retry_delay(policy, ProviderError(trouble="busy"), failures) for failures in range(1, 7)]
    assert waits == [1.0, 2.0, 4.0, 6.0, 6.0, None]


@pytest.mark.parametrize("trouble", PASSING)
def test_transient_errors_are_retried(trouble: Trouble) -> None:
    assert retry_delay(RetryPolicy(), ProviderError(trouble=trouble), 1) is not None


@pytest.mark.parametrize("trouble", LASTING)
def test_lasting_errors_are_not_retried(trouble: Trouble) -> None:
    assert retry_delay(RetryPolicy(), ProviderError(trouble=trouble), 1) is None


@pytest.mark.parametrize(("retry_after", "wait"), [(0.0, 0.0), (7.5, 7.5), (60.0, 60.0), (61.0, None), (-1.0, None)])
def test_retry_after_sets_the_wait(retry_after: float, wait: float | None) -> None:
    error = ProviderError(trouble="busy", retry_after=retry_after)
    assert retry_delay(RetryPolicy(first=2.0), error, 1) == wait


# Retries in a turn.


async def test_only_the_response_of_the_successful_attempt_is_kept() -> None:
    model = ScriptedModel(
        [failing("busy"), Step((Think("hm"), Say("half an"), Fail(trouble="cut"))), Step((Say("a whole answer"),))]
    )
    harness = await run_to_end(model, settings=NO_WAITS)
    assert (harness.end_of("r1").outcome, harness.end_of("r1").text) == ("completed", "a whole answer")
    assert texts_of(await harness.messages(), "assistant") == ["a whole answer"]
    assert [request is model.requests[0] for request in model.requests] == [True, True, True]
    assert (await harness.run("r1")).step == 1
    assert [notice.type for notice in harness.notices()] == ["retrying", "retrying", "agent_finished"]


async def test_the_output_of_a_failed_attempt_is_withdrawn_durably() -> None:
    harness = await run_to_end(ScriptedModel([failing("busy", "half an"), Step((Say("whole"),))]), settings=NO_WAITS)
    answers = [event.change.object for event in harness.message_events() if event.change.object.role == "assistant"]
    assert [text_of(answer) for answer in answers] == ["", "", "whole"]
    await harness.assert_valid()


async def test_partial_output_of_the_last_attempt_is_kept_with_the_error() -> None:
    policy = msgspec.structs.replace(NO_WAITS, retries=RetryPolicy(most=2, first=0.0))
    model = ScriptedModel([failing("busy", "one"), failing("busy", "two"), failing("busy", "three")])
    harness = await run_to_end(model, settings=policy)
    assert (harness.end_of("r1").outcome, harness.end_of("r1").text) == ("failed", "three")
    assert len(model.requests) == 3
    assert await harness.finishes() == ["error"]


@pytest.mark.parametrize("trouble", ["quota", "refused", "other"])
async def test_permanent_errors_are_not_retried(trouble: Trouble) -> None:
    model = ScriptedModel([failing(trouble)])
    harness = await run_to_end(model, settings=NO_WAITS)
    assert harness.end_of("r1").error == f"it is {trouble}"
    assert len(model.requests) == 1


async def test_retry_after_of_an_hour_fails_the_run() -> None:
    model = ScriptedModel([failing("busy", retry_after=3600.0)])
    harness = await run_to_end(model, settings=NO_WAITS)
    assert harness.end_of("r1").outcome == "failed"


async def test_tools_of_an_interrupted_response_never_run_twice() -> None:
    tool = fixed_tool("tool")
    steps = [Step((Call("tool"), Fail(trouble="cut"))), Step((Call("tool"),)), Step((Say("done"),))]
    harness = await run_to_end(ScriptedModel(steps), tool, settings=NO_WAITS)
    assert tool.started == 1
    assert harness.end_of("r1").text == "done"
    await harness.assert_valid()


async def test_retries_are_counted_per_step() -> None:
    policy = msgspec.structs.replace(NO_WAITS, retries=RetryPolicy(most=1, first=0.0))
    steps = [failing("busy"), Step((Call("tool"),)), failing("busy"), Step((Say("done"),))]
    harness = await run_to_end(ScriptedModel(steps), fixed_tool("tool"), settings=policy)
    assert harness.end_of("r1").text == "done"


class RetryObserver(PublishedEvents):
    """Sets an event when a retry notice is published."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self.rang = asyncio.Event()

    def publish_live(self, event: LiveEvent) -> None:
        super().publish_live(event)
        if isinstance(event, AgentEvent) and event.change.object.type == "retrying":
            self.rang.set()


async def test_a_cancel_does_not_wait_for_the_next_attempt() -> None:
    hours = msgspec.structs.replace(PATIENT, retries=RetryPolicy(first=7200.0, longest=7200.0))
    model = ScriptedModel([failing("busy", "half an"), Step((Say("never"),))])
    harness = await Harness.open(model, settings=hours)
    bell = RetryObserver(harness.workspace.engine.outlet)
    harness.workspace.engine.outlet = bell
    await harness.prompt("go", "r1")
    await bell.rang.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "cancelled"
    assert len(model.requests) == 1
    await harness.close()


# Credentials.


async def test_new_credentials_are_tried_once() -> None:
    old, new = ScriptedModel([failing("credentials")]), ScriptedModel([Step((Say("with the new key"),))])
    harness = await run_to_end(FixedModels(old, renewed=new), settings=NO_WAITS)
    assert harness.end_of("r1").text == "with the new key"
    assert len(new.requests) == 1


async def test_run_fails_if_renewed_credentials_are_refused() -> None:
    old, new = ScriptedModel([failing("credentials")]), ScriptedModel([failing("credentials")] * 2)
    harness = await run_to_end(FixedModels(old, renewed=new), settings=NO_WAITS)
    assert (harness.end_of("r1").outcome, harness.end_of("r1").error) == ("failed", "it is credentials")
    assert len(new.requests) == 1


async def test_without_new_credentials_a_re_authenticate_notice_is_published() -> None:
    harness = await run_to_end(ScriptedModel([failing("credentials")]), settings=NO_WAITS)
    assert [notice.type for notice in harness.notices()] == ["re_authenticate", "error", "agent_finished"]
    assert harness.notices()[0].error == "it is credentials"


async def test_the_next_step_uses_the_new_credentials() -> None:
    old = ScriptedModel([failing("credentials")])
    new = ScriptedModel([Step((Call("tool"),)), Step((Say("done"),))])
    harness = await run_to_end(FixedModels(old, renewed=new), fixed_tool("tool"), settings=NO_WAITS)
    assert (len(old.requests), len(new.requests)) == (1, 2)
    assert harness.end_of("r1").text == "done"


# Conversations that are too long.


async def second_run(model: ScriptedModel, settings: EngineSettings = NO_WAITS) -> Harness:
    harness = await run_to_end(model, settings=settings)
    await harness.prompt("and now?", "r2")
    await harness.wait_until_idle()
    return harness


async def test_a_conversation_that_is_too_long_is_summarised_and_continued() -> None:
    first, summary, last = Step((Say("hello"),)), Step((Say("the summary"),)), Step((Say("here I am"),))
    model = ScriptedModel([first, failing("overflow"), summary, last])
    harness = await second_run(model)
    assert (harness.end_of("r2").outcome, harness.end_of("r2").text) == ("completed", "here I am")
    assert "the summary" in text_of(model.requests[-1].messages[0])
    assert "and now?" in text_of(model.requests[-1].messages[0])
    await harness.assert_valid(model.requests)
    await harness.close()


async def test_second_overflow_after_a_summary_fails_the_run() -> None:
    steps = [Step((Say("hello"),)), failing("overflow"), Step((Say("the summary"),)), failing("overflow")]
    harness = await second_run(ScriptedModel(steps))
    assert harness.end_of("r2").outcome == "failed"
    assert "Shorten the prompt" in harness.end_of("r2").error
    await harness.close()


async def test_a_prompt_that_is_too_long_by_itself_is_not_summarised() -> None:
    model = ScriptedModel([failing("overflow")])
    harness = await run_to_end(model, settings=NO_WAITS)
    assert "Shorten the prompt" in harness.end_of("r1").error
    assert len(model.requests) == 1


async def test_overflow_without_automatic_summaries_fails_the_run() -> None:
    model = ScriptedModel([Step((Say("hello"),)), failing("overflow")])
    harness = await second_run(model, msgspec.structs.replace(NO_WAITS, auto_summarize=False))
    assert "Shorten the prompt" in harness.end_of("r2").error
    await harness.close()


async def test_a_summary_that_does_not_fit_is_made_of_less() -> None:
    sizes: list[int] = []
    early = iter([Step((Call("tool"),)), Step((Say("seen"),)), failing("overflow"), Step((Say("fits"),))])

    def script(request: ModelRequest) -> Step:
        if request.tools:
            return next(early)
        sizes.append(size_of(request.messages))
        return failing("overflow") if sizes[-1] > 4_000 else Step((Say("the summary"),))

    harness = await run_to_end(ScriptedModel(script), fixed_tool("tool", "x" * 20_000), settings=NO_WAITS)
    await harness.prompt("and now?", "r2")
    await harness.wait_until_idle()
    assert harness.end_of("r2").text == "fits"
    assert sizes[0] > 20_000
    assert sizes[-1] < 4_000
    await harness.close()


def test_shortened_conversation_is_valid() -> None:
    turns = [
        item
        for number in range(20)
        for item in (
            message("user", text_part(f"question {number} " * 20), id=f"u{number}"),
            message("assistant", text_part(f"answer {number} " * 20), id=f"a{number}"),
        )
    ]
    shorter = shortened(turns)
    assert size_of(shorter) < 0.6 * size_of(turns)
    assert shorter[0] == turns[0]
    assert shorter[-1] == turns[-1]
    assert conversation(shorter, info())[-1].role == "assistant"


def test_long_results_are_removed_first() -> None:
    turns = [message("user", text_part("go")), message("tool", result_part("c1", "x" * 50_000))]
    shorter = shortened(turns)
    assert len(shorter) == 2
    assert size_of(shorter) < 2_100


def test_a_short_conversation_cannot_be_shortened() -> None:
    turns = [message("user", text_part("go"))]
    assert shortened(turns) == turns
