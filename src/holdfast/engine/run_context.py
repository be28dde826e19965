"""Dependencies of a run: the ports, callbacks and settings that the agent loop uses."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import ProviderError, ToolError
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import Ruling, ToolUse
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.project_context import Surroundings
from holdfast.domain.runs import Run
from holdfast.domain.tools import Errand, Inquiry, Permit, ToolContext, ToolOutcome
from holdfast.engine.ports import ContextLoader, Hooks, Ledger, Model, Models, Permissions, Tools
from holdfast.engine.settings import EngineSettings

__all__ = [
    "Allows",
    "Farewell",
    "NoApprovals",
    "NoHooks",
    "RunContext",
    "Sender",
    "SubagentRegistry",
    "SubagentType",
    "text",
]


# What kinds of helpers there are, and which run is of which kind.


class SubagentType(msgspec.Struct, frozen=True):
    """What helpers of one kind work with: their tools, their model, how they are told to work.

    `model` is `large`, `small` or a name. `prompt` are somebody's own words, in place of those in the file `text`.
    """

    tools: Tools
    model: str = "large"
    text: str = "task.md"
    prompt: str = ""


Sender: TypeAlias = Callable[[ToolContext, Errand], Awaitable[str]]


class SubagentRegistry:
    """Only for runs that are under way: a helper is never taken up again."""

    def __init__(self) -> None:
        self._kinds: dict[str, SubagentType] = {}
        self._runs: dict[RunId, SubagentType] = {}
        self.sender: Sender | None = None
        """Who sends them: set when the workspace is put together."""
        self.find: Callable[[str], SubagentType | None] = lambda _: None
        """The kinds that people brought along, as they are now."""

    def add(self, kind: str, crew: SubagentType) -> None:
        self._kinds[kind] = crew

    async def send(self, context: ToolContext, errand: Errand) -> str:
        """The helper's last words. Raises `ToolError`."""
        if self.sender is None or self.of_kind(errand.kind) is None:
            raise ToolError("There are no helpers of this kind here. Do it yourself.")
        return await self.sender(context, errand)

    def of_kind(self, kind: str) -> SubagentType | None:
        return self._kinds.get(kind) or self.find(kind)

    def assign(self, run: RunId, crew: SubagentType) -> None:
        self._runs[run] = crew

    def dismiss(self, run: RunId) -> None:
        self._runs.pop(run, None)

    def of(self, run: RunId) -> SubagentType | None:
        """None for a run that is nobody's helper."""
        return self._runs.get(run)


# Dependencies of a run: the ports, callbacks and settings that the agent loop uses.


@cache
def text(name: str) -> str:
    """One of the texts written for models that stand beside this code."""
    return Path(__file__).with_name("texts").joinpath(name).read_text("utf-8")


Farewell: TypeAlias = Callable[[RunId], Awaitable[None]]
Allows: TypeAlias = Callable[[Sequence[str], Permit], bool]


class NoApprovals:
    """Lets every tool act: for workspaces in which somebody else is on guard, such as a test."""

    async def permit(
        self, context: ToolContext, permit: Permit, *, interactive: bool, skips: bool = False, insists: bool = False
    ) -> None:
        return

    async def inquire(self, context: ToolContext, inquiry: Inquiry) -> tuple[QuestionAnswer, ...] | None:
        raise ToolError("Nobody can be asked here.")


class NoHooks:
    """Nobody has anything to say."""

    async def before_tool(self, use: ToolUse) -> Ruling:
        return Ruling()

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> Ruling:
        return Ruling()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> Ruling:
        return Ruling()

    def after_run(self, end: RunComplete) -> None:
        return


class RunContext(msgspec.Struct, frozen=True):
    """Dependencies of the runs of one workspace."""

    workspace: WorkspaceId
    path: str
    ledger: Ledger
    models: Models
    tools: Tools
    settings_now: Callable[[], EngineSettings]
    """They may be changed while a workspace is open."""
    permissions: Permissions = NoApprovals()
    environment: Mapping[str, str] = {}
    lookout: ContextLoader | None = None
    crews: SubagentRegistry = msgspec.field(default_factory=SubagentRegistry)
    farewell: Farewell | None = None
    """Told of every run that did not complete, before its end is stored: what it left behind goes with it."""
    settled: Callable[[], Awaitable[None]] | None = None
    """Until the tools that people bring along are there: waited for where nobody looks on, who could do without."""
    hooks: Hooks = NoHooks()
    allows: Allows = lambda rules, permit: False
    """Whether rules that hold for one run allow something."""
    fault_of: Callable[[RunId], str] = lambda _: ""
    """Why a run must not end as completed, whatever the model says; empty if it may."""
    named_model: Callable[[str], Awaitable[Model]] | None = None
    """A model by its name. Raises `ProviderError` if it cannot be used."""

    @property
    def settings(self) -> EngineSettings:
        return self.settings_now()

    async def model(self, name: str) -> tuple[Model, str]:
        """`large`, `small`, or the one of that name; where that cannot be used, the large one, and why."""
        if name == "small":
            return await self.models.small(), ""
        trouble = ""
        if name not in ("", "large") and self.named_model is not None:
            try:
                return await self.named_model(name), ""
            except ProviderError as error:
                trouble = str(error)
        model = await self.models.large()
        return model, f"{trouble} {model.info.provider}/{model.info.model} is asked instead." if trouble else ""

    async def leave(self, run: RunId) -> None:
        """Whatever comes of it, the run ends."""
        if self.farewell is not None:
            try:
                async with asyncio.timeout(self.settings.closing):
                    await self.farewell(run)
            except Exception as error:
                context = {"message": f"what run {run} left behind could not be cleared away", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def surroundings(self, session: SessionId) -> Surroundings:
        return await self.lookout.look(session) if self.lookout else Surroundings(self.path)
