"""Dependencies of a run: the ports, callbacks and settings that the agent loop uses."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import NoUsableModel, ProviderError, ToolError
from holdfast.domain.events import RunComplete
from holdfast.domain.hooks import HookOutcome, ToolUse
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.project_context import ProjectContext
from holdfast.domain.runs import Run
from holdfast.domain.tools import Permit, QuestionBatch, SubagentTask, ToolContext, ToolOutcome
from holdfast.engine.ports import ContextLoader, Hooks, Ledger, Model, Models, Permissions, Tools
from holdfast.engine.settings import EngineSettings

__all__ = [
    "FindSubagentType",
    "NoApprovals",
    "NoHooks",
    "RulesAllow",
    "RunCleanup",
    "RunContext",
    "StartSubagent",
    "SubagentRegistry",
    "SubagentType",
    "text",
]


class SubagentType(msgspec.Struct, frozen=True):
    """Tools, model and instructions of one type of sub-agent.

    `model` is `large`, `small` or a model name. `prompt`, if set, replaces the instructions in the file `text`.
    """

    tools: Tools
    model: str = "large"
    text: str = "task.md"
    prompt: str = ""


StartSubagent: TypeAlias = Callable[[ToolContext, SubagentTask], Awaitable[str]]
FindSubagentType: TypeAlias = Callable[[str], SubagentType | None]
RunCleanup: TypeAlias = Callable[[RunId], Awaitable[None]]
RulesAllow: TypeAlias = Callable[[Sequence[str], Permit], bool]


class SubagentRegistry:
    """The types of sub-agents, and the type of each sub-agent that is running.

    `find` looks up types that are defined in files and may change while the workspace is open. A sub-agent is never
    resumed after a restart, so its assignment is kept in memory only.
    """

    def __init__(
        self, types: Mapping[str, SubagentType] | None = None, find: FindSubagentType = lambda _: None
    ) -> None:
        self._types = dict(types or {})
        self._find = find
        self._assigned: dict[RunId, SubagentType] = {}

    def add(self, name: str, subagent_type: SubagentType) -> None:
        """Add or replace a type."""
        self._types[name] = subagent_type

    def find(self, name: str) -> SubagentType | None:
        """Return the type of that name, None if there is none."""
        return self._types.get(name) or self._find(name)

    def assign(self, run: RunId, subagent_type: SubagentType) -> None:
        """Store the type of a sub-agent's run until `release`."""
        self._assigned[run] = subagent_type

    def release(self, run: RunId) -> None:
        """Forget the type of a run that has ended."""
        self._assigned.pop(run, None)

    def type_of(self, run: RunId) -> SubagentType | None:
        """Return the type of a run; None if the run is not a sub-agent's."""
        return self._assigned.get(run)


@cache
def text(name: str) -> str:
    """Return one of the texts for models in the directory `texts`."""
    return Path(__file__).with_name("texts").joinpath(name).read_text("utf-8")


class NoApprovals:
    """Allows every tool call and answers no questions: for workspaces without approvals, such as tests."""

    async def permit(
        self, context: ToolContext, permit: Permit, *, interactive: bool, skips: bool = False, insists: bool = False
    ) -> None:
        """Allow the call."""
        return

    async def ask_questions(self, context: ToolContext, batch: QuestionBatch) -> tuple[QuestionAnswer, ...] | None:
        """Raise `ToolError`."""
        raise ToolError("Questions cannot be answered here.")


class NoHooks:
    """Hooks of a workspace that has none."""

    async def before_tool(self, use: ToolUse) -> HookOutcome:
        """Return a ruling without effect."""
        return HookOutcome()

    async def after_tool(self, use: ToolUse, outcome: ToolOutcome) -> HookOutcome:
        """Return a ruling without effect."""
        return HookOutcome()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        """Return a ruling without effect."""
        return HookOutcome()

    def after_run(self, end: RunComplete) -> None:
        """Do nothing."""
        return


async def _no_subagents(context: ToolContext, task: SubagentTask) -> str:
    raise ToolError("There are no sub-agents here. Do it yourself.")


class RunContext(msgspec.Struct, frozen=True):
    """Dependencies of the runs of one workspace."""

    workspace: WorkspaceId
    path: str
    ledger: Ledger
    models: Models
    tools: Tools
    current_settings: Callable[[], EngineSettings]
    """Returns the settings, which may change while the workspace is open."""
    permissions: Permissions = NoApprovals()
    environment: Mapping[str, str] = {}
    context_loader: ContextLoader | None = None
    subagents: SubagentRegistry = msgspec.field(default_factory=SubagentRegistry)
    start_subagent: StartSubagent = _no_subagents
    """Runs a sub-agent and returns its final text. Supplied by the engine: a sub-agent's run is a run of the engine."""
    cleanup: RunCleanup | None = None
    """Cleanup callback for runs that did not complete; called before the end is stored."""
    extensions_ready: Callable[[], Awaitable[None]] | None = None
    """Awaited by unattended runs only: returns once extension tools are available."""
    hooks: Hooks = NoHooks()
    rules_allow: RulesAllow = lambda rules, permit: False
    """Returns whether the rules of one run, sent with its prompt, allow a tool call."""
    completion_error: Callable[[RunId], str] = lambda _: ""
    """Returns why a run must not end as completed, whatever the model says; empty if it may."""
    named_model: Callable[[str], Awaitable[Model]] | None = None
    """Returns a model by its name. Raises `ProviderError` if it cannot be used."""

    await_tools: Callable[[], Awaitable[None]] | None = None
    """Awaited before each tool call: returns once this server may change files. None if it always may."""
    await_model: Callable[[NoUsableModel], Awaitable[None]] | None = None
    """Awaited if no model can be used, before the next attempt. If it is None, the run fails."""
    may_fall_back: Callable[[], bool] = lambda: True
    """Returns whether the built-in model may replace a missing one."""

    @property
    def settings(self) -> EngineSettings:
        """The current settings."""
        return self.current_settings()

    async def model(self, name: str, *, allows_fallback: bool = True) -> tuple[Model, str]:
        """Return the model `large`, `small` or the one of that name, and an empty text. If a named model cannot be
        used, return the large model and the reason. The built-in model that replaces a missing one is an error unless
        `allows_fallback`.
        """
        while True:
            try:
                model, trouble = await self._model(name)
                if model.info.fallback_reason and not (allows_fallback and self.may_fall_back()):
                    raise NoUsableModel(model.info.fallback_reason)
                return model, trouble
            except NoUsableModel as error:
                if self.await_model is None:
                    raise
                await self.await_model(error)

    async def _model(self, name: str) -> tuple[Model, str]:
        if name == "small":
            return await self.models.small(), ""
        trouble = ""
        if name not in ("", "large") and self.named_model is not None:
            try:
                return await self.named_model(name), ""
            except ProviderError as error:
                trouble = str(error)
        model = await self.models.large()
        return model, f"{trouble} {model.info.provider}/{model.info.model} is used instead." if trouble else ""

    async def clean_up(self, run: RunId) -> None:
        """Call the cleanup callback. Its failure is reported to the loop's exception handler and never prevents the
        end of the run.
        """
        if self.cleanup is not None:
            try:
                async with asyncio.timeout(self.settings.closing):
                    await self.cleanup(run)
            except Exception as error:
                context = {"message": f"the cleanup of run {run} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def project_context(self, session: SessionId) -> ProjectContext:
        """Return the context files and git state for a session."""
        return await self.context_loader.load(session) if self.context_loader else ProjectContext(self.path)
