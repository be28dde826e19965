"""Gates: places where a test holds the scripted model, a tool or the store until it says go. No sleeps."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.ledger import Answer, Write
from holdfast.domain.models import ModelInfo, ModelRequest, StreamPart, ToolSpec
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.providers.scripted_model import Act, ScriptedModel, Step
from holdfast.tasks import TaskOwner
from holdfast.testing.memory_ledger import MemoryLedger

__all__ = ["Gate", "GatedLedger", "GatedModel", "GatedTool", "HeldModel", "SimpleTool", "settle_down", "start", "until"]

T = TypeVar("T")
_tasks = TaskOwner()


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin something in the background whose result is looked at later."""
    return _tasks.start(work, name="test", done=lambda task: task.cancelled() or task.exception())


async def settle_down(turns: int = 50) -> None:
    """Let everything that is ready run, and what becomes ready by it."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], *, most: int = 100_000) -> None:
    """Let others run until the condition holds."""
    for _ in range(most):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


class Gate:
    """Whoever comes here waits until it is open. `reached` tells that somebody has come."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._open = asyncio.Event()
        self.reached = asyncio.Event()
        self.passed = 0
        if is_open:
            self._open.set()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
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
        return self._model.info

    @property
    def requests(self) -> list[ModelRequest]:
        return self._model.requests

    @property
    def open_streams(self) -> int:
        return self._model.open_streams

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        await self.before()
        count = 0
        async with aclosing(self._model.stream(request)) as parts:
            async for part in parts:
                if count == self._after:
                    await self.midway()
                count += 1
                yield part


class HeldModel:
    """A scripted model that is told how to answer while it is being asked, one session at a time."""

    def __init__(self) -> None:
        self._model = ScriptedModel(lambda request: self._steps[request.session_id])
        self._steps: dict[SessionId, Step] = {}
        self._held: dict[SessionId, asyncio.Future[Step]] = {}
        self.asked: dict[SessionId, ModelRequest] = {}
        """The requests that wait for an answer."""

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    def answer(self, session: SessionId, *acts: Act) -> None:
        self._held[session].set_result(Step(acts))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
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
    """A tool made of a function."""

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
        return self._spec

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        self.started += 1
        return await self._act(context, arguments)


class GatedTool(SimpleTool):
    """A tool that waits at its gate, then answers."""

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
    """A store in memory whose commits can be held before they take effect, and that keeps what it was given."""

    def __init__(self) -> None:
        self.gate = Gate(is_open=True)
        self.error: Exception | None = None
        self.batches: list[Sequence[Write]] = []
        self.asked = asyncio.Event()
        """Set by every attempt to commit, also by one that fails."""
        self.refused: tuple[type, ...] = ()
        """Writes with an operation of these kinds fail."""
        self._held: tuple[type, ...] = ()
        super().__init__(fail=lambda: self.error)

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
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
        return [write for batch in self.batches for write in batch]

    def hold(self, *kinds: type) -> None:
        """From now on hold every write that has an operation of one of these kinds; without kinds, every write."""
        self.gate = Gate()
        self._held = kinds

    def writes_of(self, kind: type) -> list[Write]:
        """The writes that had an operation of this kind."""
        return [write for write in self.seen if any(isinstance(item, kind) for item in write.operations)]
