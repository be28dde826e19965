"""What kinds of helpers there are, and which run is of which kind."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.ids import RunId
from holdfast.domain.tools import Errand, ToolContext
from holdfast.engine.ports import Tools

__all__ = ["Crew", "Crews", "Sender"]


class Crew(msgspec.Struct, frozen=True):
    """What helpers of one kind work with: their tools, their model, how they are told to work.

    `model` is `large`, `small` or a name. `prompt` are somebody's own words, in place of those in the file `text`.
    """

    tools: Tools
    model: str = "large"
    text: str = "task.md"
    prompt: str = ""


Sender: TypeAlias = Callable[[ToolContext, Errand], Awaitable[str]]


class Crews:
    """Only for runs that are under way: a helper is never taken up again."""

    def __init__(self) -> None:
        self._kinds: dict[str, Crew] = {}
        self._runs: dict[RunId, Crew] = {}
        self.sender: Sender | None = None
        """Who sends them: set when the workspace is put together."""
        self.find: Callable[[str], Crew | None] = lambda _: None
        """The kinds that people brought along, as they are now."""

    def add(self, kind: str, crew: Crew) -> None:
        self._kinds[kind] = crew

    async def send(self, context: ToolContext, errand: Errand) -> str:
        """The helper's last words. Raises `ToolError`."""
        if self.sender is None or self.of_kind(errand.kind) is None:
            raise ToolError("There are no helpers of this kind here. Do it yourself.")
        return await self.sender(context, errand)

    def of_kind(self, kind: str) -> Crew | None:
        return self._kinds.get(kind) or self.find(kind)

    def assign(self, run: RunId, crew: Crew) -> None:
        self._runs[run] = crew

    def dismiss(self, run: RunId) -> None:
        self._runs.pop(run, None)

    def of(self, run: RunId) -> Crew | None:
        """None for a run that is nobody's helper."""
        return self._runs.get(run)
