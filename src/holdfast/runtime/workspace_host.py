"""The workspaces of one node of a cluster: connects the membership of the node with what is open on it.

Membership grants and takes workspaces (`open`, `drop`, `close`, `keep`), clients open and leave them (`use`,
`release`). `NodeWorkspace` opens and closes one workspace to match both. This module does the work that all of them
share: once a second, and after a notification, one statement reads their newest numbers, owners and clients. An owner
is requested for a workspace with clients that has none, and the number of clients of this node is stored.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.cluster.lease_state_machine import Timing
from holdfast.cluster.live_events import decode_live, workspace_of
from holdfast.cluster.membership import Membership
from holdfast.cluster.notifications import (
    CLIENTS_CHANNEL,
    DELTA_CHANNEL,
    DOCUMENTS_CHANNEL,
    EVENTS_CHANNEL,
    NotificationSender,
    unpack_deltas,
)
from holdfast.cluster.ports import NodeGone, OwnerInfo, WorkspaceState
from holdfast.cluster.wake_up_lag import WakeUpLag
from holdfast.domain.errors import StorageError, StorageUnavailable
from holdfast.domain.ids import NodeId, WorkspaceId
from holdfast.domain.store_operations import WorkspaceRecord
from holdfast.runtime.node_workspace import NodeCalls, NodeWorkspace
from holdfast.runtime.workspace import new_id
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.guard_system import boot_time

if TYPE_CHECKING:
    from holdfast.cluster.postgres_cluster import PostgresCluster
    from holdfast.runtime.server_services import ServerServices
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger

__all__ = ["WorkspaceHost"]

_POLL_SECONDS = 1.0
_REFRESH_SECONDS = 5.0
"""Time limit of one poll: a connection that was cut does not report it."""
_OPEN_SECONDS = 5.0
"""Time limit for opening a workspace that another node owned a moment ago."""
_OWNER_SECONDS = 2.0
"""Time that a new client waits for an owner of its workspace. It can send prompts without one."""
_LEAVE_SECONDS = 3.0
_KEEP_SECONDS = 0.1
"""Pause after a release that was refused."""
_TOOLS_SECONDS = 0.25
_log = logging.getLogger("holdfast.cluster")


class WorkspaceHost:
    """The workspaces of this node. `address` is where other nodes reach it; empty if they cannot."""

    def __init__(  # noqa: PLR0913 - each is a dependency
        self,
        server: "ServerServices",
        ledger: "PostgresLedger",
        cluster: "PostgresCluster",
        *,
        address: str = "",
        timing: Timing | None = None,
        on_stop: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = boot_time,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        """`on_stop` is called at the end of `stop`. `clock` is that of the guard."""
        self._clock = clock
        self._on_stop = on_stop
        self.ledger = ledger
        self.cluster = cluster
        self.sender = NotificationSender(cluster.notify)
        self.lag = WakeUpLag()
        self.membership = Membership(
            cluster,
            self,
            places=frozenset({ledger.place}),
            address=address,
            clock=clock,
            new_id=new_id,
            timing=timing,
        )
        self._server = server
        self._on_change: Callable[[NodeWorkspace], None] = lambda _: None
        self._on_busy: Callable[[WorkspaceId], None] = lambda _: None
        self._on_drain: Callable[[], None] = lambda: None
        self._workspaces: dict[WorkspaceId, NodeWorkspace] = {}
        self._counts: dict[WorkspaceId, dict[str, int]] = {}
        """The clients of this node by workspace and session."""
        self._unsent: dict[WorkspaceId, None] = {}
        """Workspaces whose numbers of clients are not stored yet."""
        self._counted_by: NodeId | None = None
        self._due = asyncio.Event()
        self._tools_changed: list[asyncio.Future[None]] = []
        self._tasks = TaskOwner()
        self.is_draining = False
        self._is_urgent = asyncio.Event()
        self._calls = NodeCalls(
            self._await_tools,
            self.membership.handle_fence,
            self._report_busy,
            self._report_change,
            self._notify_owner,
            self._read_state,
        )

    def start(
        self,
        on_change: Callable[[NodeWorkspace], None],
        on_busy: Callable[[WorkspaceId], None],
        on_drain: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the cluster. `on_change` is called when a workspace was opened, or opened in another form; `on_busy`
        when its runs, its jobs, or its clients at other nodes have changed; `on_drain` when the node has to drain.
        """
        self._on_change, self._on_busy, self._on_drain = on_change, on_busy, on_drain
        if self._server.shared is not None:
            self._server.shared.documents.on_update = self.sender.update_documents
        self.membership.start()
        self._tasks.start(self._poll(), name="cluster: states of workspaces")

    # Clients of this node

    async def use(self, record: WorkspaceRecord, environment: Mapping[str, str]) -> NodeWorkspace:
        """Open a workspace for clients, in the form that applies now. Raises `StorageUnavailable`."""
        node = self._node(record)
        node.environment = node.environment or environment
        node.uses += 1
        # The client that opens it now is counted by the caller when it is open.
        self._counts[node.id] = self._counts.get(node.id) or {"": 1}
        self._unsent[node.id] = None
        node.update()
        self._due.set()
        try:
            await self.wait_opened(node)
            if not self.is_draining:
                await node.wait_until(lambda: node.is_local or node.owner is not None, _OWNER_SECONDS)
            if node.opened is None:
                # It has moved meanwhile.
                await self.wait_opened(node)
            node.is_used = True
        finally:
            node.uses -= 1
            if not node.is_needed:
                self._end_use(node)
        return node

    def _end_use(self, node: NodeWorkspace) -> None:
        """Undo a `use` that has failed. If this node owns the workspace by now, it is open without a client."""
        self._counts.pop(node.id, None)
        self._unsent[node.id] = None
        self._due.set()
        if node.is_local:
            self._on_change(node)
        else:
            node.update()

    async def release(self, workspace: WorkspaceId) -> NodeWorkspace | None:
        """Close a workspace that no client of this node needs. If this node owns it, its ownership ends. Returns the
        workspace if it stays open: it has new inputs, or the store cannot be reached.
        """
        node = self._workspaces.get(workspace)
        if node is None:
            return None
        self._counts.pop(workspace, None)
        self._unsent[workspace] = None
        self._due.set()
        node.is_used = False
        owned, epoch = node.owned, node.grant
        # An input may have started a run since the decision to close the workspace, or an end is not stored yet.
        if owned is not None and epoch is not None and owned.is_quiet:
            self.membership.end_workspace(workspace, epoch, owned.newest)
            await node.wait_until(lambda: node.grant != epoch or node.is_needed, _OPEN_SECONDS)
        node.update()
        await node.wait_until(lambda: node.opened is None or node.is_needed or node.is_local, _OPEN_SECONDS)
        if (kept := node.owned) is not None:
            node.is_used = True
            if not kept.is_busy():
                # It is released again at once unless its new inputs are applied by then.
                await asyncio.sleep(_KEEP_SECONDS)
            return node
        self._forget(node)
        return None

    async def wait_opened(self, node: NodeWorkspace) -> None:
        """Return when a workspace is open here in some form. Raises `StorageUnavailable`."""
        if not await node.wait_until(lambda: node.opened is not None, _OPEN_SECONDS):
            raise StorageUnavailable("The workspace is moving between servers: try again in a moment.")

    async def want_unfinished(self) -> None:
        """Request an owner for each workspace of this place that has unfinished runs and no owner."""
        for path in await self.ledger.unfinished_workspaces():
            await self.cluster.want((await self.ledger.join_workspace(path)).id)

    def set_clients(self, workspace: WorkspaceId, counts: Mapping[str, int]) -> None:
        """Publish the number of clients of this node in a workspace, by session ("" without one)."""
        if workspace in self._workspaces and self._counts.get(workspace) != counts:
            self._counts[workspace] = dict(counts)
            self._unsent[workspace] = None
            self._due.set()

    def get(self, workspace: WorkspaceId) -> NodeWorkspace | None:
        """Return a workspace that is open here."""
        return self._workspaces.get(workspace)

    async def owner(self, workspace: WorkspaceId) -> OwnerInfo | None:
        """Read the current owner of a workspace from the store. Raises `StorageError`."""
        return (await self.cluster.workspace_states([workspace])).get(workspace, WorkspaceState(0, None, {})).owner

    # Requests of operators about any node

    async def drain_node(self, node: NodeId) -> bool:
        """Mark a node as draining; it reads the mark itself. Returns False if it is no member."""
        try:
            await self.cluster.mark_draining(node)
        except NodeGone:
            return False
        return True

    async def evict_node(self, node: NodeId) -> bool:
        """Evict a node, which may be alive or this one. Returns False if it is no member."""
        me = self.membership.view.node
        try:
            is_done = me is not None and await self.cluster.evict_on_request(me, node)
        except NodeGone:
            me = None
        if me is None:
            raise StorageUnavailable("This server joins the cluster now: try again in a moment.")
        return is_done

    # Membership

    def set_deadline(self, at: float) -> None:
        """Let tools run until `at`."""
        self._server.guard.set_deadline(at)
        self._wake_tools()

    def freeze(self) -> None:
        """Freeze all tools until the next deadline."""
        self._server.guard.set_deadline(self._clock())

    def open(self, workspace: WorkspaceId, epoch: int, *, may_run_tools: bool) -> None:
        """Recover a workspace that this node owns."""
        node = self._workspaces.get(workspace)
        if node is None:
            node = self._node(WorkspaceRecord(workspace, "", epoch, 0, 0))
        node.set_grant(epoch, may_run_tools=may_run_tools)
        self._wake_tools()
        self._due.set()

    async def drop(self, workspace: WorkspaceId, epoch: int) -> None:
        """Kill the tools of a workspace and stop its engine."""
        node = self._workspaces.get(workspace)
        if node is not None:
            _log.warning("workspace %s is not owned by this node any more", workspace)
            if node.grant == epoch:
                node.set_grant(None)
            await node.dropped(epoch)
            self._on_busy(workspace)
            self._forget(node)

    def close(self, workspace: WorkspaceId, epoch: int) -> None:
        """Discard the state of a workspace that was released."""
        if self.is_draining:
            # It needs an owner now; without a notification the other nodes would notice at their next poll.
            self.sender.want(self.ledger.place)
        node = self._workspaces.get(workspace)
        if node is not None and node.grant == epoch:
            node.set_grant(None)
            self._on_busy(workspace)
            self._forget(node)

    def keep(self, workspace: WorkspaceId, epoch: int) -> None:
        """Continue a workspace whose release was refused."""
        node = self._workspaces.get(workspace)
        if node is not None and node.grant == epoch:
            if self.is_draining:
                self.membership.end_workspace(workspace, epoch, None)
                return
            node.is_used = True
            node.update()
            if node.owned is not None:
                node.owned.catch_up()
            node.wake()

    def handle_notification(self, channel: str, payload: str) -> None:
        """Handle a notification of another node, or of this one."""
        if channel == EVENTS_CHANNEL:
            self._wake(WorkspaceId(payload))
        elif channel == CLIENTS_CHANNEL:
            if payload in self._workspaces:
                self._due.set()
        elif channel == DOCUMENTS_CHANNEL:
            self._due.set()
        elif channel == DELTA_CHANNEL:
            for delta in unpack_deltas(payload):
                node = self._workspaces.get(workspace_of(delta))
                if node is not None and node.remote is not None and (event := decode_live(delta)) is not None:
                    node.remote.receive(event)

    def _wake(self, workspace: WorkspaceId) -> None:
        node, arrived = self._workspaces.get(workspace), boot_time()

        def observe() -> None:
            self.lag.observe(boot_time() - arrived)

        if node is not None and node.owned is not None:
            node.owned.catch_up(observe)
        elif node is not None and node.remote is not None:
            node.remote.wake(observe)

    # Leaving

    def request_drain(self) -> None:
        """Start to drain on request of an operator."""
        if not self.is_draining:
            _log.warning("this node drains: it was requested with holdfast nodes drain")
            self._on_drain()

    async def drain(self, seconds: float) -> None:
        """Leave the cluster: claim nothing, let active runs end for some seconds, and release all workspaces."""
        self.is_draining = True
        self.membership.drain()
        await asyncio.gather(*(self._give_up(node, seconds) for node in list(self._workspaces.values())))
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self.membership.left.wait()

    def hurry(self) -> None:
        """End the active runs that `drain` lets continue."""
        self._is_urgent.set()

    async def _give_up(self, node: NodeWorkspace, seconds: float) -> None:
        if (epoch := node.grant) is None:
            return
        try:
            await node.hand_over(seconds, self._is_urgent)
        except Exception as error:
            # The next owner recovers it.
            _log.error("workspace %s could not be handed over properly: %s", node.id, error)
        self.membership.end_workspace(node.id, epoch, None)

    async def stop(self) -> None:
        """End everything that `drain` has left, and the event streams."""
        self._tasks.cancel_all()
        await self._tasks.drain()
        await self.membership.stop()
        for error in await asyncio.gather(*(node.stop() for node in self._workspaces.values()), return_exceptions=True):
            if error is not None:
                _log.error("a workspace could not be stopped properly: %s", error)
        await self.sender.close()
        if self._on_stop is not None:
            await self._on_stop()

    # Internals

    def _report_busy(self, workspace: WorkspaceId) -> None:
        self._on_busy(workspace)

    def _report_change(self, node: NodeWorkspace) -> None:
        self._on_change(node)

    def _node(self, record: WorkspaceRecord) -> NodeWorkspace:
        node = self._workspaces.get(record.id)
        if node is None:
            node = NodeWorkspace(record, self._server, self.ledger, self.sender, self._calls)
            self._workspaces[record.id] = node
        return node

    def _forget(self, node: NodeWorkspace) -> None:
        if node.is_gone and self._workspaces.get(node.id) is node:
            del self._workspaces[node.id]
            self._counts.pop(node.id, None)

    async def _await_tools(self, workspace: WorkspaceId) -> None:
        while not self.membership.may_run_tools(workspace):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._tools_changed.append(waiter)
            await asyncio.wait((waiter,), timeout=_TOOLS_SECONDS)

    def _wake_tools(self) -> None:
        waiting, self._tools_changed = self._tools_changed, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _notify_owner(self, node: NodeWorkspace) -> None:
        self.sender.wake(node.id)
        if node.owner is None:
            self.sender.want(self.ledger.place)

    async def _poll(self) -> None:
        while True:
            self._due.clear()
            try:
                async with asyncio.timeout(_REFRESH_SECONDS):
                    await self._refresh()
            except (StorageError, NodeGone, TimeoutError):
                # The next attempt follows soon.
                pass
            except Exception as error:
                context = {"message": "the states of workspaces could not be applied", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            for node in list(self._workspaces.values()):
                self._forget(node)
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._due.wait()

    async def _refresh(self) -> None:
        """Send the clients of this node, then read the state of its workspaces and the documents that have changed."""
        await self._send_clients()
        await self._refresh_documents()
        states = await self.cluster.workspace_states(list(self._workspaces))
        for workspace, state in states.items():
            node = self._workspaces.get(workspace)
            if node is None:
                continue
            self._apply_state(node, state)
            # Without the number of clients of this node the next owner would release the workspace at once.
            is_known = self._counted_by is not None and self._counted_by == self.membership.view.node
            if state.owner is None and node.grant is None and self._counts.get(workspace) and is_known:
                await self.cluster.want(workspace)
                self.sender.want(self.ledger.place)

    async def _refresh_documents(self) -> None:
        shared = self._server.shared
        if shared is not None and await shared.documents.refresh():
            for node in self._workspaces.values():
                if node.opened is not None:
                    # Publishes an event if its settings have changed.
                    node.opened.services.configuration.snapshot()

    def _apply_state(self, node: NodeWorkspace, state: WorkspaceState) -> None:
        clients = _sum(counts for name, counts in state.clients.items() if name != self.membership.view.node)
        has_changed = clients != node.clients
        node.apply_state(state.owner, clients, state.newest)
        if has_changed:
            self._on_busy(node.id)

    async def _read_state(self, node: NodeWorkspace) -> None:
        state = (await self.cluster.workspace_states([node.id])).get(node.id)
        if state is not None:
            self._apply_state(node, state)

    async def _send_clients(self) -> None:
        me = self.membership.view.node
        if me is None:
            return
        if me != self._counted_by:
            self._counted_by = me
            self._unsent.update(dict.fromkeys(self._counts))
        for workspace in list(self._unsent):
            counts = self._counts.get(workspace, {})
            await self.cluster.set_clients(me, workspace, counts)
            if self._counts.get(workspace, {}) == counts:
                self._unsent.pop(workspace, None)
            self.sender.update_clients(workspace)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for by_session in counts:
        for session, number in by_session.items():
            total[session] = total.get(session, 0) + number
    return total
