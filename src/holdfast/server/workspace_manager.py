"""Workspace manager: the open workspaces, their clients, and the timers of both.

Theory of operation. `presence.py` makes the decisions, this module executes them. Everything that can keep a workspace
or the server alive becomes an event: a client that creates, attaches or leaves, runs and jobs that begin or end, a
timer that fires. `apply` passes the event to the pure state machine, stores the new state, and executes the effects:
start a timer, close or open a workspace, stop the server. It is synchronous, so no event is decided on an outdated
state; slow effects run as tasks and report their end as events of their own (`Closed`, `Opened`).

A timer belongs to one hold or linger. The state machine numbers these, so a timer that fires late has no effect, and
cancelling timers is an optimisation, not a requirement. A workspace that is being closed stays registered until its
close has ended; a client that requests the same directory waits for that, and then opens it again.
"""

import asyncio
import ctypes
import gc
import logging
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast.domain.errors import BadRequest, Conflict, HoldfastError, StorageUnavailable
from holdfast.domain.events import AgentEvent, AgentNotice, ApprovalEvent, Attached, AttachedEvent, Change
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.lock_owner import directory_id
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.protocol.error_status import UnknownWorkspace
from holdfast.runtime.server_services import MissingCredentials, ServerServices
from holdfast.server import presence
from holdfast.server.presence import ClientId, Presence, PresenceEvent
from holdfast.server.workspace_handle import WorkspaceHandle, directory_of
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.runtime.node_workspace import NodeWorkspace
    from holdfast.runtime.workspace_services import WorkspaceServices

__all__ = [
    "ClientRetired",
    "GracePeriods",
    "NotAttached",
    "ServerStopping",
    "WorkspaceManager",
    "client_id_of",
    "release_memory",
]


_libc = ctypes.CDLL(None)


def release_memory() -> None:
    """Free unreachable objects and return free memory to the system.

    A closed workspace contains many reference cycles. Without this it stays until the collector has counted enough new
    objects, which never happens in an idle server.
    """
    gc.collect()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


_RELEASE_SECONDS = 1.0
_log = logging.getLogger("holdfast.server")


class ClientRetired(Conflict):
    """This client was removed permanently: start a new one."""


class NotAttached(Conflict):
    """The client has no open stream in this workspace."""


class ServerStopping(StorageUnavailable):
    """The server is shutting down: start it again."""


class GracePeriods(msgspec.Struct, frozen=True):
    """Timeouts in seconds: how long a claim lasts without a stream (`create`, `detach`), and an idle server without a
    workspace (`linger`); and the interval at which settings files are checked for changes (`check_interval`).
    """

    create: float = 30.0
    detach: float = 10.0
    linger: float = 60.0
    check_interval: float = 2.0


def client_id_of(text: str) -> ClientId:
    """Parse a client id: a UUID in any notation."""
    try:
        return ClientId(str(uuid.UUID(text)))
    except ValueError:
        raise BadRequest("invalid client_id: it must be a UUID") from None


class WorkspaceManager:
    """Opens and closes workspaces for clients, and feeds the presence state machine."""

    def __init__(
        self,
        services: ServerServices,
        *,
        graces: GracePeriods | None = None,
        leaves_when_idle: bool = False,
    ) -> None:
        self.services = services
        self.host = services.host
        """The part that connects this server with the others of its cluster; None with SQLite."""
        self.ledger = services.ledger
        self.data_dir = services.data_dir
        self.data_id = directory_id(services.data_dir)
        self.stopping = asyncio.Event()
        """Set when the server has to stop: on request, or because it is idle."""
        self.ready = asyncio.Event()
        """Set when workspaces with unfinished runs are open again. Until then only health and version are answered."""
        self.is_closed = False
        """Set when the server stops. From then on no workspace is opened and requests are answered with an error."""
        self.storage_problem = ""
        """Reason why nothing can be stored although the disk works; empty if there is no problem."""
        self._graces = graces or GracePeriods()
        self._handles: dict[WorkspaceId, WorkspaceHandle] = {}
        self.withdrawn: dict[WorkspaceId, Sequence[ApprovalEvent]] = {}
        """Requests of the previous server that were never closed. Kept here because the workspace may have been closed
        since.
        """
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._closing_bodies: dict[WorkspaceId, WorkspaceBody] = {}
        self._finding: dict[WorkspaceId, asyncio.Task[WorkspaceHandle]] = {}
        self.is_draining = False
        self._tasks = TaskOwner()
        self._timers: dict[object, asyncio.TimerHandle] = {}
        self.presence: Presence
        self.presence, effects = presence.start(leaves_when_idle=leaves_when_idle)
        self._execute(effects)

    def start(self, drain_timeout: float = 0.0) -> None:
        """Join the cluster, if the server belongs to one. If an operator drains this node, active runs may continue
        for `drain_timeout` seconds.
        """
        if self.host is not None:
            self.host.start(self._follow_node, self._update_busy, lambda: self.drain(drain_timeout))

    @property
    def handles(self) -> list[WorkspaceHandle]:
        """The open workspaces."""
        return list(self._handles.values())

    def handle(self, workspace: str) -> WorkspaceHandle:
        """Return an open workspace. Raises `UnknownWorkspace`, also while it is being closed."""
        handle = self._handles.get(WorkspaceId(workspace))
        if handle is None or handle.path in self._closing:
            raise UnknownWorkspace
        return handle

    async def find(self, workspace: str) -> WorkspaceHandle:
        """Return a workspace. In a cluster any workspace of the store, which is opened here for a while; otherwise an
        open one. Raises `UnknownWorkspace`, and `StorageUnavailable` while it moves between servers.
        """
        if self.host is None:
            return self.handle(workspace)
        name = WorkspaceId(workspace)
        while (known := self._handles.get(name)) is not None and (closing := self._closing.get(known.path)) is not None:
            await asyncio.shield(closing)
        if known is None:
            finding = self._finding.get(name)
            if finding is None:
                finding = self._tasks.start(self._find(name), name=f"find {name}", done=_is_over)
                self._finding[name] = finding
            try:
                known = await asyncio.shield(finding)
            finally:
                self._finding.pop(name, None)
        if known.node is not None and known.node.opened is None:
            await self.host.wait_opened(known.node)
        return known

    async def _find(self, workspace: WorkspaceId) -> WorkspaceHandle:
        if self.is_closed or self.presence.leaving:
            raise ServerStopping
        assert self.host is not None, "only called in a cluster"
        record = await self.host.ledger.find_workspace(workspace)
        if record is None:
            raise UnknownWorkspace
        handle = self._register(await self.host.use(record, {}), WorkspaceBody(record.id, record.path))
        handle.is_visited = True
        self.apply(presence.Opened(handle.id, working=True))
        handle.was_busy = True
        self._timers["visit", workspace] = asyncio.get_running_loop().call_later(
            self._graces.create, self._end_visit, handle
        )
        return handle

    def _end_visit(self, handle: WorkspaceHandle) -> None:
        self._timers.pop(("visit", handle.id), None)
        handle.is_visited = False
        self._update_busy(handle.id)

    async def open_unfinished(self) -> None:
        """Open workspaces with unfinished runs, which continue without a client in the server's environment."""
        try:
            if self.host is not None:
                await self.host.want_unfinished()
            else:
                await self._open_all(await self.ledger.unfinished_workspaces())
        except HoldfastError as error:
            _log.error("unfinished runs cannot be resumed: %s", error)
        finally:
            self.ready.set()

    async def _open_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            if self.is_closed:
                return
            try:
                handle = await self._open(WorkspaceBody(WorkspaceId(""), path), unattended=True)
                if handle.id not in self.presence.workspaces:
                    # No run was left to resume and no client is attached.
                    self.apply(presence.Opened(handle.id, working=False))
            except BadRequest:
                _log.warning("%s has unfinished runs, but the directory does not exist any more", path)
            except MissingCredentials as error:
                _log.warning("%s has queued prompts. %s", path, error)
            except HoldfastError as error:
                _log.error("the unfinished runs of %s cannot be resumed: %s", path, error)

    async def create(self, body: WorkspaceBody) -> WorkspaceHandle:
        """Open the workspace of a directory for a client, after a pending close."""
        path = directory_of(body)
        client = client_id_of(body.client_id)
        self.apply(presence.CreateBegan(client))
        try:
            while (closing := self._closing.get(path)) is not None:
                await asyncio.shield(closing)
            handle = await self._open(msgspec.structs.replace(body, path=path))
            self.apply(presence.Create(handle.id, client))
            return handle
        finally:
            self.apply(presence.CreateOver())

    async def _open(self, body: WorkspaceBody, *, unattended: bool = False, is_known: bool = False) -> WorkspaceHandle:
        """Open the workspace of a directory. `is_known`: in a cluster the one of this id, which may be of another
        place.
        """
        environment = dict(item.partition("=")[::2] for item in body.env)
        if self.host is not None:
            ledger = self.host.ledger
            record = await (ledger.find_workspace(body.id) if is_known else ledger.join_workspace(body.path))
            if record is None:
                raise UnknownWorkspace
            node = await self.host.use(record, environment)
            handle = self._register(node, body)
            handle.services.add_client_keys(environment)
            return handle
        workspace = await self.services.open_workspace(
            Path(body.path), environment, unattended=unattended, on_busy=self._update_busy
        )
        known = self._handles.get(workspace.record.id)
        # Another client opened the same directory while this request waited; both share the workspace.
        if known is not None and known.workspace is workspace:
            known.services.add_client_keys(environment)
            return known
        try:
            # `ServerServices` opens workspaces with these services.
            services = cast("WorkspaceServices", workspace.services)
            handle = self._handles[workspace.record.id] = WorkspaceHandle(workspace, services, body)
        except BaseException:
            # The workspace is not registered yet, so no other task can use it.
            await self.services.close_workspace(workspace)
            raise
        if workspace.recovered.withdrawn:
            self.withdrawn[handle.id] = workspace.recovered.withdrawn
        self._schedule_check()
        # Recovery may have started runs before the workspace was registered, when `on_busy` could not report them.
        if handle.is_busy:
            handle.was_busy = True
            self.apply(presence.WorkBegan(handle.id))
        return handle

    def _register(self, node: "NodeWorkspace", body: WorkspaceBody) -> WorkspaceHandle:
        """Return the handle of a workspace that is open on this node."""
        assert node.opened is not None, "it was opened"
        handle = self._handles.get(node.id)
        if handle is None:
            handle = WorkspaceHandle(node.opened.workspace, node.opened.services, body)
            handle.node = node
            self._handles[node.id] = handle
            if handle.is_local:
                # The options of the client act where the engine is.
                handle.yolo = body.yolo
            self._schedule_check()
            if handle.is_busy:
                handle.was_busy = True
                self.apply(presence.WorkBegan(handle.id))
        handle.use_current_form()
        self._keep_withdrawn(handle)
        return handle

    def _keep_withdrawn(self, handle: WorkspaceHandle) -> None:
        if handle.is_local and handle.owned.recovered.withdrawn:
            self.withdrawn[handle.id] = handle.owned.recovered.withdrawn

    def _follow_node(self, node: "NodeWorkspace") -> None:
        """Follow a workspace that was opened in another form, or that this node owns without a client."""
        if self.is_closed or node.opened is None:
            return
        handle = self._handles.get(node.id)
        if handle is None and node.is_local and not node.is_needed:
            node.is_used = True
            handle = self._register(node, WorkspaceBody(node.id, node.record.path))
            self.apply(presence.Opened(handle.id, working=handle.is_busy))
        elif handle is not None:
            handle.use_current_form()
            self._keep_withdrawn(handle)
            self._update_busy(handle.id)

    def drain(self, seconds: float) -> None:
        """Leave the cluster, then stop: active runs may continue for some seconds, the other nodes take over the rest.
        Without a cluster, stop. Without effect on a server that drains or stops already.
        """
        if self.host is None:
            self.apply(presence.Stop())
        elif not self.is_draining and not self.presence.leaving:
            self.is_draining = True
            _log.info("draining: active runs may continue for %g s; a second signal interrupts them", seconds)
            self._tasks.start(self._drain(seconds), name="drain")

    async def _drain(self, seconds: float) -> None:
        assert self.host is not None, "only called in a cluster"
        try:
            await self.host.drain(seconds)
        finally:
            self.apply(presence.Stop())

    def _schedule_check(self) -> None:
        if "check" not in self._timers and self._handles and not self.is_closed:
            self._timers["check"] = asyncio.get_running_loop().call_later(self._graces.check_interval, self._check)

    def _check(self) -> None:
        """Check settings files and the storage. Runs read the files themselves; this is for clients that display
        settings.
        """
        del self._timers["check"]
        for handle in self.handles:
            if self.claims(handle):
                handle.services.configuration.snapshot()
        self._tasks.start(self.check_storage(), name="check storage")
        self._schedule_check()

    async def check_storage(self) -> str:
        """Return why nothing can be stored, or an empty string; report a change to the log and to all clients."""
        problem = "" if self.is_closed else await self.ledger.problem()
        changed = problem != self.storage_problem
        self.storage_problem = problem
        self._update_storage_timer()
        if changed:
            if not problem:
                _log.warning("the store can be used again")
                return ""
            _log.error("nothing can be stored: %s", problem)
            notice = AgentEvent(Change("created", AgentNotice("error", error=problem)))
            for handle in self.handles:
                handle.workspace.publish_live(notice)
        return problem

    def _update_storage_timer(self) -> None:
        """Start or cancel the stop timer: a server that a client started stops if nothing can be stored and no client
        is attached. Otherwise a run whose end cannot be stored would keep it alive forever.
        """
        if not self._is_abandoned:
            if (timer := self._timers.pop("storage", None)) is not None:
                timer.cancel()
        elif "storage" not in self._timers:
            self._timers["storage"] = asyncio.get_running_loop().call_later(
                self._graces.linger, self._stop_without_storage
            )

    @property
    def _is_abandoned(self) -> bool:
        is_used = self.presence.creating or any(self.claims(handle) for handle in self.handles)
        return bool(self.storage_problem) and self.presence.leaves_when_idle and not is_used and not self.is_closed

    def _stop_without_storage(self) -> None:
        del self._timers["storage"]
        if self._is_abandoned:
            _log.error("stopping: nothing can be stored, and no client is attached")
            self.apply(presence.Stop())

    def _update_busy(self, workspace: WorkspaceId) -> None:
        """Update whether a workspace is busy: runs keep it open, and so do jobs that runs have left behind."""
        handle = self._handles.get(workspace)
        if handle is None:
            # It is being opened. `_open` checks it when it is registered.
            return
        if handle.is_busy != handle.was_busy:
            handle.was_busy = handle.is_busy
            self.apply(presence.WorkBegan(handle.id) if handle.is_busy else presence.WorkEnded(handle.id))
        else:
            self._update_job_timer(handle)
        self._publish_viewers(handle)

    def _update_job_timer(self, handle: WorkspaceHandle) -> None:
        """Start or cancel the limit of jobs: without clients and runs, jobs keep a workspace open for `job_linger`
        seconds.
        """
        name = ("jobs", handle.id)
        if self.claims(handle) or handle.workspace.is_busy() or not handle.services.jobs.is_busy:
            handle.jobs_are_late = False
            if (timer := self._timers.pop(name, None)) is not None:
                timer.cancel()
        elif name not in self._timers and not handle.jobs_are_late and not self.is_closed:
            settings = handle.services.settings
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(settings.options.job_linger, self._end_job_grace, handle, name)

    def _end_job_grace(self, handle: WorkspaceHandle, name: object) -> None:
        self._timers.pop(name, None)
        handle.jobs_are_late = True
        self._update_busy(handle.id)

    def apply(self, event: PresenceEvent) -> None:
        """Apply an event to the presence state machine and carry out its effects. Raises its refusals."""
        self.presence, effects = presence.transition(self.presence, event)
        self._execute(effects)
        known = self._handles.get(getattr(event, "workspace", WorkspaceId("")))
        for handle in self.handles if isinstance(event, presence.Retire) else [known] if known is not None else ():
            self._publish_viewers(handle)
            self._update_job_timer(handle)
            self._remove_lent_servers(handle)
        for effect in effects:
            if isinstance(effect, presence.Refuse):
                raise _REFUSALS[effect.reason]()

    def _remove_lent_servers(self, handle: WorkspaceHandle) -> None:
        """Remove the MCP servers of clients that have no claim any more."""
        extensions = handle.services.extensions
        for client in handle.mcp_lenders - self.claims(handle).keys():
            handle.mcp_lenders.discard(client)
            extensions.mcp.set_client_servers(client, {})

    def claims(self, handle: WorkspaceHandle) -> Mapping[ClientId, presence.Claim]:
        """The claims of clients on a workspace."""
        return self.presence.workspaces.get(handle.id, presence.WorkspacePresence()).claims

    def viewers(self, handle: WorkspaceHandle) -> dict[SessionId, int]:
        """Return the number of clients that view each session, at all servers."""
        counts = presence.viewer_counts(self.presence, handle.id)
        for session, number in handle.node.clients.items() if handle.node is not None else ():
            if session:
                counts[SessionId(session)] = counts.get(SessionId(session), 0) + number
        return counts

    def _publish_viewers(self, handle: WorkspaceHandle) -> None:
        """Publish how many clients view a session when the number has changed, here and to the other nodes."""
        if self.is_closed:
            return
        if self.host is not None:
            mine: dict[str, int] = {}
            for claim in self.claims(handle).values():
                mine[claim.session or ""] = mine.get(claim.session or "", 0) + 1
            self.host.set_clients(handle.id, mine)
        before, now = handle.viewers, self.viewers(handle)
        if now == before:
            return
        handle.viewers = now
        for session in sorted(before.keys() | now.keys()):
            if (count := now.get(session, 0)) != before.get(session, 0):
                event = AttachedEvent(Change("updated", Attached(session, count)))
                handle.workspace.publish_live(event)

    async def close(self) -> None:
        """Close every workspace in order; their streams end with them."""
        self.is_closed = True
        self.ready.set()
        for timer in self._timers.values():
            timer.cancel()
        if self.host is not None:
            self.host.hurry()
            if not self.is_draining:
                await self.host.drain(0.0)
        await self._tasks.drain()
        if self.host is not None:
            await self.host.stop()
            self._handles.clear()
        closing = (self.services.close_workspace(handle.owned) for handle in self._handles.values())
        for failure in await asyncio.gather(*closing, return_exceptions=True):
            # A workspace that cannot be closed is recovered at the next start; the others are still closed.
            if failure is not None:
                _log.error("a workspace could not be closed: %s", failure)
        await self.services.close()

    def _execute(self, effects: tuple[presence.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case presence.Arm(workspace=workspace, client=client, generation=generation, grace=grace):
                    seconds = self._graces.create if grace == "create" else self._graces.detach
                    over = presence.HoldOver(workspace, client, generation)
                    self._schedule_event(seconds, (workspace, client), over)
                case presence.ArmLinger(generation=generation):
                    self._schedule_event(self._graces.linger, "linger", presence.LingerOver(generation))
                # `close` closes all workspaces itself.
                case presence.CloseWorkspace() if self.is_closed:
                    pass
                case presence.CloseWorkspace(workspace=workspace):
                    handle = self._handles[workspace]
                    self._closing[handle.path] = self._tasks.start(self._close(handle), name=f"close {handle.path}")
                case presence.CloseServer():
                    self.stopping.set()
                case presence.OpenWorkspace(workspace=workspace):
                    body = self._closing_bodies[workspace]
                    self._tasks.start(self._reopen(body), name=f"open {body.path}")
                case presence.Refuse():
                    pass

    def _schedule_event(self, seconds: float, name: object, event: PresenceEvent) -> None:
        if self.is_closed:
            return
        if (earlier := self._timers.get(name)) is not None:
            earlier.cancel()

        def fire() -> None:
            self._timers.pop(name, None)
            self.apply(event)

        self._timers[name] = asyncio.get_running_loop().call_later(seconds, fire)

    async def _close(self, handle: WorkspaceHandle) -> None:
        kept: NodeWorkspace | None = None
        try:
            if self.host is not None:
                kept = await self.host.release(handle.id)
            else:
                await self.services.close_workspace(handle.owned)
        except Exception as error:
            # For example, the disk is full. The workspace counts as closed; opening it again recovers it.
            _log.error("%s could not be closed properly: %s", handle.path, error)
        del self._handles[handle.id]
        del self._closing[handle.path]
        self._closing_bodies[handle.id] = WorkspaceBody(
            handle.id, handle.path, handle.yolo, handle.debug, env=handle.env, channels=handle.channels
        )
        self.apply(presence.Closed(handle.id))
        if kept is not None and handle.id not in self.presence.workspaces:
            again = self._register(kept, self._closing_bodies[handle.id])
            self.apply(presence.Opened(again.id, working=again.is_busy))
        # `Closed` may have caused `OpenWorkspace`, which needs the body; it is executed synchronously.
        del self._closing_bodies[handle.id]
        self._schedule_release()

    def _schedule_release(self) -> None:
        """Return memory once for all workspaces that are closed at about the same time."""
        if (earlier := self._timers.pop("release", None)) is not None:
            earlier.cancel()
        if not self.is_closed:
            self._timers["release"] = asyncio.get_running_loop().call_later(_RELEASE_SECONDS, self._release)

    def _release(self) -> None:
        del self._timers["release"]
        release_memory()

    async def _reopen(self, body: WorkspaceBody) -> None:
        """Open a workspace again, with the same id: a client or a run needed it while it was being closed."""
        try:
            handle = await self._open(body, is_known=True)
            self.apply(presence.Opened(handle.id, working=handle.is_busy))
        except Exception as error:
            # Any error: clients could never open it again otherwise.
            _log.error("%s cannot be opened again: %s", body.path, error)
            if body.id not in self._handles:
                self.apply(presence.Closed(body.id))


def _is_over(task: asyncio.Task[WorkspaceHandle]) -> bool:
    """Retrieve the exception of a task, so that it is not logged: its callers receive it."""
    return task.cancelled() or task.exception() is not None


_REFUSALS = {
    "retired": ClientRetired,
    "leaving": ServerStopping,
    "not open": UnknownWorkspace,
    "not attached": NotAttached,
}
