"""One random schedule of a cluster: three nodes on one store, one workspace, clients that use any node.

Nodes are suspended, as by SIGSTOP: none of their callbacks runs, wherever they are. They are cut off from the store: a
call that is under way has an unknown result. Any node takes the workspace over at any time, whatever the others do;
the epoch of the store is the only protection. Wake-ups are lost. Everything follows from the seed.

`try_cluster_schedule(seed)` raises if a promise is broken; `cluster_invariants.py` contains the checks.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from holdfast.bus.frames import Frame
from holdfast.cluster.remote_workspace import RemoteWorkspace, open_remote_workspace
from holdfast.domain.approvals import GrantAction, Question, QuestionAnswer, QuestionRequest, Verdict
from holdfast.domain.errors import HoldfastError, StorageError, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Delivery, Prompt
from holdfast.domain.tools import Permit, QuestionBatch, ToolContext, ToolOutcome
from holdfast.engine.ports import Ledger, SharedLedger
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Act, Call, Say, ScriptedModel, Step
from holdfast.runtime.workspace import FixedServices, Workspace, open_workspace
from holdfast.tasks import TaskOwner
from holdfast.testing.gates import SimpleTool
from holdfast.testing.harness import CountingClock, FixedModels, FixedTools, counting_ids
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import SeededLoop, elapse, run_seeded
from trials.cluster_invariants import ClusterLog, check_cluster

__all__ = ["ClusterSchedule", "try_cluster_schedule"]

T = TypeVar("T")
PATH = "/project"
_NODE: contextvars.ContextVar[str] = contextvars.ContextVar("node", default="")
_SETTINGS = EngineSettings(grace=0.5, margin=0.1, titles=False, retry_longest=0.1, closing=1.0, cancel_write=30.0)
_DELIVERIES: tuple[Delivery | None, ...] = (None, "steer", "steer", "queue", "queue", "reject", "interrupt")
_REQUEST_TIMEOUT = 3.0
_METHODS = [name for name in vars(SharedLedger) | vars(Ledger) if not name.startswith("_")]


def try_cluster_schedule(seed: int) -> None:
    """Play one schedule and check it."""
    run_seeded(lambda dice: ClusterSchedule(dice).play(), seed)


class _Connection:
    """The store as one node reaches it."""

    def __init__(self, store: MemoryLedger, node: "Node") -> None:
        for name in _METHODS:
            setattr(self, name, partial(self._call, getattr(store, name), node))

    async def _call(self, method: Callable[..., Awaitable[object]], node: "Node", *arguments: object) -> object:
        if node.is_cut:
            raise StorageUnavailable
        cuts = node.cuts
        result = await method(*arguments)
        if node.cuts != cuts:
            raise StorageUnknown
        return result


class Node:
    """A server process: it owns the workspace or serves it without owning it."""

    def __init__(self, schedule: "ClusterSchedule", name: str) -> None:
        self.name = name
        self.is_cut = False
        self.cuts = 0
        self.is_suspended = False
        self.workspace: Workspace | RemoteWorkspace | None = None
        self.wants_to_own = False
        self._is_fenced = False
        self._schedule = schedule
        self._ledger = cast("SharedLedger", _Connection(schedule.store, self))
        self._clock = CountingClock()
        self._ids = counting_ids(name)
        self._tasks = TaskOwner()
        self._context = contextvars.copy_context()
        self._context.run(_NODE.set, name)
        self._changed = asyncio.Event()
        self._context.run(lambda: self._tasks.start(self._serve(), name=f"role of {name}"))
        self._context.run(lambda: self._tasks.start(self._poll(), name=f"poll of {name}"))

    def start(self, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this process for a client, who handles its errors."""
        return self._context.run(lambda: self._tasks.start(request, name=f"request to {self.name}", done=_retrieve))

    @property
    def owns(self) -> bool:
        return isinstance(self.workspace, Workspace)

    def take_over(self) -> None:
        """Become the owner, whoever owns the workspace now."""
        self.wants_to_own = True
        self._changed.set()

    def wake(self) -> None:
        if isinstance(self.workspace, Workspace):
            self.workspace.catch_up()
        elif self.workspace is not None:
            self.workspace.wake()

    def notify(self) -> None:
        """Send wake-ups, some of which are lost."""
        for other in self._schedule.nodes:
            if other is not self and self._schedule.dice.random() < 0.6:
                other.start(_call(other.wake))

    def _fenced(self) -> None:
        self._is_fenced = True
        self._changed.set()

    async def _poll(self) -> None:
        while True:
            await elapse(1.0)
            if isinstance(self.workspace, Workspace):
                self.workspace.catch_up()

    async def _serve(self) -> None:
        """Open the workspace in the role of this node, again after each change of the role."""
        while True:
            self._changed.clear()
            if self.workspace is None or self.wants_to_own or self._is_fenced:
                before, self.workspace = self.workspace, None
                if before is not None:
                    # Nothing depends on a clean end: the next owner recovers.
                    with suppress(StorageError):
                        await before.close()
                try:
                    self.workspace = await self._open()
                except StorageError:
                    await elapse(0.1)
                    continue
            await self._changed.wait()

    async def _open(self) -> Workspace | RemoteWorkspace:
        if not self.wants_to_own:
            self._is_fenced = False
            return await open_remote_workspace(PATH, self._ledger, self._clock, self._ids, self.notify)
        self.wants_to_own = self._is_fenced = False
        self._schedule.log.takeovers += 1
        services = FixedServices(
            self._ledger,
            FixedModels(self._schedule.model),
            FixedTools(self._schedule.tools),
            _SETTINGS,
            self._clock,
            self._ids,
            judge=lambda _: Verdict("ask", "No rule.", ("bash(make)",)),
        )
        return await open_workspace(PATH, services, is_shared=True, on_owner_changed=self._fenced)

    async def stop(self) -> None:
        """Close the workspace and end all tasks."""
        if self.workspace is not None:
            await self.workspace.close()
        self._tasks.cancel_all()


async def _call(act: Callable[[], None]) -> None:
    act()


def _retrieve(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()


class ClusterSchedule:
    """Two clients that act, two that only read, and faults."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.log = ClusterLog()
        self.store = MemoryLedger(pace=self._pace, jump=0)
        self.model = ScriptedModel(self._script, pause=lambda: dice.choice((0.0, 0.0, 0.01, 0.2)), remembers=False)
        self.tools = [
            SimpleTool("work", self._work),
            SimpleTool("ask", self._ask, is_parallel=True),
            SimpleTool("question", self._question, is_parallel=True),
        ]
        self.sessions: list[SessionId] = []
        self.nodes: list[Node] = []
        self._prompts = 0
        self._is_over = False

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        self.nodes = [Node(self, name) for name in "ABC"]
        self.nodes[0].take_over()
        for _ in range(2):
            self.sessions.append((await self._retried(lambda workspace: workspace.sessions.create())).id)
        tasks = TaskOwner()
        readers = [tasks.start(self._read(name), name=name) for name in ("reader 1", "reader 2")]
        faults = tasks.start(self._break(loop), name="faults", done=_retrieve)
        clients = [tasks.start(self._client(name), name=name, done=_retrieve) for name in ("x", "y")]
        await asyncio.wait(clients)
        faults.cancel()
        self._heal(loop)
        self.nodes[self.dice.randrange(3)].take_over()
        await self._settle()
        _, self.log.newest = await self.store.bounds(self._workspace_id())
        self._is_over = True
        for node in self.nodes:
            node.wake()
        await asyncio.wait(readers)
        for client in (*clients, *readers):
            client.result()
        for node in self.nodes:
            await node.stop()
        tasks.cancel_all()
        for session in self.sessions:
            self.log.messages[session] = await self.store.messages(self._workspace_id(), session)
        check_cluster(self.log)

    def _workspace_id(self) -> Any:  # noqa: ANN401
        return next(node.workspace.id for node in self.nodes if node.workspace is not None)

    async def _settle(self) -> None:
        """Wait until every run has an end and every node has its role."""
        for _ in range(600):
            await elapse(0.1)
            roles = [node.workspace for node in self.nodes]
            if None in roles or sum(node.owns for node in self.nodes) != 1 or any(n.wants_to_own for n in self.nodes):
                for node in self.nodes:
                    node.wake()
                continue
            if not await self.store.open_runs(self._workspace_id()):
                return
            await self._answer_all()
        raise AssertionError("R2: runs without an end are left")

    async def _answer_all(self) -> None:
        for node in self.nodes:
            if (workspace := node.workspace) is None:
                continue
            with suppress(HoldfastError):
                for request in workspace.approvals.permissions:
                    await node.start(workspace.approvals.grant(request.id, "allow"))
                for batch in workspace.approvals.questions:
                    await node.start(workspace.approvals.answer(batch.id, ()))

    # Faults.

    async def _break(self, loop: SeededLoop) -> None:
        loop.is_suspended = self._is_suspended
        for _ in range(self.dice.randint(0, 4)):
            await elapse(self.dice.random() * self.dice.choice((0.05, 0.5)))
            node = self.dice.choice(self.nodes)
            fault = self.dice.random()
            if fault < 0.4:
                self.dice.choice(self.nodes).take_over()
            elif fault < 0.7:
                node.is_cut = True
                node.cuts += 1
            else:
                node.is_suspended = True
            if self.dice.random() < 0.6:
                await elapse(self.dice.choice((0.01, 0.3, 2.0)))
                self._heal(loop)
        await elapse(2.0)
        self._heal(loop)

    def _is_suspended(self, handle: asyncio.Handle) -> bool:
        name = handle._context.get(_NODE, "")  # type: ignore[attr-defined]
        return any(node.is_suspended and node.name == name for node in self.nodes)

    def _heal(self, loop: SeededLoop) -> None:
        for node in self.nodes:
            node.is_cut = node.is_suspended = False
        loop.resume()

    async def _pace(self) -> None:
        if self.dice.random() < 0.3:
            await elapse(self.dice.choice((0.0, 0.002)))

    # Clients.

    async def _request(self, act: Callable[[Workspace | RemoteWorkspace], Coroutine[Any, Any, T]]) -> T:
        """Send a request to some node. Raises `StorageUnknown` if no response comes in time."""
        node = self.dice.choice(self.nodes)
        if node.workspace is None:
            raise StorageUnavailable
        task = node.start(act(node.workspace))
        await asyncio.wait([task], timeout=_REQUEST_TIMEOUT)
        if not task.done() or task.cancelled():
            raise StorageUnknown
        return task.result()

    async def _retried(self, act: Callable[[Workspace | RemoteWorkspace], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await self._request(act)
            except StorageError:
                await elapse(0.05)

    async def _client(self, name: str) -> None:
        actions = (
            self._submit,
            self._cancel,
            self._cancel_run,
            self._clear,
            self._move,
            self._redeliver,
            self._answer,
            self._rename,
        )
        for _ in range(self.dice.randint(3, 7)):
            await elapse(self.dice.random() * self.dice.choice((0, 0.02, 0.4)))
            action = self.dice.choices(actions, (10, 3, 3, 1, 1, 1, 8, 1))[0]
            try:
                await action(name)
            except StorageError:
                self.log.uncertain += 1
            except HoldfastError:
                self.log.refused += 1

    async def _submit(self, name: str) -> None:
        self._prompts += 1
        run_id = RunId(f"{name}-{self._prompts}")
        session, delivery = self.dice.choice(self.sessions), self.dice.choice(_DELIVERIES)
        prompt = Prompt(session, "go", run_id=run_id, delivery=delivery, interactive=True)
        self.log.submitted.add(run_id)
        run = await self._stop(
            session if delivery == "interrupt" else run_id, lambda place: place.inputs.submit(prompt)
        )
        if self.dice.random() < 0.2:
            again = await self._request(lambda workspace: workspace.inputs.submit(prompt))
            assert (again.run_id, again.number) == (run.run_id, run.number), "a retry got another answer"
        self.log.accepted[run_id] = run

    async def _cancel(self, _: str) -> None:
        session = self.dice.choice(self.sessions)
        self.log.covered.update(await self._stop(session, lambda workspace: workspace.inputs.cancel(session)))

    async def _cancel_run(self, _: str) -> None:
        run_id = self._some_run()
        run = await self._stop(run_id, lambda workspace: workspace.inputs.cancel_run(run_id))
        if run.outcome is None:
            self.log.covered.add(run_id)

    async def _clear(self, _: str) -> None:
        session = self.dice.choice(self.sessions)
        self.log.covered.update(await self._stop(session, lambda workspace: workspace.inputs.clear(session)))

    async def _stop(
        self, subject: RunId | SessionId, act: Callable[[Workspace | RemoteWorkspace], Coroutine[Any, Any, T]]
    ) -> T:
        """Cancel runs. The owner stops them even if the cancel cannot be stored, and reports that."""
        try:
            return await self._request(act)
        except StorageError:
            self.log.stopped_without_store.add(subject)
            raise

    async def _move(self, _: str) -> None:
        run_id, place = self._some_run(), self.dice.randint(-1, 2)
        self.log.moved.add(run_id)
        await self._request(lambda workspace: workspace.inputs.move(run_id, place))

    async def _redeliver(self, _: str) -> None:
        run_id = self._some_run()
        await self._request(lambda workspace: workspace.inputs.redeliver(run_id, self.dice.choice(("steer", "queue"))))

    async def _rename(self, _: str) -> None:
        session = self.dice.choice(self.sessions)
        await self._request(lambda workspace: workspace.sessions.rename(session, "another title"))

    async def _answer(self, _: str) -> None:
        for node in self.nodes:
            workspace = node.workspace
            if workspace is not None and workspace.approvals.permissions:
                await self._answer_permission(workspace.approvals.permissions[0].id)
                return
            if workspace is not None and workspace.approvals.questions:
                await self._answer_questions(workspace.approvals.questions[0])
                return

    async def _answer_permission(self, request: str) -> None:
        actions: tuple[GrantAction, ...] = ("allow", "allow_session", "deny")
        action, reason = self.dice.choice(actions), self.dice.choice(("", "because"))
        if await self._request(lambda workspace: workspace.approvals.grant(request, action, reason=reason)):
            self.log.answered.append(request)

    async def _answer_questions(self, batch: QuestionRequest) -> None:
        given = [QuestionAnswer(question.id, yes=True) for question in batch.questions]
        if await self._request(lambda workspace: workspace.approvals.answer(batch.id, given)):
            self.log.answered.append(batch.id)

    def _some_run(self) -> RunId:
        return RunId(self.dice.choice(sorted(self.log.submitted) or ["none"]))

    # Readers.

    async def _read(self, name: str) -> None:
        """Follow the events on some node, then on another one, with the cursor of the last event."""
        seen = self.log.seen[name] = []
        cursor = 0
        while not self._is_over or cursor < self.log.newest:
            node = self.dice.choice(self.nodes)
            if node.workspace is None or node.is_suspended:
                await elapse(0.05)
                continue
            subscription = node.workspace.bus.subscribe(cursor)
            changes_at = len(seen) + self.dice.randint(1, 30)
            try:
                while len(seen) < changes_at and (not self._is_over or cursor < self.log.newest):
                    frames = await self._frames(subscription.take())
                    if not frames:
                        break
                    for frame in frames:
                        if frame.number:
                            seen.append((frame.number, frame.body))
                            cursor = frame.number
                        elif frame.body.startswith(b'{"type":"gap"'):
                            self.log.gaps += 1
            except (StorageError, TimeoutError):
                await elapse(0.05)
            finally:
                subscription.close()

    async def _frames(self, taking: Coroutine[Any, Any, list[Frame]]) -> list[Frame]:
        async with asyncio.timeout(0.7):
            return await taking

    # The model and its tools.

    def _script(self, request: ModelRequest) -> Step:
        acts: list[Act] = [Say("words")]
        results = sum(message.role == "tool" for message in request.messages)
        if self.dice.random() < (0.6 if results < 6 else 0.0):
            acts.append(Call(self.dice.choice(("work", "ask", "question"))))
        return Step(tuple(acts))

    async def _work(self, _: ToolContext, __: dict[str, object]) -> ToolOutcome:
        await elapse(self.dice.choice((0.0, 0.05, 0.3)))
        return ToolOutcome("done")

    async def _ask(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.permit(Permit("bash", "execute", PATH, "run", {"command": "make"}, "make"))
        return ToolOutcome("allowed")

    async def _question(self, context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        answers = await context.ask_questions(QuestionBatch((Question("", "yes_no", "?"),)))
        return ToolOutcome(str(answers))
