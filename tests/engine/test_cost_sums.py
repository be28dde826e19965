"""The cost of a session, and the sum compared with the limit: all reported responses, whatever their outcome."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from engine.helpers import fixed_tool, sleep_virtual
from engine.priced_models import Meter, MeteredModel, Part, Script, Wait, failing_response, priced_response, usage_of
from holdfast.domain.ids import RunId, SessionId, is_subagent_session
from holdfast.domain.model_requests import ModelRequest, UsagePart
from holdfast.domain.runs import Prompt
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import EndRun, PatchSession, PutMessage
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


async def open_harness(
    models: FixedModels,
    *tools: SimpleTool,
    settings: EngineSettings = SETTINGS,
    ledger: GatedLedger | None = None,
    ids: str = "id",
) -> Harness:
    harness = await Harness.open(
        models, tools=[*tools, fixed_tool("tool"), AGENT], settings=settings, ledger=ledger, ids=ids
    )
    harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools([fixed_tool("tool"), AGENT])))
    return harness


async def stored_session(harness: Harness, session: SessionId) -> Session:
    found = await harness.ledger.session(harness.workspace.record.id, session)
    assert found is not None
    return found


async def check(harness: Harness, meter: Meter) -> None:
    """Check that each session costs the amounts reported in it and below it."""
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


LONG = priced_response(1, calls=["tool"] * 4)
OUTCOMES: dict[str, list[Sequence[Part]]] = {
    "one answer": [priced_response(1)],
    "two reports of one answer": [[UsagePart(usage_of(3)), *priced_response(1)]],
    "steps": [priced_response(1, calls=["tool"]), priced_response(2, calls=["tool", "tool"]), priced_response(3)],
    "calls that are not run": [priced_response(1, "length", calls=["tool"])[:-1] + priced_response(2, "length")[-1:]],
    "busy": [failing_response(1, "busy"), failing_response(2, "busy", early=True), priced_response(3)],
    "cut off": [priced_response(1, None), priced_response(2)],
    "busy to the end": [failing_response(number, "busy") for number in (1, 2, 3, 4)],
    "refused": [priced_response(1, calls=["tool"]), failing_response(2, "other")],
    "refused before a word": [failing_response(1, "other", early=True)],
    "new credentials": [failing_response(1, "credentials"), priced_response(2)],
    "too long": [
        priced_response(1, calls=["tool"]),
        failing_response(2, "overflow"),
        priced_response(3),
        priced_response(4),
    ],
    "too long for its summary": [
        LONG,
        failing_response(2, "overflow"),
        failing_response(3, "overflow"),
        priced_response(4),
        priced_response(5),
    ],
    "summary that fails": [
        priced_response(1, calls=["tool"]),
        failing_response(2, "overflow"),
        failing_response(3, "other"),
    ],
    "empty summary": [
        priced_response(1, calls=["tool"]),
        failing_response(2, "overflow"),
        [UsagePart(usage_of(3)), priced_response(1)[-1]],
    ],
    "sub-agent": [
        priced_response(1, calls=["agent"]),
        priced_response(2, calls=["tool"]),
        priced_response(3),
        priced_response(4),
    ],
    "sub-agent that fails": [
        priced_response(1, calls=["agent"]),
        priced_response(2, calls=["tool"]),
        failing_response(3, "other"),
        priced_response(4),
    ],
    "sub-agent of a sub-agent": [
        priced_response(1, calls=["agent"]),
        priced_response(2, calls=["agent"]),
        priced_response(3),
        priced_response(4),
        priced_response(5),
    ],
    "unknown tool": [priced_response(1, calls=["nowhere"]), priced_response(2)],
}


@pytest.mark.parametrize("ending_kind", OUTCOMES)
def test_run_cost_is_the_sum_of_all_reports(ending_kind: str) -> None:
    async def scenario() -> None:
        meter = Meter()
        script = in_order(*OUTCOMES[ending_kind])
        model, renewed = MeteredModel(meter, script), MeteredModel(meter, script)
        harness = await open_harness(FixedModels(model, renewed=renewed))
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        assert len(model.requests) + len(renewed.requests) == len(OUTCOMES[ending_kind]), (
            "not every response was requested"
        )
        assert meter.total > 0
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("way", ["cancel", "close"])
@pytest.mark.parametrize("where", ["answer", "summary", "retry", "sub-agent", "below", "tool"])
def test_cancelled_run_costs_all_its_reports(where: str, way: str) -> None:
    """Including the reports of an unfinished response."""
    held: list[Part] = [*priced_response(9)[:-1], Wait()]
    scripts: dict[str, list[Sequence[Part]]] = {
        "answer": [priced_response(1, calls=["tool"]), held],
        "summary": [priced_response(1, calls=["tool"]), failing_response(2, "overflow"), held],
        "retry": [failing_response(1, "busy", early=True), held],
        "sub-agent": [priced_response(1, calls=["agent"]), priced_response(2, calls=["tool"]), held],
        "below": [priced_response(1, calls=["agent"]), priced_response(2, calls=["agent"]), held],
        "tool": [priced_response(1, calls=["gated"])],
    }

    async def scenario() -> None:
        meter = Meter()
        gated = GatedTool("gated")
        harness = await open_harness(FixedModels(MeteredModel(meter, in_order(*scripts[where]))), gated)
        await harness.prompt("go", "r1")
        await (gated.gate.reached if where == "tool" else meter.is_waiting).wait()
        await (harness.cancel() if way == "cancel" else harness.close())
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == ("cancelled" if way == "cancel" else "interrupted")
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scenario)


def test_the_cost_of_an_answer_is_stored_before_its_tools_run() -> None:
    """A server that is killed while they run has not lost it."""

    async def scenario() -> None:
        meter = Meter()
        gated = GatedTool("gated")
        harness = await open_harness(
            FixedModels(MeteredModel(meter, in_order(priced_response(1, calls=["gated"])))), gated
        )
        await harness.prompt("go", "r1")
        await gated.gate.reached.wait()
        assert (await stored_session(harness, harness.session)).cost == pytest.approx(meter.total)
        await harness.close()

    in_virtual_time(scenario)


def test_cost_of_a_failed_write_counts_once() -> None:
    """The response cannot be stored, so the run fails; its cost is stored with its end, once."""

    async def scenario() -> None:
        meter, ledger = Meter(), GatedLedger()
        harness = await open_harness(
            FixedModels(MeteredModel(meter, in_order(priced_response(1, calls=["tool"])))), ledger=ledger
        )
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
        await sleep_virtual(2)
        ledger.refused = ()
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "failed"
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scenario)


TITLES: dict[str, tuple[Sequence[Part], Sequence[Part]]] = {
    "small model": (priced_response(1), []),
    "cut off, large model": (priced_response(1, "length"), priced_response(2)),
    "hung up, large model": (priced_response(1, None), priced_response(2)),
    "neither": (failing_response(1, "other"), failing_response(2, "busy")),
}


@pytest.mark.parametrize("ending_kind", TITLES)
def test_cost_of_titles_is_counted(ending_kind: str) -> None:
    async def scenario() -> None:
        meter = Meter()
        small, large = TITLES[ending_kind]
        models = FixedModels(
            MeteredModel(meter, lambda request: large if not request.tools else priced_response(5)),
            MeteredModel(meter, lambda _: small),
        )
        harness = await open_harness(models, settings=EngineSettings(titles=True))
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        await harness.workspace.engine._titler.drain()
        await check(harness, meter)
        assert (await stored_session(harness, harness.session)).title != "Test"
        await harness.close()

    in_virtual_time(scenario)


def test_cost_of_a_title_interrupted_by_a_shutdown_is_counted() -> None:
    async def scenario() -> None:
        meter = Meter()
        models = FixedModels(
            MeteredModel(meter, lambda _: priced_response(5)),
            MeteredModel(meter, lambda _: [*priced_response(1)[:-1], Wait()]),
        )
        harness = await open_harness(models, settings=EngineSettings(titles=True))
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        await meter.is_waiting.wait()
        await harness.close()
        assert (await stored_session(harness, harness.session)).title == "Test"
        await check(harness, meter)

    in_virtual_time(scenario)


LIMITED: dict[str, tuple[list[Sequence[Part]], int]] = {
    "steps": ([priced_response(1, calls=["tool"]), priced_response(1, calls=["tool"])], 2),
    "retries": ([failing_response(1, "busy"), priced_response(1, calls=["tool"])], 2),
    "cut off": ([priced_response(1, None), priced_response(1, calls=["tool"])], 2),
    "summary": ([priced_response(1, calls=["tool"]), failing_response(1, "overflow"), priced_response(1)], 3),
    "sub-agent": ([priced_response(1, calls=["agent"]), priced_response(1)], 2),
    "sub-agent that failed": ([priced_response(1, calls=["agent"]), failing_response(1, "other")], 2),
    "below": (
        [
            priced_response(1, calls=["agent"]),
            priced_response(1, calls=["agent"]),
            priced_response(1),
            priced_response(1),
        ],
        4,
    ),
}


@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("source", LIMITED)
def test_cost_limit_counts_all_reports(source: str, is_reached: bool) -> None:
    """The run stops exactly at its limit and continues below it."""
    answers, count = LIMITED[source]
    each = cost_of(usage_of(1), MeteredModel(Meter(), lambda _: []).info.price)
    limit = count * each + (0 if is_reached else 0.01)

    async def scenario() -> None:
        meter = Meter()
        model = MeteredModel(meter, in_order(*answers, priced_response(7)))
        settings = EngineSettings(titles=False, retries=SETTINGS.retries, limits=Limits(cost=limit))
        harness = await open_harness(FixedModels(model), settings=settings)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        end = harness.end_of("r1")
        if is_reached:
            assert (end.outcome, end.error) == ("failed", f"limit: the run cost ${limit:.2f}, which is its limit.")
        else:
            assert (end.outcome, end.text) == ("completed", "answer 7")
        assert len(model.requests) == len(answers) + (not is_reached)
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_title_counts_for_the_limit_of_its_run(is_reached: bool) -> None:
    each = cost_of(usage_of(1), MeteredModel(Meter(), lambda _: []).info.price)

    async def scenario() -> None:
        meter = Meter()
        gated = GatedTool("gated")
        large = MeteredModel(meter, in_order(priced_response(1, calls=["gated"]), priced_response(7)))
        settings = EngineSettings(titles=True, limits=Limits(cost=2 * each + (0 if is_reached else 0.01)))
        harness = await open_harness(
            FixedModels(large, MeteredModel(meter, lambda _: priced_response(1))), gated, settings=settings
        )
        await harness.prompt("go", "r1")
        await gated.gate.reached.wait()
        await harness.workspace.engine._titler.drain()
        gated.gate.open()
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == ("failed" if is_reached else "completed")
        await harness.close()

    in_virtual_time(scenario)


def test_cost_limit_applies_to_one_run() -> None:
    async def scenario() -> None:
        meter = Meter()
        limit = cost_of(usage_of(2), MeteredModel(meter, lambda _: []).info.price)
        model = MeteredModel(meter, in_order(*[priced_response(1, calls=["tool"]), priced_response(1)] * 3))
        harness = await open_harness(
            FixedModels(model), settings=EngineSettings(titles=False, limits=Limits(cost=limit))
        )
        for number in (1, 2, 3):
            await harness.prompt("go", f"r{number}")
            await harness.wait_until_idle()
        assert [end.outcome for end in harness.ends()] == ["completed"] * 3
        await check(harness, meter)
        await harness.close()

    in_virtual_time(scenario)


def test_sessions_cost_the_sum_of_reported_responses() -> None:
    """Random responses, errors, sub-agents, titles, cancels and folded prompts, on random schedules."""

    async def scenario(rng: random.Random) -> float:
        meter = Meter()

        def script(request: ModelRequest) -> Sequence[Part]:
            number = next(meter.numbers)
            if len(meter.cost) > 6 or number > 25:
                return priced_response(number)
            outcomes: list[Sequence[Part]] = [
                priced_response(number),
                priced_response(number, calls=["tool"] * rng.randint(1, 3)),
                priced_response(number, calls=["agent"]),
                priced_response(number, None),
                failing_response(
                    number, rng.choice(["busy", "overflow", "credentials", "other"]), early=rng.random() < 0.5
                ),
                [*priced_response(number)[: rng.randint(1, 3)], Wait()],
            ]
            return rng.choices(outcomes, (2, 3, 2, 1, 2, 1))[0]

        models = FixedModels(
            MeteredModel(meter, script, window=rng.choice([0, 600])),
            MeteredModel(meter, script),
            renewed=MeteredModel(meter, script) if rng.random() < 0.5 else None,
        )
        settings = EngineSettings(titles=True, grace=0.5, retries=SETTINGS.retries)
        harness = await open_harness(models, settings=settings)
        for number in range(rng.randint(1, 3)):
            await harness.workspace.inputs.submit(Prompt(harness.session, "go", run_id=RunId(f"r{number}")))
            await asyncio.sleep(rng.random() * 0.2)
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random())
            await harness.cancel()
        quiet = start(harness.wait_until_idle())
        await asyncio.wait([quiet], timeout=100)
        await harness.close()
        await quiet
        await check(harness, meter)
        return meter.total

    assert all([run_seeded(scenario, seed) > 0 for seed in range(80)])
