"""Membership of this node in a cluster: the asyncio driver of the lease state machine.

It sends heartbeats, reads the other nodes, keeps the LISTEN connection, and executes the effects of
`lease_state_machine`. Requests run in tasks of their own, so that a slow claim delays no heartbeat. Each has a time
limit: after it the outcome is unknown. A heartbeat that failed is repeated soon, because the others count its
silence.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, assert_never

from holdfast.cluster.lease_events import (
    AllowTools,
    AwaitTools,
    Claim,
    Claimed,
    ClaimFailed,
    Close,
    Drain,
    Drop,
    Effect,
    Evict,
    EvictDone,
    EvictFailed,
    Freeze,
    HeartbeatDue,
    HeartbeatFailed,
    HeartbeatStored,
    Idle,
    Join,
    Joined,
    Keep,
    LeaseEvent,
    Leave,
    Listening,
    ListenLost,
    MarkDraining,
    Observed,
    OwnershipLost,
    Read,
    ReadAt,
    ReadFailed,
    Release,
    Released,
    ReleaseFailed,
    ReleaseRefused,
    RowMissing,
    SendHeartbeat,
    SetDeadline,
    Settle,
    ToolsDue,
    Wanted,
)
from holdfast.cluster.lease_state_machine import Timing, View, may_run_tools, start, transition
from holdfast.cluster.notifications import WANTED_CHANNEL
from holdfast.cluster.ports import ClusterStore, ListenConnection, NodeGone, WorkspaceHost
from holdfast.domain.errors import StorageError
from holdfast.domain.ids import NodeId, WorkspaceId
from holdfast.tasks import TaskOwner

__all__ = ["Membership", "Takeover"]

Takeover = Literal["hint", "lease"]

_REPEATS = 3
"""A failed request is repeated after this part of the heartbeat interval."""
_REQUEST_LEASES = 4
"""Time limit of requests other than heartbeats and reads, in leases."""
_log = logging.getLogger("holdfast.cluster")


class Membership:
    """This node in its cluster. `clock` is the monotonic clock of all deadlines; `new_id` returns unused ids."""

    def __init__(  # noqa: PLR0913 - each is a dependency
        self,
        store: ClusterStore,
        host: WorkspaceHost,
        *,
        places: frozenset[str],
        address: str,
        clock: Callable[[], float],
        new_id: Callable[[], str],
        timing: Timing | None = None,
    ) -> None:
        self._store = store
        self._host = host
        self._address = address
        self._clock = clock
        self._new_id = new_id
        self._timing = timing or Timing()
        self._view, self._first = start(self._timing, places)
        self._tasks = TaskOwner()
        self._drops = TaskOwner()
        self._connection: ListenConnection | None = None
        self._is_reading = self._reads_again = False
        self.takeovers: dict[Takeover, int] = {"hint": 0, "lease": 0}
        """The number of nodes that this one has evicted, by the evidence of their death: the end of their LISTEN
        connection, or only their silence.
        """
        self.left = asyncio.Event()
        """Set when this node is no member any more, after `drain`."""

    @property
    def view(self) -> View:
        """The state of this node."""
        return self._view

    def may_run_tools(self, workspace: WorkspaceId) -> bool:
        """Return whether a tool of the workspace may act now."""
        return may_run_tools(self._view, workspace, self._clock())

    def start(self) -> None:
        """Join the cluster, and stay a member until `drain` or `stop`."""
        self._execute(self._first)
        self._start(self._repeat_heartbeats(), "heartbeats")
        self._start(self._repeat_reads(), "reads")

    def drain(self) -> None:
        """Stop claiming, and leave when no workspace is held."""
        self._handle(Drain())

    def end_workspace(self, workspace: WorkspaceId, epoch: int, newest: int | None) -> None:
        """Release a workspace that has no work after `newest`, or that was stopped with work left (None)."""
        self._handle(Idle(workspace, epoch, newest))

    def handle_fence(self, workspace: WorkspaceId, epoch: int) -> None:
        """Drop a workspace, because a write with this epoch was refused."""
        self._handle(OwnershipLost(workspace, epoch))

    async def stop(self) -> None:
        """End at once, as the end of the process does: the row remains, and others will evict this node."""
        self._tasks.cancel_all()
        await self._tasks.drain()
        await self._drops.drain()
        if self._connection is not None:
            await self._connection.close()

    # Events and effects

    def _handle(self, event: LeaseEvent) -> None:
        before = self._view.phase
        self._view, effects = transition(self._view, event)
        if self._view.phase == "left" and before != "left":
            _log.info("this node leaves the cluster")
            if not any(isinstance(effect, Leave) for effect in effects):
                self.left.set()
        self._execute(effects)

    def _execute(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            self._execute_one(effect)

    def _execute_one(self, effect: Effect) -> None:
        match effect:
            case SetDeadline(at=at):
                self._host.set_deadline(at)
            case Freeze():
                self._host.freeze()
            case AllowTools(workspace=workspace, epoch=epoch):
                self._host.open(workspace, epoch, may_run_tools=True)
            case AwaitTools(workspace=workspace, epoch=epoch, at=at):
                self._host.open(workspace, epoch, may_run_tools=False)
                self._start(self._await_tools(workspace, epoch, at), "wait for tools")
            case Drop(workspace=workspace, epoch=epoch):
                self._drops.start(self._host.drop(workspace, epoch), name=f"drop {workspace}")
            case Close(workspace=workspace, epoch=epoch):
                self._host.close(workspace, epoch)
            case Keep(workspace=workspace, epoch=epoch):
                self._host.keep(workspace, epoch)
            case Read():
                self._read_now()
            case ReadAt(at=at):
                self._start(self._read_at(at), "read of a silent node")
            case _:
                self._start(self._request(effect), type(effect).__name__)

    async def _request(
        self, effect: Join | SendHeartbeat | Evict | Claim | Settle | Release | MarkDraining | Leave
    ) -> None:
        match effect:
            case Join():
                await self._join()
            case SendHeartbeat(node=node):
                await self._send_heartbeat(node)
            case Evict():
                await self._evict(effect)
            case Claim():
                await self._claim(effect)
            case Release():
                await self._release(effect)
            case Settle(workspace=workspace, epoch=epoch):
                await self._try(self._store.settle(workspace, epoch))
            case MarkDraining(node=node):
                await self._try(self._store.mark_draining(node))
            case Leave(node=node):
                await self._try(self._store.leave(node))
                self.left.set()
            case _:
                assert_never(effect)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.start(work, name=f"cluster: {name}")

    async def _try(self, request: Coroutine[Any, Any, object]) -> bool:
        """Execute a request whose answer makes no difference. Returns whether it succeeded."""
        try:
            async with asyncio.timeout(_REQUEST_LEASES * self._timing.lease):
                await request
        except (StorageError, TimeoutError, NodeGone):
            return False
        return True

    # Requests

    async def _join(self) -> None:
        # Tools of an earlier incarnation must be gone before another owns the same workspaces.
        await self._drops.drain()
        while True:
            # The outcome of a failed attempt is unknown: its row is evicted, because its heartbeat never changes.
            node, sent = NodeId(self._new_id()), self._clock()
            if await self._try(self._store.join(node, self._view.places, self._address)):
                break
            await self._pause()
        _log.info("this node joined the cluster as %s", node)
        self._handle(Joined(node, sent))
        if self._view.node == node:
            self._start(self._keep_listening(node), "LISTEN connection")

    async def _send_heartbeat(self, node: NodeId) -> None:
        answer: LeaseEvent = HeartbeatStored(node)
        try:
            async with asyncio.timeout(self._timing.lease / 2):
                await self._store.heartbeat(node)
        except (StorageError, TimeoutError):
            answer = HeartbeatFailed(node)
        except NodeGone:
            answer = RowMissing(node)
        self._handle(answer)

    async def _evict(self, request: Evict) -> None:
        answer: LeaseEvent = EvictDone(request.node, request.dead)
        try:
            async with asyncio.timeout(_REQUEST_LEASES * self._timing.lease):
                is_done = await self._store.evict(
                    request.node, request.dead, request.heartbeat, by_hint=request.by_hint
                )
            if is_done:
                self.takeovers["hint" if request.by_hint else "lease"] += 1
                reason = "its process has ended or lost PostgreSQL" if request.by_hint else "it sent no heartbeat"
                _log.warning("node %s was evicted: %s", request.dead, reason)
        except (StorageError, TimeoutError):
            answer = EvictFailed(request.node, request.dead)
        except NodeGone:
            answer = RowMissing(request.node)
        self._handle(answer)

    async def _claim(self, request: Claim) -> None:
        answer: LeaseEvent
        try:
            async with asyncio.timeout(_REQUEST_LEASES * self._timing.lease):
                grants = await self._store.claim(request.node, request.limits, request.held)
            answer = Claimed(request.node, self._clock(), grants)
        except (StorageError, TimeoutError):
            answer = ClaimFailed(request.node)
        except NodeGone:
            answer = RowMissing(request.node)
        self._handle(answer)

    async def _release(self, request: Release) -> None:
        node, workspace, epoch = self._view.node, request.workspace, request.epoch
        if node is None:
            return
        answer: LeaseEvent
        try:
            async with asyncio.timeout(_REQUEST_LEASES * self._timing.lease):
                is_released = await self._store.release(node, workspace, epoch, request.newest)
            answer = Released(workspace, epoch) if is_released else ReleaseRefused(workspace, epoch)
        except (StorageError, TimeoutError):
            answer = ReleaseFailed(workspace, epoch)
        except NodeGone:
            answer = RowMissing(node)
        self._handle(answer)

    # Repeated work

    async def _repeat_heartbeats(self) -> None:
        while self._view.phase != "left":
            sent = self._clock()
            self._handle(HeartbeatDue(sent))
            await asyncio.sleep(self._timing.heartbeat / _REPEATS)
            if self._view.deadline >= sent + self._timing.lease - self._timing.margin:
                await asyncio.sleep(self._timing.heartbeat * (1 - 1 / _REPEATS))

    async def _repeat_reads(self) -> None:
        while self._view.phase != "left":
            self._read_now()
            await asyncio.sleep(self._timing.heartbeat)

    async def _read_at(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._clock()))
        self._read_now()

    def _read_now(self) -> None:
        """Read the nodes; after the read in flight if there is one."""
        if self._view.node is None:
            return
        if self._is_reading:
            self._reads_again = True
            return
        self._is_reading, self._reads_again = True, False
        self._start(self._read(self._view.node), "read")

    async def _read(self, node: NodeId) -> None:
        began = self._clock()
        answer: LeaseEvent
        try:
            async with asyncio.timeout(self._timing.lease / 2):
                found = await self._store.observe(node)
            answer = Observed(node, began, self._clock(), found.rows, found.wanted)
            if self._view.phase == "member" and node in found.rows and found.rows[node].is_draining:
                self._host.request_drain()
        except (StorageError, TimeoutError):
            answer = ReadFailed(node)
        finally:
            self._is_reading = False
        self._handle(answer)
        if self._reads_again:
            self._read_now()

    async def _keep_listening(self, node: NodeId) -> None:
        """Keep the LISTEN connection open while this node has this id."""
        while self._view.node == node:
            lost = asyncio.Event()
            try:
                async with asyncio.timeout(self._timing.lease):
                    connection = await self._store.listen(node, self._receive, lost.set)
            except (StorageError, TimeoutError):
                await self._pause()
                continue
            self._connection = connection
            try:
                if self._view.node == node:
                    self._handle(Listening())
                    # A notification may have been lost before.
                    self._read_now()
                    await lost.wait()
            finally:
                self._connection = None
                await connection.close()
            if self._view.node == node:
                self._handle(ListenLost(self._clock()))
                await self._pause()

    def _receive(self, channel: str, payload: str) -> None:
        if channel == WANTED_CHANNEL:
            self._handle(Wanted(payload))
        else:
            self._host.handle_notification(channel, payload)

    async def _await_tools(self, workspace: WorkspaceId, epoch: int, at: float) -> None:
        # The loop has another clock, so one sleep may end too early.
        while (now := self._clock()) < at:  # noqa: ASYNC110
            await asyncio.sleep(at - now)
        self._handle(ToolsDue(workspace, epoch, self._clock()))

    async def _pause(self) -> None:
        await asyncio.sleep(self._timing.heartbeat / _REPEATS)
