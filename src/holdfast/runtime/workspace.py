"""A workspace: the engine, the event bus, and everything that accepts input for them.

Order of construction. The bus sends the open parts of active runs to new subscribers, and those runs publish through
the bus; both receive the same `ActiveRuns`. The services of a workspace publish live events, and its engine uses the
services; both receive the same `WorkspaceEvents`, which is created first. A sub-agent is a run of the engine that
starts it, so the engine itself creates the function by which its tools start sub-agents.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec

from holdfast.bus.bus import Bus
from holdfast.domain.approvals import Verdict
from holdfast.domain.events import LiveEvent, MessagePart
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.store_operations import Entry, WorkspaceRecord
from holdfast.engine.active_runs import ActiveRuns
from holdfast.engine.approvals import Approvals, Judge, SaveRule
from holdfast.engine.engine import Engine
from holdfast.engine.inputs import Inputs
from holdfast.engine.ports import Clock, ContextLoader, Hooks, Ledger, Model, Models, NewId, Outlet, Tools
from holdfast.engine.recorder import Recorder
from holdfast.engine.recovery import RecoveryPlan, recover
from holdfast.engine.remote_inputs import RemoteInputs
from holdfast.engine.run_context import NoHooks, RulesAllow, RunCleanup, RunContext, SubagentRegistry, SubagentType
from holdfast.engine.run_lifecycle import Lane
from holdfast.engine.sessions import Sessions
from holdfast.engine.settings import EngineSettings
from holdfast.engine.subagents import SubagentRunner
from holdfast.tools.registry import BuiltinTools

__all__ = [
    "DEFAULT_APPROVAL_TIMEOUT",
    "EngineServices",
    "FixedServices",
    "SystemClock",
    "Workspace",
    "WorkspaceEvents",
    "new_id",
    "open_workspace",
]

DEFAULT_APPROVAL_TIMEOUT = 86_400.0
"""Seconds for which an approval request waits while no client is attached, unless the settings say otherwise."""


class SystemClock:
    """The clock of the system."""

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000


def new_id() -> str:
    """Return a new random id."""
    return secrets.token_hex(16)


class EngineServices(Protocol):
    """The services that a workspace uses.

    Two implementations: `WorkspaceServices` for servers, and `FixedServices` for the demonstration and for tests, which
    run an engine without settings, processes and extensions.
    """

    @property
    def ledger(self) -> Ledger:
        """The store."""

    @property
    def clock(self) -> Clock:
        """The clock of stored times."""

    @property
    def new_id(self) -> NewId:
        """Returns a new unique id."""

    @property
    def judge(self) -> Judge:
        """Returns the decision of the permission rules about a tool call."""

    @property
    def save_rule(self) -> SaveRule | None:
        """Saves a rule of "always allow"; if None, it applies until the workspace is closed."""

    def approval_timeout(self) -> float:
        """Return for how many seconds a request waits for an answer while no client is attached."""

    def run_context(self, record: WorkspaceRecord, approvals: Approvals) -> RunContext:
        """Return the dependencies of the workspace's runs."""

    async def close(self) -> None:
        """Release everything that belongs to this workspace."""


class WorkspaceEvents:
    """The event bus of a workspace, and the outlet through which services and engine publish.

    `observe` may wrap the bus, for example to count events. A `bus` that exists already changes its source: this server
    has become the owner of the workspace, and its subscribers stay.
    """

    def __init__(
        self,
        record: WorkspaceRecord,
        ledger: Ledger,
        observe: Callable[[Outlet], Outlet] = lambda outlet: outlet,
        bus: Bus | None = None,
    ) -> None:
        self.active_runs = ActiveRuns()
        if bus is None:
            bus = Bus(record, ledger, self.active_runs.open_parts)
        else:
            bus.change_source(record, self.active_runs.open_parts)
        self.bus = bus
        self.outlet = observe(self.bus)


class Workspace:
    """An open directory: accepts prompts, runs them, and publishes what happens. `recover` must be called first.

    `on_busy` is called when the first run becomes active and when the last one has ended.
    """

    def __init__(  # noqa: PLR0913 - each is a dependency
        self,
        record: WorkspaceRecord,
        services: EngineServices,
        events: WorkspaceEvents,
        on_busy: Callable[[bool], None] = lambda _: None,
        *,
        is_shared: bool = False,
        on_owner_changed: Callable[[], None] = lambda: None,
        on_session_deleted: Callable[[SessionId], None] = lambda _: None,
    ) -> None:
        """`is_shared`: other servers accept inputs for the workspace. `on_owner_changed` is called when a write shows
        that another server has taken it over; the workspace must be closed then. `on_session_deleted` removes data of a
        session outside of the store when another server has deleted it.
        """
        self.record = record
        self.services = services
        self.bus = events.bus
        self.ledger = services.ledger
        self.clock = services.clock
        self.new_id = services.new_id
        inbox = self._apply_remote_inputs if is_shared else None
        self.recorder = Recorder(services.ledger, record, events.outlet, inbox, on_owner_changed)
        self.approvals = Approvals(
            self.recorder,
            services.ledger,
            services.new_id,
            services.judge,
            save_rule=services.save_rule,
            timeout=services.approval_timeout,
        )
        self.engine = Engine(
            services.run_context(record, self.approvals),
            self.recorder,
            services.clock,
            services.new_id,
            events.active_runs,
            subagents=lambda engine: SubagentRunner(engine).run,
            on_busy=on_busy,
        )
        self.inputs = Inputs(self.engine)
        self.sessions = Sessions(self.engine, self.inputs)
        self.remote_inputs = RemoteInputs(self.engine, self.approvals, on_session_deleted)
        self.recovered = RecoveryPlan((), ())
        """The runs that an earlier server left unfinished, and how each was treated."""

    async def recover(self, *, resume: bool = True) -> None:
        """End the runs that an earlier server interrupted. With `resume`, queue those again that had not begun;
        otherwise they stay stored for a later server.
        """
        self.recovered = await recover(self.engine, resume=resume)
        await self.remote_inputs.start(self.recovered.runs)

    async def _apply_remote_inputs(self, entries: Sequence[Entry]) -> None:
        await self.remote_inputs.apply(entries)

    def catch_up(self, on_found: Callable[[], None] | None = None) -> None:
        """Read the inputs that other servers have stored for this workspace. `on_found` is called if there are some.
        Without effect if the store is not shared.
        """
        self.recorder.catch_up(on_found)

    @property
    def id(self) -> WorkspaceId:
        """The id of the workspace, which stays the same when the directory is opened again."""
        return self.record.id

    @property
    def path(self) -> str:
        """The real path of the directory."""
        return self.record.path

    @property
    def models(self) -> Models:
        """The selected models."""
        return self.engine.run_context.models

    @property
    def tools(self) -> Tools:
        """The tools of new runs."""
        return self.engine.run_context.tools

    def publish_live(self, event: LiveEvent) -> None:
        """Publish an event that is not stored to the current subscribers."""
        self.recorder.outlet.publish_live(event)

    def is_busy(self, session: SessionId | None = None) -> bool:
        """Return True while a run of the session, or of any session, is active."""
        return self.engine.is_busy(session)

    @property
    def is_quiet(self) -> bool:
        """Whether no run is active and nothing is being stored."""
        return not self.is_busy() and self.engine.is_quiet and not len(self.recorder.tasks)

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
        """End active runs, store their ends, release the services and end the event streams.

        The workspace is marked as closed only if everything was stored; otherwise the next server recovers it.
        """
        async with AsyncExitStack() as stack:
            # Callbacks run in reverse order, also if an earlier one fails: streams end last.
            stack.callback(self.bus.close)
            is_clean = await self.hand_over()
        if is_clean:
            await self.ledger.close_workspace(self.record.id, self.record.epoch)

    async def hand_over(self) -> bool:
        """End active runs, store their ends and release the services; the event streams stay open. Returns whether
        everything was stored.
        """
        try:
            return await self.engine.close()
        finally:
            await self.services.close()

    async def abandon(self) -> None:
        """Stop everything without storing it: another server owns the workspace. The event streams stay open."""
        try:
            await self.engine.abandon()
        finally:
            await self.services.close()

    @property
    def newest(self) -> int:
        """The number up to which every event was written or applied here."""
        return self.recorder.newest


def _allow(_: object) -> Verdict:
    return Verdict("allow")


class FixedServices(msgspec.Struct, frozen=True):
    """Services that are given one by one: for the demonstration and for tests. See `RunContext` for their meaning."""

    ledger: Ledger
    models: Models
    tools: Tools = msgspec.field(default_factory=BuiltinTools)
    settings: EngineSettings = EngineSettings()
    clock: Clock = msgspec.field(default_factory=SystemClock)
    new_id: NewId = new_id
    wrap_outlet: Callable[[Outlet], Outlet] = lambda outlet: outlet
    """Wraps the event bus, for tests that record events."""
    context_loader: ContextLoader | None = None
    subagent_types: Mapping[str, SubagentType] = {}
    environment: Mapping[str, str] = {}
    cleanup: RunCleanup | None = None
    completion_error: Callable[[RunId], str] = lambda _: ""
    extensions_ready: Callable[[], Awaitable[None]] | None = None
    judge: Judge = _allow
    hooks: Hooks = NoHooks()
    rules_allow: RulesAllow = lambda rules, permit: False
    named_model: Callable[[str], Awaitable[Model]] | None = None
    find_subagent_type: Callable[[str], SubagentType | None] = lambda _: None
    save_rule: SaveRule | None = None
    current_settings: Callable[[], EngineSettings] | None = None
    """Replaces `settings` where they change while the workspace is open."""

    def approval_timeout(self) -> float:
        """Return the default timeout."""
        return DEFAULT_APPROVAL_TIMEOUT

    def run_context(self, record: WorkspaceRecord, approvals: Approvals) -> RunContext:
        """Return the services as dependencies of runs."""
        return RunContext(
            record.id,
            record.path,
            self.ledger,
            self.models,
            self.tools,
            self.current_settings or (lambda: self.settings),
            permissions=approvals,
            environment=self.environment,
            context_loader=self.context_loader,
            subagents=SubagentRegistry(self.subagent_types, self.find_subagent_type),
            cleanup=self.cleanup,
            completion_error=self.completion_error,
            extensions_ready=self.extensions_ready,
            hooks=self.hooks,
            rules_allow=self.rules_allow,
            named_model=self.named_model,
        )

    async def close(self) -> None:
        """Do nothing: the services belong to the caller."""
        return


async def open_workspace(
    path: str,
    services: FixedServices,
    *,
    is_shared: bool = False,
    on_owner_changed: Callable[[], None] = lambda: None,
) -> Workspace:
    """Open the workspace of a directory with these services, and recover it."""
    record = await services.ledger.open_workspace(path)
    events = WorkspaceEvents(record, services.ledger, services.wrap_outlet)
    workspace = Workspace(record, services, events, is_shared=is_shared, on_owner_changed=on_owner_changed)
    await workspace.recover()
    return workspace
