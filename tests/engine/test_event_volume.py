"""C-50: bytes stored and published for a response are proportional to its length. R7: cancels at any moment."""

import asyncio
import random

import pytest

from engine.helpers import PATIENT, RecordingLedger, fixed_tool, run_other_tasks, run_to_end, size_of_events
from holdfast.domain.events import MessageDeltaEvent, MessageEvent, MessagePartEvent
from holdfast.domain.message_merge import grow, text_length
from holdfast.domain.messages import Message, text_of
from holdfast.engine.settings import EngineSettings, Pace
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import GatedModel
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import run_seeded


async def volume_of(step: Step) -> tuple[int, int]:
    """Return the bytes stored and the bytes published for this step."""
    ledger = RecordingLedger()
    harness = await run_to_end(ScriptedModel([step, Step((Say("done"),))]), fixed_tool("tool"), ledger=ledger)
    return ledger.size, size_of_events(harness.published.events)


def words(count: int) -> str:
    return "".join(f" word{number:05}" for number in range(count))


@pytest.mark.parametrize("kind", [Say, Think])
async def test_bytes_grow_linearly_with_the_words(kind: type[Say] | type[Think]) -> None:
    """C-50."""
    small = await volume_of(Step((kind(words(500)),)))
    large = await volume_of(Step((kind(words(5_000)),)))
    for few, many in zip(small, large, strict=True):
        assert many < 11 * few
    assert large[0] < 5 * len(words(5_000)) + 10_000, "written once as it grows, once whole, and in the end"


@pytest.mark.parametrize("length", [500, 5_000])
async def test_bytes_grow_linearly_with_the_calls(length: int) -> None:
    """C-50: each call changes the structure of the message; publishing all of it each time would be quadratic."""
    plain = await volume_of(Step((Say(words(length)),)))
    called = await volume_of(Step((Say(words(length)), *(Call("tool", f'{{"n":{n}}}') for n in range(50)))))
    for before, after in zip(plain, called, strict=True):
        assert after < 2 * before + 50 * 3_000


async def test_bytes_grow_linearly_with_long_arguments() -> None:
    """C-50."""

    def step(count: int) -> Step:
        return Step(tuple(Call("tool", f'{{"text":"{words(100)}","m":{n}}}') for n in range(count)))

    few, many = await volume_of(step(10)), await volume_of(step(100))
    for small, large in zip(few, many, strict=True):
        assert large < 14 * small


@pytest.mark.parametrize("pace", [Pace(seconds=3_600.0, characters=20), Pace(seconds=0.0, characters=10**9)])
async def test_streamed_text_is_stored_while_it_grows(pace: Pace) -> None:
    """After a number of characters or an interval: a crash loses no more than that."""
    model = GatedModel(ScriptedModel([Step((Say(words(10)),))]), after=9)
    model.midway.shut()
    harness = await Harness.open(model, settings=EngineSettings(titles=False, pace=pace))
    await harness.prompt("go", "r1")
    await model.midway.reached.wait()
    await run_other_tasks()
    stored = text_of((await harness.messages())[-1])
    assert words(10).startswith(stored)
    assert len(stored) >= 9 * len(words(1)) - min(20, pace.characters)
    model.midway.open()
    await harness.wait_until_idle()
    assert harness.end_of("r1").text == words(10)


@pytest.mark.parametrize("turns", [0, 1, 15])
async def test_published_deltas_add_up_to_the_stored_message(turns: int) -> None:
    """A client that folds the events of a run has the complete message at any time, however slow the store is."""

    async def pace() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    step = Step((Think("let me see", "sig"), Say(words(30)), Call("tool"), Say(words(20)), Call("tool", '{"n":1}')))
    model = ScriptedModel([step, Step((Say("so it is done"),))])
    harness = await run_to_end(model, fixed_tool("tool"), ledger=MemoryLedger(pace=pace))
    view: dict[str, Message] = {}
    for _, event in harness.published.events:
        match event:
            case MessageEvent(change=change):
                view[change.object.id] = change.object
            case MessageDeltaEvent(payload=delta):
                length = text_length(view[delta.message_id].parts[delta.part])
                assert length is not None
                assert delta.offset <= length, "a hole"
                view[delta.message_id] = grow(view[delta.message_id], [delta])
            case MessagePartEvent(payload=part):
                assert part.part <= len(view[part.message_id].parts), "a hole"
                view[part.message_id] = grow(view[part.message_id], [part])
            case _:
                pass
    assert list(view.values()) == list(await harness.messages())


def test_a_cancel_at_any_moment_leaves_a_valid_conversation() -> None:
    """R7, R4, C-45: on two hundred schedules, a cancel somewhere in a turn with thoughts, texts and tools."""

    async def scenario(rng: random.Random) -> str:
        parallel, alone = fixed_tool("tool", is_parallel=True), fixed_tool("alone")
        step = Step((Think("h m"), Say("a b"), Call("tool"), Call("alone"), Call("tool"), Call("tool")))
        model = GatedModel(ScriptedModel([step, step, Step((Say("done"),))]))
        harness = await Harness.open(model, tools=[parallel, alone], settings=PATIENT)
        wait = rng.randrange(0, 150)
        await harness.prompt("go", "r1")
        while len(harness.published.events) < wait and not harness.ends():
            await harness.workspace.engine.recorder.put(sync=False)
        await harness.cancel()
        started = (parallel.started, alone.started, len(model.requests))
        await harness.wait_until_idle()
        assert (parallel.started, alone.started, len(model.requests)) == started
        assert model.open_streams == 0
        await harness.assert_valid(model.requests)
        end = harness.end_of("r1")
        # A cancel after the response is complete, but before the run is, leaves the response unchanged.
        last = (await harness.finishes())[-1]
        assert (end.outcome, last) in {("cancelled", "canceled"), ("cancelled", "end_turn"), ("completed", "end_turn")}
        await harness.close()
        return end.outcome

    outcomes = [run_seeded(scenario, seed) for seed in range(200)]
    assert set(outcomes) == {"cancelled", "completed"}
