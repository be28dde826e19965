"""A workspace on one node of a cluster: owned by this node, or followed in its log.

Theory of operation. Membership decides who owns a workspace (`grant`), the clients of this node decide whether it is
open here (`is_used`). One task per workspace opens and closes it, one step after the other, until it matches both:
open it as the owner, release it, follow the log, stop following. Both forms publish to the same event bus, so the
streams of the clients continue across a change of the owner: events that the bus lacks are read from the log first.

After a change of the owner the engine stops at once, and the services end in the background, because killing processes
takes time. `dropped` returns when no process of them is left; they are not opened again before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast.bus.bus import Bus
from holdfast.cluster.live_events import LiveForwarder
from holdfast.cluster.notifications import NotificationSender
from holdfast.cluster.ports import OwnerInfo
from holdfast.cluster.remote_workspace import RemoteWorkspace
from holdfast.domain.errors import OwnerChanged, StorageError, StorageUnavailable
from holdfast.domain.events import AgentEvent, AgentNotice, Change, LiveEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import WorkspaceRecord
from holdfast.engine.ports import Outlet
from holdfast.engine.recorder import decode_entries
from holdfast.runtime.workspace import SystemClock, Workspace, new_id
from holdfast.runtime.workspace_services import Ownership, WorkspaceServices, open_owned_workspace
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.runtime.server_services import ServerServices
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger

__all__ = ["AnyWorkspace", "NodeCalls", "NodeWorkspace", "OpenedWorkspace"]

AnyWorkspace: TypeAlias = Workspace | RemoteWorkspace
_RETRY_SECONDS = 0.2
_FAULT_SECONDS = 5.0
"""Pause after an error that is not one of the store."""
_PAGE_SIZE = 500


class OpenedWorkspace(msgspec.Struct, frozen=True):
    """A workspace and its services. Those of a `RemoteWorkspace` are not started: they only read settings and files.
    They stay the same when this node becomes the owner.
    """

    workspace: AnyWorkspace
    services: WorkspaceServices


class NodeCalls(msgspec.Struct, frozen=True):
    """The interface of a node that its workspaces use."""

    await_tools: Callable[[WorkspaceId], Awaitable[None]]
    handle_fence: Callable[[WorkspaceId, int], None]
    on_busy: Callable[[WorkspaceId], None]
    on_change: Callable[["NodeWorkspace"], None]
    """Called when the workspace was opened in another form."""
    notify_owner: Callable[["NodeWorkspace"], None]
    read_state: Callable[["NodeWorkspace"], Awaitable[None]]
    """Reads owner and clients, and passes them to `apply_state`."""


class NodeWorkspace:
    """One workspace of a node. Exists while clients of the node use it or the node owns it."""

    def __init__(
        self,
        record: WorkspaceRecord,
        server: "ServerServices",
        ledger: "PostgresLedger",
        sender: NotificationSender,
        calls: NodeCalls,
    ) -> None:
        self.record = record
        self.environment: Mapping[str, str] = {}
        """The environment of the client that opened it first."""
        self.opened: OpenedWorkspace | None = None
        self.owner: OwnerInfo | None = None
        """The owner when it was last read."""
        self.clients: Mapping[str, int] = {}
        """The clients of the other nodes, by session."""
        self.is_used = False
        """True while it stays open without being owned."""
        self.uses = 0
        """The number of clients that wait until it is open; it stays open for them, too."""
        self.grant: int | None = None
        """The epoch under which this node owns it."""
        self.may_run_tools = False
        self._server = server
        self._ledger = ledger
        self._sender = sender
        self._calls = calls
        self._epoch: int | None = None
        """The epoch under which it is open."""
        self._bus: Bus | None = None
        self._services: WorkspaceServices | None = None
        self._is_started = self._is_handing_over = self._is_attached = False
        self._is_settling = False
        self._given_up: int | None = None
        """The epoch whose release is being stored: the workspace is not opened under it again until then."""
        self._tasks = TaskOwner()
        self._endings = TaskOwner()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def id(self) -> WorkspaceId:
        """The id of the workspace."""
        return self.record.id

    @property
    def is_local(self) -> bool:
        """True if this node owns it and has opened it."""
        return self.owned is not None

    @property
    def is_gone(self) -> bool:
        """True if nothing of it is left on this node."""
        return self.opened is None and self.grant is None and not self.is_needed and not len(self._endings)

    @property
    def is_needed(self) -> bool:
        """True if clients of this node keep it open."""
        return self.is_used or self.uses > 0

    @property
    def _wanted_epoch(self) -> int | None:
        """The epoch under which it has to be open as its owner, None if it must not."""
        return self.grant if self.grant != self._given_up else None

    @property
    def owned(self) -> Workspace | None:
        """The workspace as its owner runs it; None if this node does not own it."""
        if self._epoch is None or self._epoch != self._wanted_epoch or self.opened is None:
            return None
        return self.opened.workspace if isinstance(self.opened.workspace, Workspace) else None

    def set_grant(self, epoch: int | None, *, may_run_tools: bool = False) -> None:
        """Set the epoch under which this node owns the workspace; None ends the ownership."""
        self.grant, self.may_run_tools = epoch, may_run_tools
        self._start_services()
        self.update()

    def update(self) -> None:
        """Open, close or change the form of the workspace until it matches `grant` and `is_needed`."""
        if not self._is_settling:
            self._is_settling = True
            self._tasks.start(self._settle(), name=f"workspace {self.id}")

    def apply_state(self, owner: OwnerInfo | None, clients: Mapping[str, int], newest: int) -> None:
        """Apply what was read from the store: the owner, the clients of the other nodes, the newest event."""
        self.owner, self.clients = owner, clients
        self._update_attached()
        if self.owned is not None:
            if newest > self.owned.newest:
                self.owned.catch_up()
        elif (remote := self.remote) is not None and newest > remote.cursor:
            remote.wake()
        self.wake()

    @property
    def remote(self) -> RemoteWorkspace | None:
        """The workspace as it is followed; None if it is open in another form."""
        workspace = self.opened.workspace if self.opened is not None else None
        return workspace if isinstance(workspace, RemoteWorkspace) else None

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Return whether a condition about this object becomes true in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(waiter)
                    await waiter
        return condition()

    async def dropped(self, epoch: int) -> None:
        """Return when it is not open under the epoch any more and its processes have ended."""
        while self._epoch == epoch or len(self._endings):
            await self.wait_until(lambda: self._epoch != epoch and not len(self._endings), _RETRY_SECONDS)

    async def hand_over(self, seconds: float, is_urgent: asyncio.Event) -> None:
        """Let active runs end for some seconds, or until it is urgent; end the others, and stop the services. Inputs
        are accepted meanwhile, for the next owner. The caller then releases the workspace.
        """
        owned = self.owned
        if owned is not None:
            pauses = TaskOwner()
            waiting = (
                pauses.start(owned.engine.pause(), name="pause"),
                pauses.start(_is_set(is_urgent), name="urgent"),
                # If it is dropped meanwhile, its runs have no end here.
                pauses.start(self.wait_until(lambda: self.owned is not owned, seconds), name="dropped"),
            )
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            pauses.cancel_all()
            await pauses.drain()
        is_open = owned is not None and self.owned is owned
        self._given_up = self.grant
        if is_open and owned is not None:
            await self._end_ownership(owned)
        self.update()

    async def _end_ownership(self, owned: Workspace) -> None:
        self._is_handing_over = True
        try:
            # `owned` ends its services itself.
            self._services = None
            if self.is_needed:
                with suppress(StorageError):
                    await self._follow()
            await owned.hand_over()
        finally:
            self._epoch, self._is_handing_over = None, False
            self._is_started = self._is_attached = False
            if self.opened is not None and self.opened.workspace is owned:
                self.opened = None
            self.wake()
            self.update()

    async def stop(self) -> None:
        """End the runs and event streams at once, as the end of the process would."""
        self._tasks.cancel_all()
        await self._tasks.drain()
        self.grant, self.is_used, self.uses = None, False, 0
        if self._epoch is not None:
            await self._disown()
        self._unfollow()
        await self._endings.drain()
        if self._bus is not None:
            self._bus.close()

    # Steps

    def _is_settled(self) -> bool:
        if self._is_handing_over:
            return True
        if self._wanted_epoch is not None or self._epoch is not None:
            return self._wanted_epoch == self._epoch
        return self.is_needed == (self.opened is not None)

    async def _settle(self) -> None:
        try:
            while not self._is_settled():
                try:
                    await self._step()
                except StorageError:
                    await asyncio.sleep(_RETRY_SECONDS)
                except Exception as error:
                    # It must not stay as it is for ever: a later attempt may succeed.
                    context = {"message": f"workspace {self.id} could not be opened or closed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
                    await asyncio.sleep(_FAULT_SECONDS)
        finally:
            # Not when the task is over: an update that comes in between would be lost.
            self._is_settling = False

    async def _step(self) -> None:
        if self._epoch is not None:
            await self._disown()
        elif (epoch := self._wanted_epoch) is not None:
            try:
                await self._own(epoch)
            except OwnerChanged:
                self._calls.handle_fence(self.id, epoch)
                raise
        elif self.is_needed:
            await self._follow()
        else:
            self._unfollow()
            if self._bus is not None:
                self._bus.close()
                self._bus = None

    async def _own(self, epoch: int) -> None:
        # Processes of an earlier ownership must be gone.
        await self._endings.drain()
        record = await self._ledger.own_workspace(self.id, epoch)
        with suppress(StorageError):
            # Without clients it would be released at once.
            await self._calls.read_state(self)
        self._stop_following()
        bus = self._bus or Bus(record, self._ledger, lambda: ())
        services = self._make_services(record)
        ownership = Ownership(bus, self._wrap_outlet, self._report_busy, lambda: self._handle_fence(epoch))
        try:
            await self._publish_up_to(bus, record.newest)
            workspace = await open_owned_workspace(self._server, record, services, ownership)
        except BaseException:
            # It is not followed any more.
            self.opened = None
            raise
        self.record, self._bus, self._epoch = record, bus, epoch
        self.opened = OpenedWorkspace(workspace, services)
        self._is_started = False
        if self.owned is None:
            # The grant has changed meanwhile: the next step ends it.
            return
        self._start_services()
        self._update_attached()
        self._change()
        for session in dict.fromkeys(run.session_id for run, _ in workspace.recovered.ends):
            # Crush clients show a session as busy until they receive this and read its state again. So it follows the
            # change of the form, which that state comes from.
            notice = AgentNotice("agent_finished", session_id=session)
            workspace.publish_live(AgentEvent(Change("created", notice)))

    async def _publish_up_to(self, bus: Bus, newest: int) -> None:
        """Publish the stored events that the bus lacks."""
        cursor = bus.newest
        while cursor < newest:
            page = await self._ledger.events_after(self.id, cursor, _PAGE_SIZE)
            if not page:
                return
            bus.publish(decode_entries(page))
            cursor = page[-1][0]

    async def _disown(self) -> None:
        opened, self.opened = self.opened, None
        self._is_started = self._is_attached = False
        if self._services is not None:
            self._services.skip_graces()
        self._end_services()
        try:
            if opened is not None and isinstance(opened.workspace, Workspace):
                await opened.workspace.engine.abandon()
        finally:
            # Commands of active runs have ended only now.
            self._epoch = None
            self.wake()

    async def _follow(self) -> None:
        record = await self._ledger.find_workspace(self.id)
        if record is None:
            raise StorageUnavailable
        remote = RemoteWorkspace(
            record, self._ledger, SystemClock(), new_id, lambda: self._calls.notify_owner(self), self._bus
        )
        try:
            # `apply_state` wakes it: one statement a second reads the newest numbers of all workspaces.
            await remote.start(poll_seconds=None)
            services = self._make_services(record)
        except BaseException:
            remote.stop()
            raise
        self.record, self._bus = record, remote.bus
        self.opened = OpenedWorkspace(remote, services)
        self._change()

    def _stop_following(self) -> None:
        if self.remote is not None:
            self.remote.stop()

    def _unfollow(self) -> None:
        self._stop_following()
        self._end_services()
        self.opened = None
        self.wake()

    def _make_services(self, record: WorkspaceRecord) -> WorkspaceServices:
        """Return the services, which exist from the first use until the end of an ownership."""
        if self._services is None:
            self._services = self._server.workspace_services(
                record, self.environment, self._publish_live, self._report_busy
            )
            self._services.await_tools = self._await_tools
        return self._services

    async def _await_tools(self) -> None:
        """Return once tools may act: not before the workspace is open under the epoch that this node owns."""
        await self._calls.await_tools(self.id)
        while not self.is_local:
            await self.wait_until(lambda: self.is_local, _RETRY_SECONDS)
            await self._calls.await_tools(self.id)

    def _publish_live(self, event: LiveEvent) -> None:
        if self.opened is not None:
            self.opened.workspace.publish_live(event)

    def _report_busy(self, _: bool) -> None:
        self._calls.on_busy(self.id)

    def _end_services(self) -> None:
        services, self._services = self._services, None
        if services is not None:
            self._endings.start(self._end(services), name=f"end the services of {self.id}")

    async def _end(self, services: WorkspaceServices) -> None:
        try:
            await services.close()
        finally:
            asyncio.get_running_loop().call_soon(self.wake)

    # Effects

    def _start_services(self) -> None:
        """Start what may run programs, once tools may act."""
        if self.is_local and self.may_run_tools and not self._is_started and self.opened is not None:
            self._is_started = True
            self.opened.services.start()

    def _update_attached(self) -> None:
        """Let requests for approval wait while clients of other nodes are attached."""
        owned = self.owned
        if owned is not None and self._is_attached != bool(self.clients):
            self._is_attached = bool(self.clients)
            if self._is_attached:
                owned.approvals.client_attached()
            else:
                owned.approvals.client_detached()

    def _wrap_outlet(self, outlet: Outlet) -> Outlet:
        return LiveForwarder(self.id, outlet, self._sender, lambda: bool(self.clients))

    def _handle_fence(self, epoch: int) -> None:
        self._calls.handle_fence(self.id, epoch)

    def _change(self) -> None:
        self._calls.on_change(self)
        self.wake()

    def wake(self) -> None:
        """Let the callers of `wait_until` check their conditions again."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


async def _is_set(event: asyncio.Event) -> None:
    await event.wait()
