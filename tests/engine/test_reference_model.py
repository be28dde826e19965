"""The real engine compared with the reference model, for random requests in random order: R1 R2 R3 R8 R9.

Between two requests all work completes, so that each request has one correct result; the order of callbacks until then
is random too.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.reference_model import Reason, ReferenceEngine, ReferenceRefusal
from holdfast.domain.errors import HoldfastError, NotWaiting, RunFolded, RunIdTaken, SessionBusy, UnknownRun
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import text_of
from holdfast.domain.runs import Delivery, Outcome, Prompt
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Act, Call, Fail, Say
from holdfast.testing.conversation_validity import problems_of_request, problems_of_session
from holdfast.testing.gates import HeldModel, SimpleTool
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import SeededLoop

T = TypeVar("T")

_SESSIONS = 2
_MANY = 1_000
_REFUSALS: dict[Reason, type[HoldfastError]] = {
    "busy": SessionBusy,
    "folded": RunFolded,
    "not waiting": NotWaiting,
    "taken": RunIdTaken,
    "unknown": UnknownRun,
}
# Few names and few texts, so that they repeat.
_names = st.sampled_from(["", "", "a", "b", "c", "d", "e", "f"])
_texts = st.sampled_from(["do this", "do that"])
_deliveries: st.SearchStrategy[Delivery | None] = st.sampled_from([None, None, "steer", "queue", "reject", "interrupt"])
_sessions = st.integers(0, _SESSIONS - 1)


async def _tool(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
    return ToolOutcome("done")


async def _run_request(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


class EngineComparison(RuleBasedStateMachine):
    """Sends the same requests to the engine and to the reference model."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.loop = SeededLoop(random.Random(seed).randrange)
        self.reference = ReferenceEngine(_SESSIONS)
        self.ledger = MemoryLedger()
        self.model = HeldModel()
        self.sessions: list[SessionId] = []
        self.published: list[tuple[RunId, Outcome]] = []
        self.gone: list[Harness] = []
        self.calls = 0
        self.do(self._open())

    async def _open(self) -> None:
        self.model = HeldModel()
        self.harness = await Harness.open(
            self.model,
            tools=[SimpleTool("go", _tool)],
            settings=EngineSettings(titles=False),
            ledger=self.ledger,
            ids=f"id{len(self.gone)}",
        )
        while len(self.sessions) < _SESSIONS:
            self.sessions.append((await self.harness.workspace.sessions.create()).id)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and let all tasks complete."""
        return self.loop.run_to_rest(work)

    def both(self, real: Callable[[], Awaitable[T]], reference: Callable[[], object]) -> T | None:
        """Require that both accept, or both refuse for the same reason."""
        try:
            reference()
        except ReferenceRefusal as refused:
            with pytest.raises(_REFUSALS[refused.reason]):
                self.do(_run_request(real))
            # The attempt may still have a pending write.
            self.do(asyncio.sleep(0))
            return None
        return self.do(_run_request(real))

    # Client requests.

    @rule(session=_sessions, name=_names, text=_texts, delivery=_deliveries)
    def submit(self, session: int, name: str, text: str, delivery: Delivery | None) -> None:
        prompt = Prompt(self.sessions[session], text, run_id=RunId(name), delivery=delivery)
        effective = prompt.effective_delivery
        if name:
            run = self.both(
                lambda: self.harness.workspace.inputs.submit(prompt),
                lambda: self.reference.submit(session, name, text, effective),
            )
        elif effective == "reject" and self.reference.rooms[session].head:
            return
        else:
            run = self.do(self.harness.workspace.inputs.submit(prompt))
            self.reference.submit(session, run.run_id, text, effective)
        if run is not None:
            assert run.position == self.reference.runs[run.run_id].position

    @rule(session=_sessions, deliveries=st.lists(st.sampled_from(("steer", "queue")), min_size=1, max_size=3))
    def submit_several(self, session: int, deliveries: list[Delivery]) -> None:
        """Submit several prompts so that some wait: the other requests concern those."""
        for delivery in deliveries:
            self.submit(session, f"n{len(self.reference.runs)}", f"prompt {len(self.reference.runs)}", delivery)

    @rule(session=_sessions, what=st.sampled_from(("cancel", "clear", "stop", "kill")))
    def disturb(self, session: int, what: str) -> None:
        """One rule for all disturbances: most of the time there is none."""
        match what:
            case "cancel":
                self.cancel(session)
            case "clear":
                self.clear(session)
            case _:
                self.restart(is_killed=what == "kill")

    def cancel(self, session: int) -> None:
        covered = self.do(self.harness.workspace.inputs.cancel(self.sessions[session]))
        assert set(covered) == self.reference.cancel(session)

    def clear(self, session: int) -> None:
        covered = self.do(self.harness.workspace.inputs.clear(self.sessions[session]))
        assert set(covered) == self.reference.clear(session)

    @rule(data=st.data())
    def cancel_run(self, data: st.DataObject) -> None:
        name = self._some(data)
        self.both(
            lambda: self.harness.workspace.inputs.cancel_run(RunId(name)), lambda: self.reference.cancel_run(name)
        )

    @rule(data=st.data(), position=st.integers(0, 4))
    def move(self, data: st.DataObject, position: int) -> None:
        name = self._some(data)
        self.both(
            lambda: self.harness.workspace.inputs.move(RunId(name), position),
            lambda: self.reference.move(name, position),
        )

    @rule(data=st.data(), delivery=st.sampled_from(("steer", "queue")))
    def redeliver(self, data: st.DataObject, delivery: Literal["steer", "queue"]) -> None:
        name = self._some(data)
        self.both(
            lambda: self.harness.workspace.inputs.redeliver(RunId(name), delivery),
            lambda: self.reference.redeliver(name, delivery),
        )

    def _some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.reference.runs, "unknown"]))

    # Events of the run.

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def another_step(self, data: st.DataObject) -> None:
        # Each call is different: identical ones would trigger loop detection.
        self.calls += 1
        session = self._answer(data, Call("go", f'{{"n": {self.calls}}}'))
        self.reference.step(session)

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self.reference.finish(self._answer(data, Say("That is all.")), "completed")

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.reference.finish(self._answer(data, Say("Well"), Fail()), "failed")

    def restart(self, *, is_killed: bool) -> None:
        """A killed server leaves its work unfinished; its later writes are refused by the store."""
        self._listen()
        if not is_killed:
            self.do(self.harness.close())
            self._listen()
        self.gone.append(self.harness)
        self.do(self._open())
        self.reference.restart()

    def _busy(self) -> list[int]:
        return [number for number, state in enumerate(self.reference.rooms) if state.head]

    def _answer(self, data: st.DataObject, *acts: Act) -> int:
        session = data.draw(st.sampled_from(self._busy()))

        async def answer() -> None:
            self.model.answer(self.sessions[session], *acts)

        self.do(answer())
        return session

    # Invariants.

    def _listen(self) -> None:
        self.published += [(end.run_id, end.outcome) for end in self.harness.ends()]
        self.harness.published.events.clear()

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        for number, state in enumerate(self.reference.rooms):
            lane = self.harness.workspace.engine.lane(self.sessions[number])
            assert ("" if lane.head is None else lane.head.run, list(lane.folded)) == (state.head, state.folded)
            waits = [(item.run, item.delivery == "steer") for item in lane.queue]
            assert waits == [(name, self.reference.runs[name].delivery == "steer") for name in state.queue]
            request = self.model.asked.get(self.sessions[number])
            assert (request is not None) is bool(state.head), "only the head has a model request"
            if request is not None:
                assert problems_of_request(request) == []
                # Consecutive prompts are one message: some providers refuse two in a row.
                assert "".join(text_of(item) for item in request.messages if item.role == "user") == "".join(
                    state.received
                )

    @invariant()
    def stored_states_agree(self) -> None:
        if not hasattr(self, "harness"):
            return
        stored = self.do(self._stored_runs())
        expected = {run.name: (run.host, run.outcome) for run in self.reference.runs.values()}
        assert stored == expected

    async def _stored_runs(self) -> dict[str, tuple[str, Outcome | None]]:
        runs = await self.ledger.runs(self.harness.workspace.record.id, None, _MANY, 0)
        return {run.run_id: (run.folded_into, run.outcome) for run in runs}

    @invariant()
    def every_end_is_published_once(self) -> None:
        """R2. Ends left by a killed server are stored by the next one before any client can subscribe."""
        if not hasattr(self, "harness"):
            return
        self._listen()
        names = [name for name, _ in self.published]
        assert len(names) == len(set(names)), "an end was published twice"
        assert all(self.reference.runs[name].outcome == outcome for name, outcome in self.published)

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        try:
            self.do(self._leave())
            assert self.loop.failures == []
        finally:
            self.loop.abandon()

    async def _leave(self) -> None:
        await self.harness.close()
        for session in self.sessions:
            assert problems_of_session(await self.harness.messages(session)) == [], "R7"


@pytest.mark.timeout(300)  # Seconds are enough; shrinking a failure takes longer.
def test_the_engine_agrees_with_the_reference_model() -> None:
    """R1 R2 R3 R8 R9: a run for every accepted prompt, one end for every run, and the lane continues."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        EngineComparison,
        settings=settings(max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=checks),
    )
