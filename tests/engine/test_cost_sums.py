"""The cost of a session is the sum of all responses that were reported, whatever became of them; so is the limit's."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from engine.helpers import answering, virtual_seconds
from engine.priced_models import Meter, MeteredModel, Part, Script, Wait, broken, said, used
from holdfast.domain.ids import RunId, SessionId, is_subagent_session
from holdfast.domain.ledger import EndRun, PatchSession, PutMessage
from holdfast.domain.model_requests import ModelRequest, UsagePart
from holdfast.domain.runs import Prompt
from holdfast.domain.sessions import Session
from holdfast.domain.tools import SubagentTask, ToolContext, ToolOutcome
from holdfast.domain.usage import cost_of
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings, Limits
from holdfast.testing.gates import GatedLedger, GatedTool, SimpleTool, start
from holdfast.testing.harness import FixedModels, FixedTools, Harness
from holdfast.testing.seeded_loop import in_virtual_time, run_seeded

SETTINGS = EngineSettings(titles=False, grace=0.5, retries=RetryPolicy(most=3, first=0.1))


async def send(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
    return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent")))


AGENT = SimpleTool("agent", send, is_parallel=True)


async def opened(
    models: FixedModels,
    *tools: SimpleTool,
    settings: EngineSettings = SETTINGS,
    ledger: GatedLedger | None = None,
    ids: str = "id",
) -> Harness:
    harness = await Harness.open(
        models, tools=[*tools, answering("tool"), AGENT], settings=settings, ledger=ledger, ids=ids
    )
    harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools([answering("tool"), AGENT])))
    return harness


async def stored(harness: Harness, session: SessionId) -> Session:
    found = await harness.ledger.session(harness.workspace.record.id, session)
    assert found is not None
    return found


async def check(harness: Harness, meter: Meter) -> None:
    """Each session costs what was reported in it and below it."""
    sessions = (await harness.ledger.snapshot(harness.workspace.record.id, None)).sessions
    above = {item.id: item.parent_session_id for item in sessions}
    due = dict.fromkeys(above, 0.0)
    for spent_in, cost in meter.cost.items():
        payer = spent_in
        while payer:
            due[payer] += cost
            payer = above[payer] if is_subagent_session(payer) else SessionId("")
    assert {item.id: pytest.approx(item.cost) for item in sessions} == due


def in_order(*answers: Sequence[Part]) -> Script:
    rest = iter(answers)
    return lambda _: next(rest)


LONG = said(1, calls=["tool"] * 4)
FATES: dict[str, list[Sequence[Part]]] = {
    "one answer": [said(1)],
    "two reports of one answer": [[UsagePart(used(3)), *said(1)]],
    "steps": [said(1, calls=["tool"]), said(2, calls=["tool", "tool"]), said(3)],
    "calls that are not run": [said(1, "length", calls=["tool"])[:-1] + said(2, "length")[-1:]],
    "busy": [broken(1, "busy"), broken(2, "busy", early=True), said(3)],
    "cut off": [said(1, None), said(2)],
    "busy to the end": [broken(number, "busy") for number in (1, 2, 3, 4)],
    "refused": [said(1, calls=["tool"]), broken(2, "other")],
    "refused before a word": [broken(1, "other", early=True)],
    "new credentials": [broken(1, "credentials"), said(2)],
    "too long": [said(1, calls=["tool"]), broken(2, "overflow"), said(3), said(4)],
    "too long for its summary": [LONG, broken(2, "overflow"), broken(3, "overflow"), said(4), said(5)],
    "summary that fails": [said(1, calls=["tool"]), broken(2, "overflow"), broken(3, "other")],
    "empty summary": [said(1, calls=["tool"]), broken(2, "overflow"), [UsagePart(used(3)), said(1)[-1]]],
    "sub-agent": [said(1, calls=["agent"]), said(2, calls=["tool"]), said(3), said(4)],
    "sub-agent that fails": [said(1, calls=["agent"]), said(2, calls=["tool"]), broken(3, "other"), said(4)],
    "sub-agent of a sub-agent": [said(1, calls=["agent"]), said(2, calls=["agent"]), said(3), said(4), said(5)],
    "unknown tool": [said(1, calls=["nowhere"]), said(2)],
}


@pytest.mark.parametrize("fate", FATES)
def test_a_run_costs_all_that_was_reported(fate: str) -> None:
    async def scene() -> None:
        meter = Meter()
        script = in_order(*FATES[fate])
        model, renewed = MeteredModel(meter, script), MeteredModel(meter, script)
        harness = await opened(FixedModels(model, renewed=renewed))
        await harness.prompt("go", "r1")
        await harness.quiet()
        assert len(model.requests) + len(renewed.requests) == len(FATES[fate]), "not every answer was asked for"
        assert meter.total > 0
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scene)


@pytest.mark.parametrize("way", ["cancel", "close"])
@pytest.mark.parametrize("where", ["answer", "summary", "retry", "sub-agent", "below", "tool"])
def test_a_cancelled_run_costs_what_was_reported(where: str, way: str) -> None:
    """Also that of an answer that had not ended."""
    held: list[Part] = [*said(9)[:-1], Wait()]
    scripts: dict[str, list[Sequence[Part]]] = {
        "answer": [said(1, calls=["tool"]), held],
        "summary": [said(1, calls=["tool"]), broken(2, "overflow"), held],
        "retry": [broken(1, "busy", early=True), held],
        "sub-agent": [said(1, calls=["agent"]), said(2, calls=["tool"]), held],
        "below": [said(1, calls=["agent"]), said(2, calls=["agent"]), held],
        "tool": [said(1, calls=["gated"])],
    }

    async def scene() -> None:
        meter = Meter()
        gated = GatedTool("gated")
        harness = await opened(FixedModels(MeteredModel(meter, in_order(*scripts[where]))), gated)
        await harness.prompt("go", "r1")
        await (gated.gate.reached if where == "tool" else meter.is_waiting).wait()
        await (harness.cancel() if way == "cancel" else harness.close())
        await harness.quiet()
        assert harness.end_of("r1").outcome == ("cancelled" if way == "cancel" else "interrupted")
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scene)


def test_the_cost_of_an_answer_is_stored_before_its_tools_run() -> None:
    """A server that is killed while they run has not lost it."""

    async def scene() -> None:
        meter = Meter()
        gated = GatedTool("gated")
        harness = await opened(FixedModels(MeteredModel(meter, in_order(said(1, calls=["gated"])))), gated)
        await harness.prompt("go", "r1")
        await gated.gate.reached.wait()
        assert (await stored(harness, harness.session)).cost == pytest.approx(meter.total)
        await harness.close()

    in_virtual_time(scene)


def test_a_write_that_fails_is_paid_for_once() -> None:
    """The answer cannot be stored, so the run fails; its cost comes with its end, and only once."""

    async def scene() -> None:
        meter, ledger = Meter(), GatedLedger()
        harness = await opened(FixedModels(MeteredModel(meter, in_order(said(1, calls=["tool"])))), ledger=ledger)
        await harness.prompt("go", "r1")
        ledger.hold(PutMessage)
        ledger.refused = (PutMessage, EndRun)
        await ledger.gate.reached.wait()
        ledger.refused = ()
        ledger.gate.open()
        await asyncio.sleep(0)
        ledger.hold(PatchSession)
        await ledger.gate.reached.wait()
        ledger.refused = (PatchSession,)
        ledger.gate.open()
        await virtual_seconds(2)
        ledger.refused = ()
        await harness.quiet()
        assert harness.end_of("r1").outcome == "failed"
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scene)


TITLES: dict[str, tuple[Sequence[Part], Sequence[Part]]] = {
    "small model": (said(1), []),
    "cut off, large model": (said(1, "length"), said(2)),
    "hung up, large model": (said(1, None), said(2)),
    "neither": (broken(1, "other"), broken(2, "busy")),
}


@pytest.mark.parametrize("fate", TITLES)
def test_titles_are_paid_for(fate: str) -> None:
    async def scene() -> None:
        meter = Meter()
        small, large = TITLES[fate]
        models = FixedModels(
            MeteredModel(meter, lambda request: large if not request.tools else said(5)),
            MeteredModel(meter, lambda _: small),
        )
        harness = await opened(models, settings=EngineSettings(titles=True))
        await harness.prompt("go", "r1")
        await harness.quiet()
        await harness.workspace.engine._titler.drain()
        await check(harness, meter)
        assert (await stored(harness, harness.session)).title != "Test"
        await harness.close()

    in_virtual_time(scene)


def test_a_title_that_is_cut_off_by_a_shutdown_is_paid_for() -> None:
    async def scene() -> None:
        meter = Meter()
        models = FixedModels(
            MeteredModel(meter, lambda _: said(5)), MeteredModel(meter, lambda _: [*said(1)[:-1], Wait()])
        )
        harness = await opened(models, settings=EngineSettings(titles=True))
        await harness.prompt("go", "r1")
        await harness.quiet()
        await meter.is_waiting.wait()
        await harness.close()
        assert (await stored(harness, harness.session)).title == "Test"
        await check(harness, meter)

    in_virtual_time(scene)


LIMITED: dict[str, tuple[list[Sequence[Part]], int]] = {
    "steps": ([said(1, calls=["tool"]), said(1, calls=["tool"])], 2),
    "retries": ([broken(1, "busy"), said(1, calls=["tool"])], 2),
    "cut off": ([said(1, None), said(1, calls=["tool"])], 2),
    "summary": ([said(1, calls=["tool"]), broken(1, "overflow"), said(1)], 3),
    "sub-agent": ([said(1, calls=["agent"]), said(1)], 2),
    "sub-agent that failed": ([said(1, calls=["agent"]), broken(1, "other")], 2),
    "below": ([said(1, calls=["agent"]), said(1, calls=["agent"]), said(1), said(1)], 4),
}


@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("source", LIMITED)
def test_a_limit_of_cost_counts_all_that_was_reported(source: str, is_reached: bool) -> None:
    """The run stops at exactly its limit, and goes on below it."""
    answers, count = LIMITED[source]
    each = cost_of(used(1), MeteredModel(Meter(), lambda _: []).info.price)
    limit = count * each + (0 if is_reached else 0.01)

    async def scene() -> None:
        meter = Meter()
        model = MeteredModel(meter, in_order(*answers, said(7)))
        settings = EngineSettings(titles=False, retries=SETTINGS.retries, limits=Limits(cost=limit))
        harness = await opened(FixedModels(model), settings=settings)
        await harness.prompt("go", "r1")
        await harness.quiet()
        end = harness.end_of("r1")
        if is_reached:
            assert (end.outcome, end.error) == ("failed", f"limit: the run cost ${limit:.2f}, which is its limit.")
        else:
            assert (end.outcome, end.text) == ("completed", "answer 7")
        assert len(model.requests) == len(answers) + (not is_reached)
        await harness.close()

    in_virtual_time(scene)


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_title_counts_for_the_limit_of_its_run(is_reached: bool) -> None:
    each = cost_of(used(1), MeteredModel(Meter(), lambda _: []).info.price)

    async def scene() -> None:
        meter = Meter()
        gated = GatedTool("gated")
        large = MeteredModel(meter, in_order(said(1, calls=["gated"]), said(7)))
        settings = EngineSettings(titles=True, limits=Limits(cost=2 * each + (0 if is_reached else 0.01)))
        harness = await opened(FixedModels(large, MeteredModel(meter, lambda _: said(1))), gated, settings=settings)
        await harness.prompt("go", "r1")
        await gated.gate.reached.wait()
        await harness.workspace.engine._titler.drain()
        gated.gate.open()
        await harness.quiet()
        assert harness.end_of("r1").outcome == ("failed" if is_reached else "completed")
        await harness.close()

    in_virtual_time(scene)


def test_a_limit_counts_its_own_run_only() -> None:
    async def scene() -> None:
        meter = Meter()
        limit = cost_of(used(2), MeteredModel(meter, lambda _: []).info.price)
        model = MeteredModel(meter, in_order(*[said(1, calls=["tool"]), said(1)] * 3))
        harness = await opened(FixedModels(model), settings=EngineSettings(titles=False, limits=Limits(cost=limit)))
        for number in (1, 2, 3):
            await harness.prompt("go", f"r{number}")
            await harness.quiet()
        assert [end.outcome for end in harness.ends()] == ["completed"] * 3
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scene)


def test_sessions_cost_the_sum_of_reported_responses() -> None:
    """Random answers, troubles, sub-agents, titles, stops, and prompts that join, on random schedules."""

    async def scene(dice: random.Random) -> float:
        meter = Meter()

        def script(request: ModelRequest) -> Sequence[Part]:
            number = next(meter.numbers)
            if len(meter.cost) > 6 or number > 25:
                return said(number)
            fates: list[Sequence[Part]] = [
                said(number),
                said(number, calls=["tool"] * dice.randint(1, 3)),
                said(number, calls=["agent"]),
                said(number, None),
                broken(number, dice.choice(["busy", "overflow", "credentials", "other"]), early=dice.random() < 0.5),
                [*said(number)[: dice.randint(1, 3)], Wait()],
            ]
            return dice.choices(fates, (2, 3, 2, 1, 2, 1))[0]

        models = FixedModels(
            MeteredModel(meter, script, window=dice.choice([0, 600])),
            MeteredModel(meter, script),
            renewed=MeteredModel(meter, script) if dice.random() < 0.5 else None,
        )
        settings = EngineSettings(titles=True, grace=0.5, retries=SETTINGS.retries)
        harness = await opened(models, settings=settings)
        for number in range(dice.randint(1, 3)):
            await harness.workspace.inputs.submit(Prompt(harness.session, "go", run_id=RunId(f"r{number}")))
            await asyncio.sleep(dice.random() * 0.2)
        if dice.random() < 0.5:
            await asyncio.sleep(dice.random())
            await harness.cancel()
        quiet = start(harness.quiet())
        await asyncio.wait([quiet], timeout=100)
        await harness.close()
        await quiet
        await check(harness, meter)
        return meter.total

    assert all([run_seeded(scene, seed) > 0 for seed in range(80)])
