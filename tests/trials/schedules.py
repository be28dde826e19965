"""One random schedule of a workspace: several clients on a seeded loop, a store that is slow and fails, models and
tools that fail, hooks that interfere. Everything follows from the seed, so a failure can be replayed.

`try_schedule(seed)` raises if a promise is broken; `schedule_invariants.py` contains the checks.
"""

import asyncio
import random
from collections.abc import Sequence

from holdfast.domain.errors import HoldfastError, StorageError, StorageUnavailable, StorageUnknown, ToolError, Trouble
from holdfast.domain.ids import RunId
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.runs import Delivery, Prompt, Run
from holdfast.domain.tools import Tool, ToolContext, ToolOutcome
from holdfast.domain.usage import Usage
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Act, Call, Fail, Say, ScriptedModel, Step, Think
from holdfast.testing.gates import SimpleTool
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import run_seeded
from trials.random_hooks import RandomHooks
from trials.schedule_invariants import ClientLog, check_invariants

__all__ = ["Schedule", "try_schedule"]

_SETTINGS = EngineSettings(
    grace=0.5, margin=0.1, titles=False, retry_longest=0.1, closing=30.0, retries=RetryPolicy(most=2, first=0.1)
)
_TROUBLES: tuple[Trouble, ...] = ("busy", "credentials", "overflow", "other", "other")
_DELIVERIES: tuple[Delivery | None, ...] = (None, None, "steer", "queue", "reject", "interrupt")


def try_schedule(seed: int) -> None:
    """Play one schedule and check it."""
    run_seeded(lambda rng: Schedule(rng).live(), seed)


class Schedule:
    """Three clients, two sessions, one workspace, then perhaps a shutdown in the middle and a second start."""

    def __init__(self, rng: random.Random) -> None:
        self._dice = rng
        self._is_failing = False
        self._prompts = 0
        self._ledger = MemoryLedger(pace=self._pace, fail=self._fault, survives=self._flip)
        self._info = ModelInfo("demo", "scripted", context_window=rng.choice([0, 0, 400]))
        self.model = ScriptedModel(self._script, info=self._info, pause=self._pause)
        self.hooks = RandomHooks(rng, says_something=rng.random() < 0.3)
        self.witness = ClientLog()
        self.runs: list[Run] = []

    async def live(self) -> None:
        tools = [SimpleTool("quick", self._tool), SimpleTool("beside", self._tool, is_parallel=True)]
        harness = await self._open(tools, "id")
        second = await harness.workspace.sessions.create()
        self._sessions = [harness.session, second.id]
        self._is_failing = self._dice.random() < 0.4
        clients = asyncio.gather(*(self._client(harness, name) for name in "abc"))
        if self._dice.random() < 0.3:
            await asyncio.sleep(self._dice.random())
            await asyncio.gather(clients, self._close(harness))
        else:
            await clients
            self._is_failing = False
            for session in self._sessions:
                await harness.workspace.engine.wait_until_idle(session)
            await self._close(harness)
        self._is_failing = False
        again = await self._open(tools, "again")
        for session in self._sessions:
            await again.workspace.engine.wait_until_idle(session)
        await again.close()
        self.runs = await check_invariants(self.witness, (harness, again), self._sessions, self.model.requests)
        self._check_hooks()

    async def _open(self, tools: Sequence[Tool], ids: str) -> Harness:
        return await Harness.open(
            self.model, tools=tools, settings=_SETTINGS, ledger=self._ledger, ids=ids, hooks=self.hooks
        )

    def _check_hooks(self) -> None:
        counts = {run.run_id: self.hooks.ended[run.run_id] for run in self.runs}
        assert set(counts.values()) <= {1}, f"hooks were notified this often: {counts}"
        for run in self.runs:
            is_refused = run.run_id in self.hooks.refused and run.outcome == "completed"
            assert not is_refused, f"{run.run_id} completed, although a hook had refused its prompt"

    async def _close(self, harness: Harness) -> None:
        await harness.close()

    # Actions of clients.

    async def _client(self, harness: Harness, name: str) -> None:
        for _ in range(self._dice.randint(1, 5)):
            await asyncio.sleep(self._dice.random() * self._dice.choice([0, 0.01, 0.3]))
            action = self._dice.choices(
                (self._submit, self._retry, self._cancel, self._cancel_run, self._clear, self._rearrange),
                (10, 2, 4, 3, 1, 2),
            )[0]
            try:
                await action(harness, name)
            except HoldfastError:
                self.witness.refused += 1

    async def _submit(self, harness: Harness, name: str) -> None:
        self._prompts += 1
        text = f"prompt {self._prompts} of {name}"
        run_id = RunId(f"{name}-{self._prompts}" if self._dice.random() < 0.7 else "")
        prompt = Prompt(self._dice.choice(self._sessions), text, run_id=run_id, delivery=self._dice.choice(_DELIVERIES))
        try:
            run = await harness.workspace.inputs.submit(prompt)
        except StorageError:
            self.witness.uncertain.add(text)
            raise
        self.witness.accepted[run.run_id] = (prompt, run)

    async def _retry(self, harness: Harness, _: str) -> None:
        known = [(prompt, run) for prompt, run in self.witness.accepted.values() if prompt.run_id]
        if known:
            prompt, first = self._dice.choice(known)
            again = await harness.workspace.inputs.submit(prompt)
            assert (again.run_id, again.position) == (first.run_id, first.position), "a retry got another answer"

    async def _cancel(self, harness: Harness, _: str) -> None:
        session = self._dice.choice(self._sessions)
        try:
            covered = await harness.workspace.inputs.cancel(session)
        except StorageError:
            self.witness.unstored_cancel = True
            raise
        self.witness.cancelled.update(covered)

    async def _cancel_run(self, harness: Harness, _: str) -> None:
        if run := self._some_run():
            try:
                answer = await harness.workspace.inputs.cancel_run(run.run_id)
            except StorageError:
                self.witness.unstored_cancel = True
                raise
            if answer.outcome is None:
                self.witness.asked_to_stop.add(answer.run_id)

    async def _clear(self, harness: Harness, _: str) -> None:
        try:
            covered = await harness.workspace.inputs.clear(self._dice.choice(self._sessions))
        except StorageError:
            self.witness.unstored_cancel = True
            raise
        self.witness.asked_to_stop.update(covered)

    async def _rearrange(self, harness: Harness, _: str) -> None:
        if run := self._some_run():
            self.witness.moved.add(run.session_id)
            if self._dice.random() < 0.5:
                await harness.workspace.inputs.move(run.run_id, self._dice.randint(0, 3))
            else:
                await harness.workspace.inputs.redeliver(run.run_id, self._dice.choice(("steer", "queue")))

    def _some_run(self) -> Run | None:
        runs = [run for _, run in self.witness.accepted.values()]
        return self._dice.choice(runs) if runs else None

    # Behaviour of model, tools and store.

    def _script(self, request: ModelRequest) -> Step:
        if not request.tools:
            return Step((Say("a summary"),), Usage(10, 5))
        acts: list[Act] = []
        if self._dice.random() < 0.2:
            acts.append(Think("let me see"))
        if self._dice.random() < 0.8:
            acts.append(Say("some words to say"))
        acts += [self._call() for _ in range(self._dice.choice((0, 0, 1, 2, 3)))]
        if self._dice.random() < 0.15:
            trouble = self._dice.choice(_TROUBLES)
            acts.append(Fail(hangs_up=self._dice.random() < 0.4, trouble=trouble))
        used = Usage(self._dice.choice((0, 50, 390)), 5)
        return Step(tuple(acts), used)

    def _call(self) -> Call:
        return Call(self._dice.choice(("quick", "beside", "nowhere")), self._dice.choice(("{}", '{"n":1}', "[")))

    def _pause(self) -> float:
        return self._dice.choice((0.0, 0.0, 0.001, 0.05))

    async def _tool(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        self.hooks.judge_call(context, arguments)
        self.witness.tools += 1
        await asyncio.sleep(self._dice.choice((0.0, 0.01, 0.2)))
        ending_kind = self._dice.random()
        if ending_kind < 0.1:
            raise ToolError("it did not work")
        if ending_kind < 0.15:
            raise ValueError("a bug in a tool")
        if ending_kind < 0.25:
            await self._resist_cancel()
        return ToolOutcome("done", stops_turn=ending_kind > 0.97)

    async def _resist_cancel(self) -> None:
        """Resist cancellation, for longer or shorter than the grace."""
        end = asyncio.get_running_loop().time() + self._dice.choice((0.2, 2.0))
        while asyncio.get_running_loop().time() < end:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    async def _pace(self) -> None:
        await asyncio.sleep(self._dice.choice((0.0, 0.0, 0.0, 0.002, 0.4)) if self._is_failing else 0.0)

    def _fault(self) -> Exception | None:
        if not self._is_failing or self._dice.random() > 0.15:
            return None
        return StorageUnavailable() if self._dice.random() < 0.5 else StorageUnknown()

    def _flip(self) -> bool:
        return self._dice.random() < 0.5
