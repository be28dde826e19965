"""R9: whatever a server was doing when it was killed, recovery yields the state of the reference model; a second one
changes nothing.

Random histories with sub-agents, summaries, withdrawn attempts, approvals, folded prompts and cancels; each is cut off
after some write, and the store is opened again.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from engine.helpers import sleep_virtual
from engine.recovery_model import Stored, answer_after, conversation_after, outcome_of, read_stored, requests_in, shape
from holdfast.domain.approvals import Question, QuestionAnswer, Verdict
from holdfast.domain.errors import HoldfastError, OwnerChanged
from holdfast.domain.events import RunComplete, RunCompleteEvent, decode_event
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.runs import Delivery
from holdfast.domain.store_operations import (
    Admit,
    Announce,
    Answer,
    CancelSession,
    FoldRun,
    Operation,
    PutMessage,
    WorkspaceRecord,
    Write,
)
from holdfast.domain.tools import Permit, QuestionBatch, SubagentTask, ToolContext, ToolOutcome
from holdfast.domain.usage import Usage
from holdfast.engine import recovery
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings, Pace
from holdfast.providers.scripted_model import Act, Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.conversation_validity import problems_of_session
from holdfast.testing.gates import SimpleTool, start
from holdfast.testing.harness import FixedTools, Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import run_seeded

SETTINGS = EngineSettings(
    titles=False, grace=0.5, retries=RetryPolicy(most=2, first=0.1), pace=Pace(seconds=0.01, characters=8)
)


class MortalLedger(MemoryLedger):
    """A store whose server is killed after a number of writes: later writes are never answered."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 10**9
        self.moment: Callable[[Operation], object] = lambda _: False
        """An operation that the server survives by at most a few writes."""
        self.survives = 0
        self.died = asyncio.Event()
        self._epoch = 0
        self._dead = 0

    def die(self) -> None:
        """Detach the server: none of its later writes reaches the store."""
        self._dead = self._epoch

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        record = await super().open_workspace(path)
        self._epoch = record.epoch
        return record

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if epoch <= self._dead:
            await asyncio.get_running_loop().create_future()
        if self.left <= 0:
            self.died.set()
            await asyncio.get_running_loop().create_future()
        if any(self.moment(operation) for write in writes for operation in write.operations):
            self.left = min(self.left, 1 + self.survives)
        self.left -= 1
        answers = await super().commit(workspace, epoch, ticket, writes)
        if self.left <= 0:
            self.died.set()
            # Stored, but its server has not received the result.
            await asyncio.get_running_loop().create_future()
        return answers


MOMENTS: dict[str, Callable[[Operation], object]] = {
    "cancel": lambda item: isinstance(item, CancelSession),
    "fold": lambda item: isinstance(item, FoldRun),
    "sub-agent": lambda item: isinstance(item, Admit) and item.run.parent_run_id,
    "manual summary": lambda item: isinstance(item, Admit) and item.run.kind == "summary",
    "summary": lambda item: isinstance(item, PutMessage) and item.message.is_summary_message,
    "request": lambda item: isinstance(item, Announce),
    "any": lambda _: False,
}


class History:
    """One history up to a crash, and the restarts after it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ledger = MortalLedger()
        self.acted: set[str] = set()
        self._names: tuple[str, ...] = rng.choice(
            (("quick", "agent", "agent"), ("ask", "twice", "ask_questions"), ("quick", "nowhere"))
        )
        info = ModelInfo("test", "model", context_window=rng.choice([0, 400]))
        self.model = ScriptedModel(self._script, info=info, pause=lambda: rng.choice((0.0, 0.005, 0.02)))

    async def open(self, ids: str) -> Harness:
        tools = [
            SimpleTool("quick", self._act, is_parallel=self.rng.random() < 0.5),
            SimpleTool("ask", self._ask, is_parallel=True),
            SimpleTool("twice", self._twice),
            SimpleTool("ask_questions", self._inquire),
            SimpleTool("agent", self._send, is_parallel=True),
        ]
        harness = await Harness.open(self.model, tools=tools, settings=SETTINGS, ledger=self.ledger, ids=ids)
        harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools(tools)))
        harness.workspace.approvals.judge = lambda _: Verdict("ask")
        return harness

    async def until_it_dies(self) -> Harness:
        harness = await self.open("first")
        self.ledger.left = self.rng.randint(1, 60)
        name = self.rng.choice(tuple(MOMENTS))
        if name != "any":
            self.ledger.left = 150
            self._names = {"cancel": ("quick",), "sub-agent": ("agent",), "request": ("ask", "twice")}.get(
                name, self._names
            )
        self.ledger.moment = MOMENTS[name]
        self.ledger.survives = 0 if name == "cancel" else self.rng.choice((0, 0, 1, 3, 6))
        lives = asyncio.gather(*(start(self._client(harness, name)) for name in "ab"), return_exceptions=True)
        done = start(self._until(lives))
        await asyncio.wait([start(self.ledger.died.wait()), done], return_when=asyncio.FIRST_COMPLETED, timeout=50)
        await self.die(harness)
        self.model._script = lambda _: Step((Say("again"),))
        return harness

    async def _until(self, lives: Awaitable[object]) -> bool:
        await lives
        return True

    async def die(self, harness: Harness) -> None:
        """Kill the server. Pending writes are stored, or lost with the power."""
        self.ledger.die()
        while others := sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=asyncio.Task.get_name):
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=1)
        for timer in asyncio.get_running_loop()._scheduled:  # type: ignore[attr-defined]
            timer.cancel()
        if self.rng.random() < 0.3:
            self.ledger.lose_power()
        with suppress(OwnerChanged):
            await self.ledger.last_batch(harness.workspace.record.id, harness.workspace.record.epoch)

    async def _client(self, harness: Harness, name: str) -> None:
        for number in range(self.rng.randint(1, 4)):
            await asyncio.sleep(self.rng.choice((0, 0.02, 0.3)))
            what = self.rng.random()
            try:
                if what < 0.55 or number == 0:
                    delivery: Delivery = self.rng.choice(("steer", "queue", "interrupt"))
                    await harness.prompt(f"{name} says {number}", f"{name}{number}", delivery=delivery)
                elif what < 0.65:
                    await harness.workspace.inputs.summarize(harness.session)
                elif what < 0.8:
                    await harness.cancel()
                else:
                    await self._answer(harness)
            except HoldfastError:
                continue
        await harness.wait_until_idle()

    async def _answer(self, harness: Harness) -> None:
        asks = harness.workspace.approvals
        for request in asks.permissions[:1]:
            await asks.grant(request.id, self.rng.choice(("allow", "deny", "allow_session")))
        for batch in asks.questions[:1]:
            await asks.answer(batch.id, [QuestionAnswer(batch.questions[0].id, yes=True)])

    def _script(self, request: ModelRequest) -> Step:
        if not request.tools:
            return Step((Say("in short, all of it"),), Usage(10, 5))
        acts: list[Act] = []
        if self.rng.random() < 0.4:
            acts.append(Think("let me see", self.rng.choice(("", "signed"))))
        if self.rng.random() < 0.7:
            acts.append(Say("some words to say"))
        names = self._names
        acts += [Call(self.rng.choice(names), '{"n":1}') for _ in range(self.rng.choice((0, 1, 1, 2)))]
        if self.rng.random() < 0.2:
            acts.append(Fail(trouble=self.rng.choice(("busy", "overflow", "other"))))
        return Step(tuple(acts), Usage(self.rng.choice((50, 50, 390)), 5))

    async def _act(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        self.acted.add(context.tool_call_id)
        try:
            await asyncio.sleep(self.rng.choice((0.0, 0.1)))
        except asyncio.CancelledError:
            # The cancel is stored before the end.
            await sleep_virtual(0.2)
        return ToolOutcome("done")

    async def _ask(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.permit(Permit("ask", "execute", "/project", "run", {"n": context.tool_call_id}))
        return await self._act(context, {})

    async def _twice(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.permit(Permit("twice", "execute", "/project", "run", {"n": context.tool_call_id}))
        await self._act(context, {})
        await context.permit(Permit("twice", "execute", "/project", "again", {"m": context.tool_call_id}))
        return ToolOutcome("done twice")

    async def _inquire(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.ask_questions(QuestionBatch((Question("", "yes_no", "?"),)))
        return await self._act(context, {})

    async def _send(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        self.acted.add(context.tool_call_id)
        return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent")))


def ends_in(bodies: Sequence[bytes]) -> list[RunComplete]:
    events = map(decode_event, bodies)
    return [event.change.object for event in events if isinstance(event, RunCompleteEvent)]


def check(before: Stored, after: Stored, acted: set[str]) -> None:
    for session in before.messages:
        now = list(map(shape, after.messages[session]))
        assert now == conversation_after(before, session)
        for _, _, _, *parts in now[len(before.messages[session]) :]:
            published = [
                part[1] for part in parts if isinstance(part, tuple) and part[0] == "result" and part[4] is False
            ]
            assert not acted.intersection(published), "a call that had effects is reported without"
    ends = {end.run_id: end for end in ends_in(after.bodies)}
    assert len(ends) == len(ends_in(after.bodies)), "a run ended twice"
    for run_id, run in before.runs.items():
        outcome = outcome_of(run, before.runs)
        assert after.runs[run_id].outcome == outcome, run
        assert (run_id in ends) == (outcome is not None)
        if run.outcome is None and outcome is not None:
            end = ends[run_id]
            text = answer_after(after.messages[run.session_id], run) if run.started_at else ("", "")
            assert (end.message_id, end.text, end.folded_into) == (*text, run.folded_into)
            assert bool(end.error) == (outcome == "interrupted")
            assert end.cancelled == (outcome == "cancelled")
    open_runs = set(after.waiting)
    for request in requests_in(after.bodies).values():
        is_over = request.run not in open_runs
        assert len(request.closings) == is_over or request.closings != [], request
        assert len(request.closings) <= 1


async def history(rng: random.Random) -> Counter[str]:
    lived = History(rng)
    first = await lived.until_it_dies()
    before = await read_stored(first)
    # Only the write of the recovery is stored: the server is killed again at once.
    ends = any(run.outcome is None and outcome_of(run, before.runs) for run in before.runs.values())
    lived.ledger.left, lived.ledger.died = int(ends), asyncio.Event()
    lived.ledger.moment = MOMENTS["any"]
    opening = start(lived.open("second"))
    await lived.ledger.died.wait()
    assert not opening.done()
    await lived.die(first)
    after = await read_stored(first)
    check(before, after, lived.acted)
    # A second recovery has nothing to do; waiting runs continue in their order.
    lived.ledger.left = 10**9
    third = await lived.open("third")
    assert third.workspace.recovered.ends == ()
    assert third.workspace.recovered.withdrawn == ()
    await third.workspace.engine.wait_until_idle(first.session)
    last = await read_stored(third)
    assert all(run.outcome for run in last.runs.values())
    order = [end.run_id for end in ends_in(last.bodies) if end.run_id in after.waiting]
    folded = {run.run_id for run in last.runs.values() if run.folded_into}
    assert [run for run in order if run not in folded] == [run for run in after.waiting if run not in folded]
    for session in last.messages:
        assert problems_of_session(last.messages[session]) == []
    await third.close()
    return features(before)


def features(before: Stored) -> Counter[str]:
    """Return the features active at the crash, so that the test can require all of them."""
    cut = [run for run in before.runs.values() if run.outcome is None]
    messages = [item for items in before.messages.values() for item in items]
    found = Counter[str]()
    found["cancelled"] = any(run.cancel_requested and run.started_at for run in cut)
    found["waiting"] = any(outcome_of(run, before.runs) is None for run in cut)
    found["folded"] = any(run.folded_into for run in cut)
    found["sub-agent"] = any(run.parent_run_id for run in cut)
    found["open summary"] = any(item.is_summary_message and item.finish is None for item in messages)
    found["manual summary"] = any(run.kind == "summary" for run in cut)
    found["summary before"] = any(item.is_summary_message and item.finish is not None for item in messages)
    found["open request"] = any(not request.closings for request in requests_in(before.bodies).values())
    found["open call"] = any(not call.finished for item in messages for call in item.tool_calls)
    return found


@pytest.mark.parametrize("page", [500, 1, 3])
def test_recovery_agrees_with_the_reference_model(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including logs longer than one page of events."""
    monkeypatch.setattr(recovery, "_PAGE_SIZE", page)
    met = sum((run_seeded(history, seed) for seed in range(90 if page == 500 else 12)), Counter[str]())
    if page == 500:
        assert len(+met) >= 7, "the random histories no longer cover the features"
