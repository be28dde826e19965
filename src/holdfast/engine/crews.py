"""What kinds of helpers there are, and which run is of which kind."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.ids import RunId
from holdfast.domain.tools import Errand, ToolContext
from holdfast.engine.ports import Tools

__all__ = ["Crew", "Crews", "Sender"]


class Crew(msgspec.Struct, frozen=True):
    """What helpers of one kind work with: their tools, which of the two models, how they are told to work."""

    tools: Tools
    model: Literal["large", "small"] = "large"
    text: str = "task.md"


Sender: TypeAlias = Callable[[ToolContext, Errand], Awaitable[str]]


class Crews:
    """Only for runs that are under way: a helper is never taken up again."""

    def __init__(self) -> None:
        self._kinds: dict[str, Crew] = {}
        self._runs: dict[RunId, Crew] = {}
        self.sender: Sender | None = None
        """Who sends them: set when the workspace is put together."""

    def add(self, kind: str, crew: Crew) -> None:
        self._kinds[kind] = crew

    async def send(self, context: ToolContext, errand: Errand) -> str:
        """The helper's last words. Raises `ToolError`."""
        if self.sender is None or errand.kind not in self._kinds:
            raise ToolError("There are no helpers of this kind here. Do it yourself.")
        return await self.sender(context, errand)

    def assign(self, run: RunId, kind: str) -> None:
        self._runs[run] = self._kinds[kind]

    def dismiss(self, run: RunId) -> None:
        self._runs.pop(run, None)

    def of(self, run: RunId) -> Crew | None:
        """None for a run that is nobody's helper."""
        return self._runs.get(run)
