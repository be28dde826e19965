"""Gates: points at which a test suspends the scripted model, a tool or the store. They replace sleeps."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart, ToolSpec
from holdfast.domain.store_operations import Answer, Write
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.providers.scripted_model import Act, ScriptedModel, Step
from holdfast.tasks import TaskOwner
from holdfast.testing.memory_ledger import MemoryLedger

__all__ = ["Gate", "GatedLedger", "GatedModel", "GatedTool", "HeldModel", "SimpleTool", "settle_down", "start", "until"]

T = TypeVar("T")
_tasks = TaskOwner()
_UNTIL_SECONDS = 45.0
_IDLE_TURN_SECONDS = 50e-6
"""An iteration that is shorter has called nothing else."""
_MAX_IDLE_TURNS = 200


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a coroutine in the background. Its exception is not logged; the test reads the result later."""
    return _tasks.start(work, name="test", done=lambda task: task.cancelled() or task.exception())


async def settle_down(turns: int = 50) -> None:
    """Run the event loop until callbacks that are ready, and those they schedule, have run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Run the event loop until the condition holds. Raises `AssertionError` if it never does.

    The limit is a time and not a number of iterations: how many iterations pass while a thread or another process works
    depends on the load of the machine. A loop with a task that is always ready never waits, so a virtual clock does not
    advance. While nothing but this task runs, its thread sleeps, which leaves the processor and the interpreter lock to
    the threads and processes that the condition depends on.
    """
    now = time.perf_counter()
    end = now + _UNTIL_SECONDS
    idle_turns = 0
    while not condition():
        if now > end:
            raise AssertionError("it never happened")
        if idle_turns > _MAX_IDLE_TURNS:
            time.sleep(0.001)  # noqa: TID251, ASYNC251 - the reason is above
        began = time.perf_counter()
        await asyncio.sleep(0)
        now = time.perf_counter()
        idle_turns = idle_turns + 1 if now - began < _IDLE_TURN_SECONDS else 0


class Gate:
    """A point that callers pass only while it is open. `reached` is set when the first caller arrives."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._open = asyncio.Event()
        self.reached = asyncio.Event()
        self.passed = 0
        if is_open:
            self._open.set()

    def open(self) -> None:
        """Let waiting and future callers pass."""
        self._open.set()

    def shut(self) -> None:
        """Suspend future callers."""
        self._open.clear()

    async def __call__(self) -> None:
        self.reached.set()
        await self._open.wait()
        self.passed += 1


class GatedModel:
    """A scripted model with a gate before each answer and one after a given number of its parts."""

    def __init__(self, model: ScriptedModel, *, after: int = 0) -> None:
        self._model = model
        self._after = after
        self.before = Gate(is_open=True)
        self.midway = Gate(is_open=True)

    @property
    def info(self) -> ModelInfo:
        """The description of the scripted model."""
        return self._model.info

    @property
    def requests(self) -> list[ModelRequest]:
        """The requests received so far."""
        return self._model.requests

    @property
    def open_streams(self) -> int:
        """The number of responses being streamed."""
        return self._model.open_streams

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Stream the scripted response, suspended at the gates."""
        await self.before()
        count = 0
        async with aclosing(self._model.stream(request)) as parts:
            async for part in parts:
                if count == self._after:
                    await self.midway()
                count += 1
                yield part


class HeldModel:
    """A scripted model whose responses are supplied while the requests wait, one per session."""

    def __init__(self) -> None:
        self._model = ScriptedModel(lambda request: self._steps[request.session_id])
        self._steps: dict[SessionId, Step] = {}
        self._held: dict[SessionId, asyncio.Future[Step]] = {}
        self.asked: dict[SessionId, ModelRequest] = {}
        """The requests that wait for a response."""

    @property
    def info(self) -> ModelInfo:
        """The description of the scripted model."""
        return self._model.info

    def answer(self, session: SessionId, *acts: Act) -> None:
        """Supply the response to the waiting request of a session."""
        self._held[session].set_result(Step(acts))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Wait for the response to be supplied, then stream it."""
        session = request.session_id
        held = self._held[session] = asyncio.get_running_loop().create_future()
        self.asked[session] = request
        try:
            self._steps[session] = await held
        finally:
            del self.asked[session], self._held[session]
        async with aclosing(self._model.stream(request)) as parts:
            async for part in parts:
                yield part


class SimpleTool:
    """A tool that calls a function."""

    def __init__(
        self,
        name: str,
        act: Callable[[ToolContext, dict[str, object]], Awaitable[ToolOutcome]],
        *,
        is_parallel: bool = False,
    ) -> None:
        self._spec = ToolSpec(name, f"The tool {name} of a test.", '{"type":"object"}')
        self._act = act
        self.is_parallel = is_parallel
        self.started = 0

    @property
    def spec(self) -> ToolSpec:
        """The name, description and schema of the tool."""
        return self._spec

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        """Count the call and run the function."""
        self.started += 1
        return await self._act(context, arguments)


class GatedTool(SimpleTool):
    """A tool that waits at its gate, then returns a result."""

    def __init__(self, name: str, *, is_parallel: bool = False) -> None:
        self.gate = Gate()
        self.running = 0
        self.most_at_once = 0
        super().__init__(name, self._wait, is_parallel=is_parallel)

    async def _wait(self, _: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await self.gate()
        finally:
            self.running -= 1
        return ToolOutcome(f"{self.spec.name} done {arguments.get('n', '')}".strip())


class GatedLedger(MemoryLedger):
    """A store in memory whose commits can be suspended or refused, and which records the writes it committed."""

    def __init__(self) -> None:
        self.gate = Gate(is_open=True)
        self.error: Exception | None = None
        self.batches: list[Sequence[Write]] = []
        self.asked = asyncio.Event()
        """Set by every attempt to commit, even if it fails."""
        self.refused: tuple[type, ...] = ()
        """Writes that contain an operation of these types fail."""
        self._held: tuple[type, ...] = ()
        super().__init__(fail=lambda: self.error)

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        """Commit the writes after passing the gate, unless they are refused."""
        operations = [operation for write in writes for operation in write.operations]
        if not self._held or any(isinstance(operation, self._held) for operation in operations):
            await self.gate()
        self.asked.set()
        if any(isinstance(operation, self.refused) for operation in operations):
            raise StorageUnavailable
        answers = await super().commit(workspace, epoch, ticket, writes)
        self.batches.append(writes)
        return answers

    @property
    def seen(self) -> list[Write]:
        """All committed writes."""
        return [write for batch in self.batches for write in batch]

    def hold(self, *kinds: type) -> None:
        """Suspend every following write that contains an operation of these types; without types, every write."""
        self.gate = Gate()
        self._held = kinds

    def writes_of(self, kind: type) -> list[Write]:
        """Return the committed writes that contain an operation of this type."""
        return [write for write in self.seen if any(isinstance(item, kind) for item in write.operations)]
