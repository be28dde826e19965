"""Timers, graces and limits from each state they can begin in, in virtual time; none is left when a run has ended."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from engine.helpers import PLAIN, fixed_tool, results_of, sleep_virtual
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt
from holdfast.domain.store_operations import Answer, EndRun, Write
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.settings import EngineSettings, Limits, Pace
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, SimpleTool, start, until
from holdfast.testing.harness import Harness
from holdfast.testing.seeded_loop import in_virtual_time


def timers() -> int:
    loop = asyncio.get_running_loop()
    return sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


def now() -> float:
    return asyncio.get_running_loop().time()


async def resist_cancel(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
    """Resist cancellation for an hour."""
    end = now() + 3_600
    while now() < end:
        try:
            await asyncio.sleep(end - now())
        except asyncio.CancelledError:
            continue
    return ToolOutcome("at last")


def slow(seconds: float) -> SimpleTool:
    async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        await asyncio.sleep(seconds)
        return ToolOutcome("done")

    return SimpleTool("tool", act)


def tool_calling_model(steps: int) -> ScriptedModel:
    """Return a model that calls the tool this many times in each turn."""

    def script(request: ModelRequest) -> Step:
        turn = request.messages[max(n for n, item in enumerate(request.messages) if item.role == "user") :]
        return Step((Call("tool", f'{{"n":{len(turn)}}}'),)) if len(turn) < 2 * steps else Step((Say("done"),))

    return ScriptedModel(script, info=PLAIN)


# Limits.


@pytest.mark.parametrize(
    ("limits", "steps", "seconds", "error"),
    [
        (Limits(steps=3, minutes=0), 3, 1.0, "limit: the run made 3 steps"),
        (Limits(steps=3, minutes=0), 2, 1.0, ""),
        (Limits(steps=0, minutes=0), 60, 10_000.0, ""),
        (Limits(steps=0, minutes=2), 2, 60.0, "limit: the run took 2 minutes"),
        (Limits(steps=0, minutes=2), 2, 59.9, ""),
        (Limits(steps=0, minutes=0.5), 1, 30.0, "limit: the run took 0 minutes"),
        (Limits(), 1, 480 * 60.0, "limit: the run took 480 minutes"),
        (Limits(), 1, 480 * 60.0 - 1, ""),
    ],
)
def test_a_run_ends_at_its_limit(limits: Limits, steps: int, seconds: float, error: str) -> None:
    """The last response counts as a step; the limit is checked before it, and not reached below it."""

    async def scenario() -> None:
        model = tool_calling_model(steps)
        settings = EngineSettings(titles=False, limits=limits)
        harness = await Harness.open(model, tools=[slow(seconds)], settings=settings)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        end = harness.end_of("r1")
        assert (end.outcome, end.error.partition(",")[0]) == ("failed" if error else "completed", error)
        assert len(model.requests) == steps + (not error)
        await harness.assert_valid(model.requests)
        await harness.close()

    in_virtual_time(scenario)


def test_the_time_of_a_run_begins_with_the_run() -> None:
    """It starts neither with the acceptance nor with the session or another run."""

    async def scenario() -> None:
        settings = EngineSettings(titles=False, limits=Limits(minutes=2))
        harness = await Harness.open(tool_calling_model(1), tools=[slow(100.0)], settings=settings)
        await sleep_virtual(10_000)
        for number in (1, 2, 3):
            await harness.prompt("go", f"r{number}", delivery="queue")
        await harness.wait_until_idle()
        assert [end.outcome for end in harness.ends()] == ["completed"] * 3
        await harness.close()

    in_virtual_time(scenario)


def test_changed_settings_apply_at_the_next_step() -> None:
    async def scenario() -> None:
        now_set = [EngineSettings(titles=False, limits=Limits(steps=0))]
        harness = await Harness.open(tool_calling_model(9), tools=[slow(10.0)], current_settings=lambda: now_set[0])
        await harness.prompt("go", "r1")
        await sleep_virtual(25)
        now_set[0] = EngineSettings(titles=False, limits=Limits(steps=1))
        await harness.wait_until_idle()
        assert harness.end_of("r1").error.startswith("limit: the run made 3 steps")
        await harness.close()

    in_virtual_time(scenario)


# The grace.


@pytest.mark.parametrize("way", ["cancel", "cancel run", "interrupt", "close"])
def test_a_run_that_does_not_stop_ends_after_the_grace(way: str) -> None:
    """R5: none of its later effects counts; none of its timers is left."""

    async def scenario() -> None:
        settings = EngineSettings(titles=False, grace=5.0, margin=1.0)
        tool = SimpleTool("tool", resist_cancel)
        harness = await Harness.open(tool_calling_model(1), tools=[tool], settings=settings)
        await harness.prompt("go", "r1")
        await until(lambda: tool.started)
        begun = now()
        inputs = harness.workspace.inputs
        match way:
            case "cancel":
                await harness.cancel()
            case "cancel run":
                await inputs.cancel_run(RunId("r1"))
            case "interrupt":
                await harness.prompt("instead", "r2", delivery="interrupt")
            case _:
                closing = start(harness.close())
        await sleep_virtual(5.9)
        assert harness.ends() == []
        await sleep_virtual(0.2)
        end = harness.end_of("r1")
        assert end.outcome == ("interrupted" if way == "close" else "cancelled")
        assert now() == pytest.approx(begun + 6.1, abs=0.01)
        published = len(harness.published.events)
        (result,) = results_of(await harness.messages())
        assert "at last" not in result.content
        if way == "interrupt":
            await until(lambda: tool.started == 2)
            await harness.cancel()
        await (closing if way == "close" else harness.wait_until_idle())
        await sleep_virtual(4_000)
        if way != "interrupt":
            assert len(harness.published.events) == published
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("state", ["model", "tool", "retry", "approval", "accepted"])
def test_a_run_that_stops_at_once_leaves_no_timer(state: str) -> None:
    async def scenario() -> None:
        gate = Gate()

        async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
            await gate()
            return ToolOutcome("done")

        busy = Step((Fail(trouble="busy"),))
        script = {"retry": busy, "model": Step((Say("many words to say"),)), "tool": Step((Call("tool"),))}
        pause = {"model": 50.0}.get(state, 0.0)
        model = ScriptedModel(lambda _: script.get(state, script["tool"]), info=PLAIN, pause=lambda: pause)
        harness = await Harness.open(model, tools=[SimpleTool("tool", act)], settings=EngineSettings(titles=False))
        begun = now()
        await harness.prompt("go", "r1")
        if state != "accepted":
            await sleep_virtual(0.3)
        await harness.cancel()
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "cancelled"
        assert now() - begun < 0.4
        assert timers() == 0
        await sleep_virtual(1_000)
        await harness.close()

    in_virtual_time(scenario)


def test_closing_is_bounded_whatever_blocks() -> None:
    """A tool that does not stop and a store that does not reply: the grace, its margin and the time for writes."""

    async def scenario() -> None:
        ledger = GatedLedger()
        settings = EngineSettings(titles=False, grace=5.0, margin=1.0, closing=3.0)
        harness = await Harness.open(
            tool_calling_model(1), tools=[SimpleTool("tool", resist_cancel)], settings=settings, ledger=ledger
        )
        await harness.prompt("go", "r1")
        await sleep_virtual(1)
        ledger.hold(EndRun)
        begun = now()
        assert not await harness.workspace.engine.close()
        assert now() == pytest.approx(begun + 9.0)
        ledger.gate.open()
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "interrupted"

    in_virtual_time(scenario)


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_ends_even_if_its_cleanup_does_not(*, fails: bool) -> None:
    """The cleanup has a limit of its own; a failure of it is reported."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        reports: list[str] = []
        loop.set_exception_handler(lambda _, context: reports.append(str(context["message"])))
        cleaned_up: list[RunId] = []

        async def cleanup(run: RunId) -> None:
            cleaned_up.append(run)
            if fails:
                raise ValueError("broken")
            await loop.create_future()

        settings = EngineSettings(titles=False, closing=3.0)
        harness = await Harness.open(tool_calling_model(1), tools=[slow(100)], settings=settings, cleanup=cleanup)
        for number in (1, 2):
            await harness.prompt("go", f"r{number}")
            await sleep_virtual(1)
            begun = now()
            await harness.cancel()
            await harness.wait_until_idle()
            assert now() == pytest.approx(begun + (0 if fails else 3))
        await harness.prompt("go", "r3")
        await harness.wait_until_idle()
        assert cleaned_up == ["r1", "r2"], "a run that completed keeps its jobs"
        assert [end.outcome for end in harness.ends()] == ["cancelled", "cancelled", "completed"]
        assert reports == [f"the cleanup of run {run} failed" for run in cleaned_up]
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)


# The store.


class EndAttemptLedger(GatedLedger):
    """Records the times of attempts to store ends."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[float] = []

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if any(isinstance(item, EndRun) for write in writes for item in write.operations):
            self.tries.append(now())
        return await super().commit(workspace, epoch, ticket, writes)


def test_end_is_retried_with_increasing_waits() -> None:
    """The waits start again with the next run; no prompt is accepted meanwhile."""

    async def scenario() -> None:
        ledger = EndAttemptLedger()
        settings = EngineSettings(titles=False, retry_first=1.0, retry_longest=5.0)
        harness = await Harness.open(tool_calling_model(1), tools=[slow(0)], settings=settings, ledger=ledger)
        for number in (1, 2):
            await harness.prompt("go", f"r{number}")
            ledger.refused = (EndRun,)
            ledger.tries.clear()
            await sleep_virtual(18.5)
            first = ledger.tries[0]
            assert [round(at - first, 3) for at in ledger.tries] == [0, 1, 3, 7, 12, 17]
            assert [notice.type for notice in harness.notices()].count("error") == number, "published once"
            ledger.tries.clear()
            with pytest.raises(StorageUnavailable):
                await harness.prompt("no", "refused")
            assert len(ledger.tries) == 2, "a prompt has the end tried at once, and once more"
            ledger.refused = ()
            await harness.wait_until_idle()
            assert harness.end_of(f"r{number}").outcome == "completed"
        ledger.refused = ()
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)


def test_a_prompt_is_accepted_as_soon_as_the_store_works_again() -> None:
    async def scenario() -> None:
        ledger = EndAttemptLedger()
        settings = EngineSettings(titles=False, retry_first=500.0, retry_longest=500.0)
        harness = await Harness.open(tool_calling_model(1), tools=[slow(0)], settings=settings, ledger=ledger)
        await harness.prompt("go", "r1")
        ledger.refused = (EndRun,)
        await sleep_virtual(10)
        ledger.refused = ()
        begun = now()
        await harness.prompt("go", "r2")
        await harness.wait_until_idle()
        assert now() - begun < 1
        assert [end.run_id for end in harness.ends()] == ["r1", "r2"]
        await sleep_virtual(1_000)
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)


async def stop(harness: Harness, kind: str) -> None:
    inputs = harness.workspace.inputs
    match kind:
        case "cancel":
            await inputs.cancel(harness.session)
        case "cancel_run":
            await inputs.cancel_run(RunId("r2"))
        case _:
            await inputs.clear(harness.session)


@pytest.mark.parametrize("kind", ["cancel", "cancel_run", "clear"])
def test_a_slow_disk_does_not_prevent_stopping(kind: str) -> None:
    """The lane is stopped at once; after its time limit the response reports that the cancel is not stored."""

    async def scenario() -> None:
        ledger = GatedLedger()
        harness = await Harness.open(
            tool_calling_model(1), tools=[slow(1_000)], settings=EngineSettings(titles=False), ledger=ledger
        )
        await harness.prompt("go", "r1")
        await harness.prompt("wait", "r2", delivery="queue")
        await sleep_virtual(1)
        ledger.hold()
        begun = now()
        with pytest.raises(StorageUnavailable, match="being stopped"):
            await stop(harness, kind)
        assert now() == pytest.approx(begun + 0.25)
        ledger.gate.open()
        await until(harness.ends)
        assert {end.run_id for end in harness.ends() if end.cancelled} == ({"r1", "r2"} if kind == "cancel" else {"r2"})
        await harness.cancel()
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("pace", [Pace(seconds=5.0, characters=1_000_000), Pace(seconds=1e9, characters=20)])
def test_growing_response_is_stored_at_every_interval(pace: Pace) -> None:
    """The timer starts with the first text that is not stored, after each write."""

    async def scenario() -> None:
        words = " ".join(f"w{number}" for number in range(40))
        model = ScriptedModel([Step((Say(words),))], info=PLAIN, pause=lambda: 1.0)
        harness = await Harness.open(model, settings=EngineSettings(titles=False, pace=pace))
        await harness.prompt("go", "r1")
        for second in range(1, 40):
            await sleep_virtual(1)
            stored = text_of((await harness.messages())[-1]) if second > 1 else ""
            assert words.startswith(stored)
            streamed = len(" ".join(words.split()[:second]))
            behind = streamed - len(stored)
            assert behind <= (5 * 4 + 4 if pace.seconds == 5.0 else 20 + 4), second
        await harness.wait_until_idle()
        assert harness.end_of("r1").text == words
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)


# Providers.


POLICY = RetryPolicy(most=4, first=1.0, longest=3.0, patience=60.0, loading_interval=2.0, loading_timeout=6.0)


@pytest.mark.parametrize(
    ("failures", "waits"),
    [
        ([Fail(trouble="busy")] * 9, [1, 2, 3, 3]),
        ([Fail(trouble="busy", retry_after=7.0)] * 2, [7, 7]),
        ([Fail(trouble="busy", retry_after=60.0)], [60]),
        ([Fail(trouble="busy", retry_after=61.0)], []),
        ([Fail(trouble="loading")] * 9, [2, 2, 2]),
        ([Fail(hangs_up=True)], [1]),
        ([Fail(trouble="stalled"), Fail(trouble="connection"), Fail(trouble="cut")], [1, 2, 3]),
        ([Fail(trouble="refused")], []),
        ([Fail(trouble="credentials")], []),
    ],
)
def test_provider_request_is_retried_after_its_wait(failures: list[Fail], waits: list[int]) -> None:
    """In each step from the first wait."""

    async def scenario() -> None:
        request_times: list[float] = []
        rest: list[Fail] = []

        def script(request: ModelRequest) -> Step:
            request_times.append(now())
            if rest:
                return Step((Say("half an answer"), rest.pop(0)))
            return Step((Call("tool"),)) if request.messages[-1].role == "user" else Step((Say("done"),))

        settings = EngineSettings(titles=False, retries=POLICY)
        tool = fixed_tool("tool")
        harness = await Harness.open(ScriptedModel(script, info=PLAIN), tools=[tool], settings=settings)
        is_enough = len(waits) == len(failures)
        for number in (1, 2):
            rest[:] = failures
            request_times.clear()
            await harness.workspace.inputs.submit(Prompt(harness.session, "go", run_id=RunId(f"r{number}")))
            await harness.wait_until_idle()
            gaps = [round(after - before, 3) for before, after in pairwise(request_times)]
            assert gaps[: len(waits)] == waits
            assert len(request_times) == len(waits) + (2 if is_enough else 1)
            assert harness.end_of(f"r{number}").outcome == ("completed" if is_enough else "failed")
            published = [notice.error for notice in harness.notices() if notice.type == "retrying"]
            assert len(published) == number * len(waits)
        assert "half an answer" not in await harness.outline() or not is_enough
        assert timers() == 0
        await harness.close()

    in_virtual_time(scenario)
