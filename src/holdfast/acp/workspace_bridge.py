"""Bridge between a workspace and an editor: converts events to updates of the sessions that the editor has open.

Theory of operation. A bridge is a client of one workspace. It follows the workspace's event stream and holds, for each
session that the editor has open, a `SessionUpdates` object that converts events to `session/update` notifications. An
editor cannot remove what it displays, so each piece of content must be sent once, whatever the order of snapshot and
events:

* `attach` loads a snapshot and records its cursor. Message and session events up to that cursor are ignored, because
  the snapshot contains them already.
* After a gap in the stream, `_reload` loads a snapshot of each open session. `SessionUpdates` compares it with the
  content sent so far and returns the difference. Approvals that were resolved meanwhile are closed, and runs that ended
  meanwhile are reported. The gap flag is cleared only after all of this has succeeded, so a failed reload is repeated
  with the next event.
* A prompt registers its run id before it is sent (`expect_end`), since the end can arrive before the response. If the
  server has stopped, `send` restarts it and repeats the prompt; the run id makes that safe.

Sub-agents have sessions of their own. Their steps and approvals are shown in the root session.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.acp.approvals import EditorApprovals
from holdfast.acp.editor_connection import EditorConnection
from holdfast.acp.session_updates import SessionUpdates, note
from holdfast.acp.slash_commands import SlashCommands
from holdfast.acp.tool_calls import Json
from holdfast.client.client import Client
from holdfast.client.errors import ClientError, ConnectionLost, ServerProblem, Unreachable
from holdfast.client.events import StreamEvent
from holdfast.client.server_launcher import ServerLocation
from holdfast.client.workspace_connection import WorkspaceConnection
from holdfast.domain.approvals import PermissionRequest, QuestionRequest
from holdfast.domain.events import (
    AgentEvent,
    Change,
    ConfigChangedEvent,
    GapEvent,
    MessageDeltaEvent,
    MessageEvent,
    MessagePartEvent,
    RunComplete,
    RunCompleteEvent,
    SessionEvent,
    ToolOutputEvent,
)
from holdfast.domain.ids import RunId, SessionId, ToolCallId, WorkspaceId, is_subagent_session
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.settings import McpSettings
from holdfast.protocol.bodies import AgentMessage, SnapshotBody
from holdfast.tasks import TaskOwner

__all__ = ["WorkspaceBridge"]

_log = logging.getLogger("holdfast.acp")


class WorkspaceBridge:
    """The bridge of one workspace, open until the editor disconnects. `modes` is the approval mode of each session."""

    def __init__(
        self, location: ServerLocation, directory: str, environment: Sequence[str], editor: EditorConnection
    ) -> None:
        self._connection = WorkspaceConnection(location, directory, environment)
        self._is_local = location.is_local
        self._mcp_servers: dict[str, McpSettings] = {}
        """The editor's MCP servers, merged from all its sessions."""
        self._editor = editor
        self._tasks = TaskOwner()
        self._updates: dict[SessionId, SessionUpdates] = {}
        self._snapshot_cursors: dict[SessionId, int] = {}
        """The cursor of the last snapshot of each session. Events up to it are ignored."""
        self._parents: dict[SessionId, SessionId] = {}
        self._expected_ends: dict[RunId, asyncio.Future[RunComplete]] = {}
        self._context_window = 0
        self._shown_problems: tuple[str, ...] = ()
        """Configuration errors that were already shown."""
        self._has_gap = False
        """True if events were missed and the state has not been reloaded yet."""
        self.modes: dict[SessionId, str] = {}
        self.approvals = EditorApprovals(self, editor)

    @property
    def client(self) -> Client:
        """The client of the server."""
        return self._connection.client

    @property
    def workspace(self) -> WorkspaceId:
        """The open workspace."""
        return self._connection.workspace

    @property
    def directory(self) -> str:
        """The workspace directory."""
        return self._connection.directory

    async def open(self) -> None:
        """Open the workspace and follow its events."""
        await self._connection.enter()
        snapshot = await self.client.snapshot(self.workspace)
        self._record_parents(snapshot.sessions)
        await self._load_context_window()
        self._connection.cursor = snapshot.cursor
        self._tasks.start(self._connection.follow(self._on_event), name="events")

    async def close(self) -> None:
        """Leave the workspace. Its runs continue."""
        await self.approvals.close()
        self._tasks.cancel_all()
        await self._tasks.drain()
        await self._connection.leave()

    async def add_mcp_servers(self, servers: Mapping[str, McpSettings]) -> None:
        """Add MCP servers of the editor. They are ignored for a remote server, which cannot reach
        the editor's machine.
        """
        if servers and not self._is_local:
            _log.warning(
                "the editor's MCP servers are not used: the server is on another machine. Use holdfast mcp add there"
            )
            return
        self._mcp_servers |= servers
        await self._register_mcp_servers()

    async def _register_mcp_servers(self) -> None:
        """Register the editor's MCP servers again, in case the server was restarted. Errors are logged, so prompts do
        not fail.
        """
        if self._mcp_servers:
            try:
                await self.client.mcp_lend(self.workspace, self._mcp_servers)
            except ServerProblem as error:
                _log.warning("the editor's MCP servers could not be registered: %s", error)

    # Sessions

    async def attach(self, session: SessionId, *, replays: bool) -> bool:
        """Follow a session; with `replays`, replay its messages. Returns whether the session exists."""
        snapshot = await self.client.snapshot(self.workspace, session)
        self._record_parents(snapshot.sessions)
        found = next((item for item in snapshot.sessions if item.id == session), None)
        if found is None or found.parent_session_id:
            return False
        source = self._updates[session] = SessionUpdates(session, self.directory)
        self.modes.setdefault(session, "ask")
        updates = self._snapshot_updates(source, snapshot, found, is_replay=True)
        if replays:
            self.send_updates(session, updates)
        self._forward_open_requests(snapshot)
        return True

    def _forward_open_requests(self, snapshot: SnapshotBody) -> None:
        """Forward the open requests of a snapshot; those already forwarded are skipped."""
        for ask in snapshot.permissions:
            self.approvals.forward_permission(msgspec.convert(ask, PermissionRequest))
        for batch in snapshot.questions:
            self.approvals.forward_question(msgspec.convert(batch, QuestionRequest))

    def detach(self, session: SessionId) -> None:
        """Stop following a session."""
        self._updates.pop(session, None)
        self._snapshot_cursors.pop(session, None)

    def session_updates(self, session: SessionId) -> SessionUpdates | None:
        """Return the update source of a session, or of the root session of a sub-agent session."""
        return self._updates.get(self.root_of(session))

    def root_of(self, session: SessionId) -> SessionId:
        """Return the root session of a sub-agent session, or the session itself."""
        seen: set[SessionId] = set()
        while (parent := self._parents.get(session)) and session not in seen:
            seen.add(session)
            session = parent
        return session

    def send_updates(self, session: SessionId, updates: Sequence[Json]) -> None:
        """Send updates of a session to the editor."""
        for update in updates:
            self._editor.send_update(session, update)

    def _snapshot_updates(
        self, source: SessionUpdates, snapshot: SnapshotBody, session: Session, *, is_replay: bool
    ) -> list[Json]:
        self._snapshot_cursors[source.session] = snapshot.cursor
        updates = [update for item in snapshot.messages for update in source.message(item, is_replay=is_replay)]
        return updates + source.session_state(session, self._context_window)

    def _record_parents(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            if session.parent_session_id:
                self._parents[session.id] = session.parent_session_id

    async def _load_context_window(self) -> None:
        """Read the context window of the current model."""
        try:
            self._context_window = (await self.client.agent_info(self.workspace)).model.context_window
        except ClientError:
            self._context_window = 0

    async def settings_notes(self) -> list[Json]:
        """Return a note for each error in the settings that was not shown yet."""
        try:
            problems = (await self.client.get_workspace(self.workspace)).problems
        except ClientError:
            return []
        new = [problem for problem in problems if problem not in self._shown_problems]
        self._shown_problems = problems
        return [note(f"Error in the settings: {problem}") for problem in new]

    # Runs

    def expect_end(self, session: SessionId, run: RunId) -> "asyncio.Future[RunComplete]":
        """Return a future for the end of a run that is about to be sent."""
        end: asyncio.Future[RunComplete] = asyncio.get_running_loop().create_future()
        self._expected_ends[run] = end
        if (source := self._updates.get(session)) is not None:
            source.own_runs.add(run)
        return end

    async def send(self, message: AgentMessage) -> None:
        """Send a prompt, restarting the server if it is gone. A repeated run id does not start a second run."""
        try:
            await self._send(message)
        except (Unreachable, ConnectionLost):
            await self._connection.enter()
            await self._send(message)

    async def _send(self, message: AgentMessage) -> None:
        await self._register_mcp_servers()
        await self.client.send_prompt(self.workspace, message)

    def forget_run(self, run: RunId) -> None:
        """Discard the future of a run."""
        self._expected_ends.pop(run, None)

    async def last_message(self, end: RunComplete) -> Message | None:
        """Return the last message of a run."""
        messages = await self.client.list_messages(self.workspace, end.session_id)
        return next((item for item in messages if item.id == end.message_id), None)

    # Events

    async def _on_event(self, item: StreamEvent) -> None:
        if self._has_gap or isinstance(item.event, GapEvent):
            self._has_gap = True
            await self._reload()
        match item.event:
            case MessageEvent(change=change) if change.type != "deleted":
                self._on_message(change.object, item.number or 0)
            case MessageDeltaEvent(payload=delta):
                if (source := self._updates.get(delta.session_id)) is not None:
                    self.send_updates(delta.session_id, source.delta(delta))
            case MessagePartEvent(payload=part):
                if (source := self._updates.get(part.session_id)) is not None:
                    self.send_updates(part.session_id, source.part(part))
            case ToolOutputEvent(payload=output):
                if (source := self._updates.get(output.session_id)) is not None:
                    self.send_updates(output.session_id, source.output(output))
            case _:
                await self._on_other_event(item)

    async def _on_other_event(self, item: StreamEvent) -> None:
        match item.event:
            case SessionEvent(change=change):
                self._record_parents((change.object,))
                # The snapshot may be newer than this event, whose title and plan are then outdated.
                is_new = (item.number or 0) > self._snapshot_cursors.get(change.object.id, 0)
                source = self._updates.get(change.object.id)
                if change.type != "deleted" and is_new and source is not None:
                    self.send_updates(change.object.id, source.session_state(change.object, self._context_window))
            case RunCompleteEvent(change=complete):
                self._on_run_end(complete.object)
            case AgentEvent(change=Change(object=notice)) if notice.type in ("retrying", "fallback"):
                if notice.session_id in self._updates:
                    self.send_updates(notice.session_id, [note(notice.error)])
            case ConfigChangedEvent():
                await self._load_context_window()
                updates = [await SlashCommands(self, SessionId("")).available_update(), *await self.settings_notes()]
                for session in self._updates:
                    self.send_updates(session, updates)
            case event:
                self.approvals.on_event(event)

    def _on_message(self, message: Message, number: int) -> None:
        source = self._updates.get(message.session_id)
        if source is not None:
            if number > self._snapshot_cursors.get(message.session_id, 0):
                self.send_updates(message.session_id, source.message(message))
        elif (
            is_subagent_session(message.session_id) and (owner := self.session_updates(message.session_id)) is not None
        ):
            call = ToolCallId(message.session_id.rpartition("$$")[2])
            self.send_updates(owner.session, owner.subagent_steps(call, message))

    def _on_run_end(self, end: RunComplete) -> None:
        source = self._updates.get(end.session_id)
        if source is not None:
            self.send_updates(end.session_id, source.run_ended(end.outcome))
        waiting = self._expected_ends.pop(end.run_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(end)

    async def _reload(self) -> None:
        """Reload the state after missed events and send the differences."""
        for session, source in tuple(self._updates.items()):
            snapshot = await self.client.snapshot(self.workspace, session)
            self._record_parents(snapshot.sessions)
            found = next((item for item in snapshot.sessions if item.id == session), None)
            if found is not None:
                self.send_updates(session, self._snapshot_updates(source, snapshot, found, is_replay=False))
            self.approvals.retain(item["id"] for item in (*snapshot.permissions, *snapshot.questions))
            self._forward_open_requests(snapshot)
        for run in tuple(self._expected_ends):
            found_run: Run = await self.client.get_run(self.workspace, run)
            if found_run.outcome is not None:
                self._on_run_end(_run_complete(found_run))
        self._has_gap = False


def _run_complete(run: Run) -> RunComplete:
    return RunComplete(
        run.session_id,
        run.message_id,
        run.run_id,
        run.outcome or "interrupted",
        error=run.error,
        folded_into=run.folded_into,
    )
