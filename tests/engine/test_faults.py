"""Internal faults: a bug in one place neither blocks other callers nor keeps a run from its end."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from engine import priced_models
from engine.gated_harness import busy_harness
from holdfast.domain.errors import BadRequest, StorageUnavailable
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.store_operations import Answer, EndRun, PatchSession, Refusal, Write
from holdfast.engine import run_end
from holdfast.engine.run_end import INTERRUPTED
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import GatedLedger, GatedTool
from holdfast.testing.harness import FixedModels, Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import SeededLoop, in_virtual_time

HOLE = "\N{REPLACEMENT CHARACTER}"


def echo(_: ModelRequest) -> Step:
    return Step((Say("yes"),))


def test_a_run_ends_even_if_its_conversation_cannot_be_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: the end is published, and the next prompt runs."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        tool = GatedTool("wait")
        steps = [Step((Call("wait"),)), Step((Fail(),)), Step((Say("fine"),))]
        harness = await Harness.open(ScriptedModel(steps), tools=[tool])
        monkeypatch.setattr(run_end, "repair", broken)
        await harness.prompt("one", "r1")
        await tool.gate.reached.wait()
        await harness.prompt("folded", "f1", delivery="steer")
        await harness.prompt("two", "r2", delivery="queue")
        tool.gate.open()
        await harness.wait_until_idle()
        ends = [(end.run_id, end.outcome, end.error, end.folded_into) for end in harness.ends()]
        why = Fail().message
        assert ends == [("r1", "failed", why, ""), ("f1", "failed", why, "r1"), ("r2", "completed", "", "")]

    with pytest.raises(AssertionError, match="could not be repaired"):
        in_virtual_time(main)


class EndRefusingLedger(MemoryLedger):
    """Refuses every end that is written together with other operations."""

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        kinds = {type(operation) for write in writes for operation in write.operations}
        if EndRun in kinds and kinds != {EndRun}:
            return [Refusal("unknown_session") for _ in writes]
        return await super().commit(workspace, epoch, ticket, writes)


def test_refused_end_is_stored_without_its_repair() -> None:
    """R2: only the end is stored then, and the fault is reported."""

    async def main() -> None:
        harness = await Harness.open(ScriptedModel(echo), ledger=EndRefusingLedger())
        await harness.prompt("one", "r1")
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "completed"

    with pytest.raises(AssertionError, match="could not be repaired"):
        in_virtual_time(main)


class Endless(MemoryLedger):
    """Refuses every end."""

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if any(isinstance(operation, EndRun) for write in writes for operation in write.operations):
            return [Refusal("already_ended") for _ in writes]
        return await super().commit(workspace, epoch, ticket, writes)


def test_a_session_continues_after_an_end_that_is_refused_twice() -> None:
    """A refusal is final, unlike a failure: the end is not retried forever, and the next prompt runs."""

    async def main() -> None:
        model = ScriptedModel(echo)
        harness = await Harness.open(model, ledger=Endless())
        async with asyncio.timeout(60):
            for prompt in ("one", "two"):
                await harness.prompt(prompt)
                await harness.wait_until_idle()
        assert len(model.requests) == 2

    with pytest.raises(AssertionError, match="could not be repaired"):
        in_virtual_time(main)


class SeparateEndLedger(MemoryLedger):
    """Refuses every end that is written together with other operations, optionally session patches too."""

    def __init__(self, *, refuses_costs: bool = False, fails: int = 0) -> None:
        super().__init__()
        self.refuses_costs = refuses_costs
        self.fails = fails

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        kinds = [{type(operation) for operation in write.operations} for write in writes]
        if {EndRun} in kinds and self.fails:
            self.fails -= 1
            raise StorageUnavailable
        if all(EndRun not in kind or kind == {EndRun} for kind in kinds) and not self.refuses_costs:
            return await super().commit(workspace, epoch, ticket, writes)
        answers: list[Answer] = []
        for write, kind in zip(writes, kinds, strict=True):
            is_refused = (EndRun in kind and kind != {EndRun}) or (self.refuses_costs and kind == {PatchSession})
            if is_refused:
                answers.append(Refusal("unknown_session"))
            else:
                answers += await super().commit(workspace, epoch, ticket, [write])
        return answers


@pytest.mark.parametrize(
    ("ledger", "share"),
    [(SeparateEndLedger(), 1), (SeparateEndLedger(fails=2), 1), (SeparateEndLedger(refuses_costs=True), 0)],
    ids=["stored", "stored at the third attempt", "refused"],
)
@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_an_end_without_repair_stores_the_cost_of_its_run(ledger: SeparateEndLedger, share: int, outcome: str) -> None:
    """The response was paid for, whatever becomes of the conversation; and storing the cost never prevents the end."""
    ledger = SeparateEndLedger(refuses_costs=ledger.refuses_costs, fails=ledger.fails)
    answer = (
        priced_models.priced_response(3) if outcome == "completed" else priced_models.failing_response(3, "refused")
    )

    async def main() -> None:
        meter = priced_models.Meter()
        harness = await Harness.open(priced_models.MeteredModel(meter, lambda _: answer), ledger=ledger)
        await harness.prompt("one", "r1")
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == outcome
        session = await ledger.session(harness.workspace.record.id, harness.session)
        assert session is not None
        assert meter.total > 0
        assert session.cost == share * meter.total, "once"

    with pytest.raises(AssertionError, match="could not be repaired"):
        in_virtual_time(main)


async def test_recovery_ends_runs_even_if_the_repair_is_refused() -> None:
    ledger = EndRefusingLedger()
    # Referenced until the end: a pending task that is garbage-collected is reported.
    _crashed = await busy_harness(ledger)
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    assert (again.end_of("r1").outcome, again.end_of("r1").error) == ("interrupted", INTERRUPTED)


@pytest.mark.parametrize("ledger_type", [MemoryLedger, SeparateEndLedger], ids=["repaired", "not repaired"])
def test_a_failing_fold_ends_its_host_and_the_session_continues(
    ledger_type: type[MemoryLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a fault must not stop the task that carries out all other work of the session. The fold was not stored, so
    only the end says which run the prompt belonged to, with or without a repair of the conversation.
    """

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        tool = GatedTool("wait")
        steps = [Step((Call("wait"),)), Step((Say("fine"),))]
        harness = await Harness.open(ScriptedModel(steps), tools=[tool], ledger=ledger_type())
        await harness.prompt("one", "r1")
        await tool.gate.reached.wait()
        steering = await harness.prompt("and this")
        monkeypatch.setattr("holdfast.engine.engine.prompt_message", broken)
        tool.gate.open()
        await harness.wait_until_idle()
        monkeypatch.undo()
        ends = {end.run_id: (end.outcome, end.folded_into) for end in harness.ends()}
        assert ends == {"r1": ("failed", ""), steering.run_id: ("failed", "r1")}
        await harness.prompt("two", "r2")
        await harness.wait_until_idle()
        assert harness.end_of("r2").outcome == "completed"

    if ledger_type is MemoryLedger:
        in_virtual_time(main)
        return
    with pytest.raises(AssertionError, match="could not be repaired"):
        in_virtual_time(main)


@pytest.mark.parametrize("fails", [False, True], ids=["stored", "not stored"])
async def test_a_failing_callback_does_not_keep_callers_from_their_answers(fails: bool) -> None:
    ledger = GatedLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))

    def broken(*_: Answer) -> None:
        raise ZeroDivisionError

    recorder = harness.workspace.engine.recorder
    ledger.error = StorageUnavailable() if fails else None
    first = recorder.put(on_answer=broken, on_failure=broken)
    second = recorder.put()
    async with asyncio.timeout(20):
        answers = await asyncio.gather(first, second, return_exceptions=True)
        ledger.error = None
        await recorder.put()
    assert [isinstance(answer, StorageUnavailable) for answer in answers] == [fails, fails]
    expected = "a callback of a failed write failed" if fails else "publishing a stored write failed"
    assert reported == [expected]


async def test_lone_surrogates_are_refused_in_prompts_and_replaced_in_responses() -> None:
    """They can be neither stored nor sent."""
    harness = await Harness.open(ScriptedModel(lambda _: Step((Say("half \ud83d here"),))))
    with pytest.raises(BadRequest, match="Unicode"):
        await harness.prompt("half \ud83d character", "r1")
    assert await harness.ledger.run(harness.workspace.record.id, RunId("r1")) is None
    await harness.prompt("fine", "r2")
    await harness.wait_until_idle()
    assert harness.end_of("r2").text == f"half {HOLE} here"


async def test_lone_surrogates_in_reasoning_calls_and_titles_are_replaced() -> None:
    """Model output can be stored whichever part of it is invalid; arguments that contain one stay arguments."""
    calls = Step((Think("hm \ud83d"), Call("no \udc00", '{"a": "\\ud83d"}')))
    small = ScriptedModel(lambda _: Step((Say("A \ud83d title"),)))
    models = FixedModels(ScriptedModel([calls, Step((Say("done"),))]), small)
    harness = await Harness.open(models, settings=EngineSettings())
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    await harness.workspace.engine._titler.drain()
    assert harness.end_of("r1").outcome == "completed"
    messages = await harness.messages()
    assert msgspec.json.encode(messages)
    (call,) = [call for message in messages for call in message.tool_calls]
    assert (call.name, msgspec.json.decode(call.input)) == (f"no {HOLE}", {"a": HOLE})
    session = await harness.ledger.session(harness.workspace.record.id, harness.session)
    assert session is not None
    assert session.title == f"A {HOLE} title"


def test_the_loop_of_these_tests_has_no_real_clock() -> None:
    loop = SeededLoop(lambda _: 0)
    assert loop.time() == 0.0
    loop.close()
