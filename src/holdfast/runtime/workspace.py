"""Where it is put together: the only file that knows every room."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.bus.bus import Bus
from holdfast.domain.approvals import Verdict
from holdfast.domain.errors import BadRequest, HoldfastError, WorkspaceClosing
from holdfast.domain.events import LiveEvent, MessagePart
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.ledger import WorkspaceRecord
from holdfast.domain.messages import Message
from holdfast.engine.approvals import Approvals, Judge
from holdfast.engine.engine import ActiveRuns, Engine
from holdfast.engine.inputs import Inputs
from holdfast.engine.lifecycle import Lane
from holdfast.engine.ports import Clock, ContextLoader, Hooks, Ledger, Model, Models, NewId, Outlet, Tools
from holdfast.engine.recorder import Recorder
from holdfast.engine.recovery import RecoveryPlan, plan_recovery, recover
from holdfast.engine.run_context import NoHooks, RulesAllow, RunCleanup, RunContext, SubagentRegistry, SubagentType
from holdfast.engine.sessions import Sessions
from holdfast.engine.settings import EngineSettings
from holdfast.engine.subagents import SubagentRunner
from holdfast.storage.ledger import SqliteLedger
from holdfast.tasks import TaskOwner
from holdfast.tools.registry import BuiltinTools

# fmt: off
__all__ = [
    "App",
    "BareServices",
    "NobodyAnswers",
    "Services",
    "ServicesFactory",
    "SystemClock",
    "Workspace",
    "WorkspaceParts",
    "new_id",
    "open_workspace",
]
# fmt: on


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def new_id() -> str:
    return secrets.token_hex(16)


class Workspace:
    """A directory with its engine and its bus: all that a server, a demonstration or a test talks to."""

    def __init__(self, engine: Engine, bus: Bus, recovered: RecoveryPlan, asks: Approvals) -> None:
        self.engine = engine
        self.bus = bus
        self.approvals = asks
        self.services: Services | None = None
        """What was put in beside the engine; it goes when the workspace does."""
        self.inputs = Inputs(engine)
        self.sessions = Sessions(engine, self.inputs)
        self.recovered = recovered

    @property
    def record(self) -> WorkspaceRecord:
        return self.engine.record

    @property
    def id(self) -> WorkspaceId:
        """The id of the workspace, which stays the same when the directory is opened again."""
        return self.engine.record.id

    @property
    def path(self) -> str:
        """The real path of the directory."""
        return self.engine.record.path

    @property
    def ledger(self) -> Ledger:
        """The store."""
        return self.engine.run_context.ledger

    @property
    def models(self) -> Models:
        """The selected models."""
        return self.engine.run_context.models

    @property
    def tools(self) -> Tools:
        """The tools of new runs."""
        return self.engine.run_context.tools

    @property
    def recorder(self) -> Recorder:
        """Stores operations and publishes their events."""
        return self.engine.recorder

    @property
    def clock(self) -> Clock:
        """The clock of stored times."""
        return self.engine.clock

    @property
    def new_id(self) -> NewId:
        """Returns a new unique id."""
        return self.engine.new_id

    def publish_live(self, event: LiveEvent) -> None:
        """Publish an event that is not stored to the current subscribers."""
        self.engine.outlet.publish_live(event)

    def is_busy(self, session: SessionId | None = None) -> bool:
        """Return True while a run of the session, or of any session, is active."""
        return self.engine.is_busy(session)

    def lane(self, session: SessionId) -> Lane:
        """Return the scheduling state of a session."""
        return self.engine.lane(session)

    def open_parts(self) -> list[MessagePart]:
        """Return the message parts that are being streamed, each in full."""
        return self.engine.open_parts()

    def open_messages(self, session: SessionId) -> list[Message]:
        """Return the messages of a session that are being streamed."""
        return self.engine.open_messages(session)

    async def close(self) -> None:
        """End what is active, write everything down, end the streams, note that all is well."""
        async with AsyncExitStack() as stack:
            stack.callback(self.bus.close)
            if self.services is not None:
                stack.push_async_callback(self.services.close)
            is_clean = await self.engine.close()
        if is_clean:
            await self.engine.run_context.ledger.close_workspace(self.record.id, self.record.epoch)


class WorkspaceParts(msgspec.Struct, frozen=True):
    """What a workspace is built from. Tests hand over twins of any of it."""

    ledger: Ledger
    models: Models
    tools: Tools = msgspec.field(default_factory=BuiltinTools)
    settings: EngineSettings = EngineSettings()
    clock: Clock = msgspec.field(default_factory=SystemClock)
    new_id: NewId = new_id
    wrap_outlet: Callable[[Outlet], Outlet] = lambda outlet: outlet
    """What stands between the engine and its bus: nothing, or somebody who listens in."""
    context_loader: ContextLoader | None = None
    subagent_types: Mapping[str, SubagentType] = {}
    environment: Mapping[str, str] = {}
    cleanup: RunCleanup | None = None
    completion_error: Callable[[RunId], str] = lambda _: ""
    extensions_ready: Callable[[], Awaitable[None]] | None = None
    judge: Callable[[str], Judge] | None = None
    """The rules for the tools of a directory. Without any, everything is allowed."""
    hooks: Hooks = NoHooks()
    rules_allow: RulesAllow = lambda rules, permit: False
    named_model: Callable[[str], Awaitable[Model]] | None = None
    find_subagent_type: Callable[[str], SubagentType | None] = lambda _: None
    current_settings: Callable[[], EngineSettings] | None = None
    """In place of `settings`, where they may change while the workspace is open."""


class Services(Protocol):
    """What one workspace is given, and what has to be put away when it closes."""

    def parts(self) -> WorkspaceParts: ...

    async def can_answer(self, providers: Collection[str]) -> bool:
        """Whether prompts can go on that wait in conversations with these providers, though no client is there."""

    async def close(self) -> None: ...


class NobodyAnswers(HoldfastError):
    """No model can be used here until a client brings its keys: then the prompts that wait go on."""


class ServicesFactory(Protocol):
    """Furnishes workspaces, and has what they share."""

    def furnish(self, record: WorkspaceRecord, environment: Mapping[str, str]) -> Services:
        """For a workspace that was just taken over, by somebody who had set these variables."""

    async def close(self) -> None: ...


class BareServices:
    """The same parts for every workspace, and nothing beside them: for demonstrations and tests."""

    def __init__(self, ledger: Ledger, models: Models, settings: EngineSettings) -> None:
        self._parts = WorkspaceParts(ledger, models, settings=settings)

    def furnish(self, _: WorkspaceRecord, __: Mapping[str, str]) -> "BareServices":
        return self

    def parts(self) -> WorkspaceParts:
        return self._parts

    async def can_answer(self, _: Collection[str]) -> bool:
        return True

    async def close(self) -> None:
        return


async def open_workspace(path: str, parts: WorkspaceParts) -> Workspace:
    """Take the directory over, end or queue again what was left over, and be ready for prompts."""
    return await _assembled(await parts.ledger.open_workspace(path), parts)


async def _assembled(record: WorkspaceRecord, parts: WorkspaceParts, *, goes_on: bool = True) -> Workspace:
    path = record.path
    active_runs = ActiveRuns()
    bus = Bus(record, parts.ledger, active_runs.open_parts)
    recorder = Recorder(parts.ledger, record, parts.wrap_outlet(bus))
    judge = (lambda _: Verdict("allow")) if parts.judge is None else parts.judge(path)
    approvals = Approvals(record.id, parts.ledger, parts.new_id, recorder, judge)
    run_context = RunContext(
        record.id,
        path,
        parts.ledger,
        parts.models,
        parts.tools,
        parts.current_settings or (lambda: parts.settings),
        permissions=approvals,
        environment=parts.environment,
        context_loader=parts.context_loader,
        subagents=SubagentRegistry(parts.subagent_types, parts.find_subagent_type),
        cleanup=parts.cleanup,
        completion_error=parts.completion_error,
        extensions_ready=parts.extensions_ready,
        hooks=parts.hooks,
        rules_allow=parts.rules_allow,
        named_model=parts.named_model,
    )
    engine = Engine(
        run_context,
        recorder,
        parts.clock,
        parts.new_id,
        active_runs,
        subagents=lambda engine: SubagentRunner(engine).run,
    )
    return Workspace(engine, bus, await recover(engine, resume=goes_on), approvals)


class App:
    """One data directory and the workspaces that are open in it."""

    def __init__(self, data_dir: Path, furnisher: Callable[[Ledger], ServicesFactory]) -> None:
        self.ledger = SqliteLedger(data_dir)
        try:
            self._furnisher = furnisher(self.ledger)
        except BaseException:
            self.ledger.database.close()
            raise
        self._tasks = TaskOwner()
        self._open: dict[str, asyncio.Task[Workspace]] = {}

    async def workspace(
        self, directory: Path, environment: Mapping[str, str] | None = None, *, unattended: bool = False
    ) -> Workspace:
        """The workspace of a directory, keyed by its real path. Who asks while it is being opened gets the same.

        `unattended`: no client is there. Raises `NobodyAnswers` if that keeps prompts waiting.
        """
        path = _real_directory(directory)
        opening = self._open.get(path)
        if opening is None or (opening.done() and not _is_open(opening)):
            work = self._opened(path, environment or {}, unattended=unattended)
            opening = self._open[path] = self._tasks.start(work, name=f"open {path}", done=_is_open)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and not _is_cancelled():
                raise WorkspaceClosing from None
            raise

    async def _opened(self, path: str, environment: Mapping[str, str], *, unattended: bool) -> Workspace:
        record = await self.ledger.open_workspace(path)
        services = self._furnisher.furnish(record, environment)
        try:
            goes_on = not unattended or await self._can_go_on(record, services)
            workspace = await _assembled(record, services.parts(), goes_on=goes_on)
        except BaseException:
            await services.close()
            raise
        workspace.services = services
        if not goes_on:
            await workspace.close()
            raise NobodyAnswers
        return workspace

    async def _can_go_on(self, record: WorkspaceRecord, services: Services) -> bool:
        """Whether nothing waits, or there is a model for it."""
        sessions = {run.session_id for run in plan_recovery(await self.ledger.open_runs(record.id), {}).requeued}
        conversations = [await self.ledger.messages(record.id, session) for session in sessions]
        used = {message.provider for messages in conversations for message in messages if message.provider}
        return not sessions or await services.can_answer(used)

    async def close_workspace(self, workspace: Workspace) -> None:
        """Close one; the directory can be opened again afterwards."""
        try:
            await workspace.close()
        finally:
            self._open.pop(workspace.record.path, None)

    async def close(self) -> None:
        """Close what is open, each part also if another cannot be closed. What is being opened is given up."""
        for opening in self._open.values():
            opening.cancel()
        opened = await asyncio.gather(*self._open.values(), return_exceptions=True)
        self._open.clear()
        try:
            await _all_done(item.close() for item in opened if isinstance(item, Workspace))
        finally:
            try:
                await self._furnisher.close()
            finally:
                await self.ledger.close()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_open(opening: asyncio.Task[Workspace]) -> bool:
    """Return whether a workspace was opened. Retrieves the exception of a failed opening, so that it is not logged."""
    return not opening.cancelled() and opening.exception() is None


async def _all_done(work: Iterable[Awaitable[None]]) -> None:
    """Do all of it; then raise the first error, if there was one."""
    for end in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(end, BaseException):
            raise end


def _real_directory(directory: Path) -> str:
    path = directory.resolve()
    if not path.is_dir():
        raise BadRequest(f"{directory} is not a directory: name one that exists.")
    return str(path)
