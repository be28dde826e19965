"""Gates: places where a test holds the scripted model, a tool or the store until it says go. No sleeps."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from holdfast.domain.models import ModelInfo, ModelRequest, StreamPart, ToolSpec
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.providers.scripted import ScriptedModel

__all__ = ["Gate", "GatedModel", "GatedTool", "SimpleTool"]


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
