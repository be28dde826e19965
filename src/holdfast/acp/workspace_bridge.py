"""Bridge between a workspace and an editor: converts events to updates of the sessions that the editor has open."""

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
from holdfast.client.locate import ServerLocation
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
        self, where: ServerLocation, directory: str, environment: Sequence[str], editor: EditorConnection
    ) -> None:
        self._attached = WorkspaceConnection(where, directory, environment)
        self._is_here = bool(where.address.path) and where.again is None
        self._lent: dict[str, McpSettings] = {}
        """The editor's MCP servers, merged from all its sessions."""
        self._editor = editor
        self._tasks = TaskOwner()
        self._narrators: dict[SessionId, SessionUpdates] = {}
        self._numbers: dict[SessionId, int] = {}
        """The cursor of the last snapshot of each session. Events up to it are ignored."""
        self._parents: dict[SessionId, SessionId] = {}
        self._ends: dict[RunId, asyncio.Future[RunComplete]] = {}
        self._window = 0
        self._problems: tuple[str, ...] = ()
        """Configuration errors that were already shown."""
        self._is_behind = False
        """True if events were missed and the state has not been reloaded yet."""
        self.modes: dict[SessionId, str] = {}
        self.asking = EditorApprovals(self, editor)

    @property
    def client(self) -> Client:
        """The client of the server."""
        return self._attached.client

    @property
    def workspace(self) -> WorkspaceId:
        """The open workspace."""
        return self._attached.workspace

    @property
    def directory(self) -> str:
        """The workspace directory."""
        return self._attached.directory

    async def open(self) -> None:
        """Open the workspace and follow its events."""
        await self._attached.enter()
        snapshot = await self.client.snapshot(self.workspace)
        self._note(snapshot.sessions)
        await self._read_window()
        self._attached.cursor = snapshot.cursor
        self._tasks.start(self._attached.follow(self._take), name="events")

    async def close(self) -> None:
        """Leave the workspace. Its runs continue."""
        await self.asking.close()
        self._tasks.cancel_all()
        await self._tasks.drain()
        await self._attached.leave()

    async def lend(self, servers: Mapping[str, McpSettings]) -> None:
        """Add MCP servers of the editor. They are ignored for a remote server, which cannot reach
        the editor's machine.
        """
        if servers and not self._is_here:
            _log.warning("the editor's MCP servers are not used: the work is elsewhere. Use holdfast mcp add there")
            return
        self._lent |= servers
        await self._lend_again()

    async def _lend_again(self) -> None:
        """Register the editor's MCP servers again, in case the server was restarted. Errors are logged, so prompts do
        not fail.
        """
        if self._lent:
            try:
                await self.client.mcp_lend(self.workspace, self._lent)
            except ServerProblem as error:
                _log.warning("the editor's MCP servers are not there: %s", error)

    # Sessions

    async def attach(self, session: SessionId, *, tells: bool) -> bool:
        """Follow a session; with `tells`, replay its messages. Returns whether the session exists."""
        snapshot = await self.client.snapshot(self.workspace, session)
        self._note(snapshot.sessions)
        found = next((item for item in snapshot.sessions if item.id == session), None)
        if found is None or found.parent_session_id:
            return False
        narrator = self._narrators[session] = SessionUpdates(session, self.directory)
        self.modes.setdefault(session, "ask")
        updates = self._narrated(narrator, snapshot, found, is_replay=True)
        if tells:
            self.tell(session, updates)
        self._open_asks(snapshot)
        return True

    def _open_asks(self, snapshot: SnapshotBody) -> None:
        """Forward the open requests of a snapshot; those already forwarded are skipped."""
        for ask in snapshot.permissions:
            self.asking.permission(msgspec.convert(ask, PermissionRequest))
        for batch in snapshot.questions:
            self.asking.question(msgspec.convert(batch, QuestionRequest))

    def detach(self, session: SessionId) -> None:
        """Stop following a session."""
        self._narrators.pop(session, None)
        self._numbers.pop(session, None)

    def narrator(self, session: SessionId) -> SessionUpdates | None:
        """Return the update source of a session, or of the root session of a sub-agent session."""
        return self._narrators.get(self.root_of(session))

    def root_of(self, session: SessionId) -> SessionId:
        """Return the root session of a sub-agent session, or the session itself."""
        seen: set[SessionId] = set()
        while (parent := self._parents.get(session)) and session not in seen:
            seen.add(session)
            session = parent
        return session

    def tell(self, session: SessionId, updates: Sequence[Json]) -> None:
        """Send updates of a session to the editor."""
        for update in updates:
            self._editor.tell(session, update)

    def _narrated(
        self, narrator: SessionUpdates, snapshot: SnapshotBody, session: Session, *, is_replay: bool
    ) -> list[Json]:
        self._numbers[narrator.session] = snapshot.cursor
        updates = [update for item in snapshot.messages for update in narrator.message(item, is_replay=is_replay)]
        return updates + narrator.session_now(session, self._window)

    def _note(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            if session.parent_session_id:
                self._parents[session.id] = session.parent_session_id

    async def _read_window(self) -> None:
        """Read the context window of the current model."""
        try:
            self._window = (await self.client.agent_info(self.workspace)).model.context_window
        except ClientError:
            self._window = 0

    async def settings_notes(self) -> list[Json]:
        """Return a note for each error in the settings that was not shown yet."""
        try:
            problems = (await self.client.get_workspace(self.workspace)).problems
        except ClientError:
            return []
        new = [problem for problem in problems if problem not in self._problems]
        self._problems = problems
        return [note(f"Error in the settings: {problem}") for problem in new]

    # Runs

    def expect(self, session: SessionId, run: RunId) -> "asyncio.Future[RunComplete]":
        """Return a future for the end of a run that is about to be sent."""
        end: asyncio.Future[RunComplete] = asyncio.get_running_loop().create_future()
        self._ends[run] = end
        if (narrator := self._narrators.get(session)) is not None:
            narrator.own.add(run)
        return end

    async def send(self, message: AgentMessage) -> None:
        """Send a prompt, restarting the server if it is gone. A repeated run id does not start a second run."""
        try:
            await self._send(message)
        except (Unreachable, ConnectionLost):
            await self._attached.enter()
            await self._send(message)

    async def _send(self, message: AgentMessage) -> None:
        await self._lend_again()
        await self.client.send_prompt(self.workspace, message)

    def forget(self, run: RunId) -> None:
        """Discard the future of a run."""
        self._ends.pop(run, None)

    async def last_message(self, end: RunComplete) -> Message | None:
        """Return the last message of a run."""
        messages = await self.client.list_messages(self.workspace, end.session_id)
        return next((item for item in messages if item.id == end.message_id), None)

    # Events

    async def _take(self, item: StreamEvent) -> None:
        if self._is_behind or isinstance(item.event, GapEvent):
            self._is_behind = True
            await self._catch_up()
        match item.event:
            case MessageEvent(change=change) if change.type != "deleted":
                self._take_message(change.object, item.number or 0)
            case MessageDeltaEvent(payload=growth):
                if (narrator := self._narrators.get(growth.session_id)) is not None:
                    self.tell(growth.session_id, narrator.delta(growth))
            case MessagePartEvent(payload=part):
                if (narrator := self._narrators.get(part.session_id)) is not None:
                    self.tell(part.session_id, narrator.part(part))
            case ToolOutputEvent(payload=output):
                if (narrator := self._narrators.get(output.session_id)) is not None:
                    self.tell(output.session_id, narrator.output(output))
            case _:
                await self._take_other(item)

    async def _take_other(self, item: StreamEvent) -> None:
        match item.event:
            case SessionEvent(change=change):
                self._note((change.object,))
                # The snapshot may be newer than this event, whose title and plan are then outdated.
                is_new = (item.number or 0) > self._numbers.get(change.object.id, 0)
                narrator = self._narrators.get(change.object.id)
                if change.type != "deleted" and is_new and narrator is not None:
                    self.tell(change.object.id, narrator.session_now(change.object, self._window))
            case RunCompleteEvent(change=complete):
                self._end(complete.object)
            case AgentEvent(change=Change(object=notice)) if notice.type in ("retrying", "fallback"):
                if notice.session_id in self._narrators:
                    self.tell(notice.session_id, [note(notice.error)])
            case ConfigChangedEvent():
                await self._read_window()
                updates = [await SlashCommands(self, SessionId("")).available(), *await self.settings_notes()]
                for session in self._narrators:
                    self.tell(session, updates)
            case event:
                self.asking.take(event)

    def _take_message(self, message: Message, number: int) -> None:
        narrator = self._narrators.get(message.session_id)
        if narrator is not None:
            if number > self._numbers.get(message.session_id, 0):
                self.tell(message.session_id, narrator.message(message))
        elif is_subagent_session(message.session_id) and (owner := self.narrator(message.session_id)) is not None:
            call = ToolCallId(message.session_id.rpartition("$$")[2])
            self.tell(owner.session, owner.helper(call, message))

    def _end(self, end: RunComplete) -> None:
        narrator = self._narrators.get(end.session_id)
        if narrator is not None:
            self.tell(end.session_id, narrator.closed(end.outcome))
        waiting = self._ends.pop(end.run_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(end)

    async def _catch_up(self) -> None:
        """Reload the state after missed events and send the differences."""
        for session, narrator in tuple(self._narrators.items()):
            snapshot = await self.client.snapshot(self.workspace, session)
            self._note(snapshot.sessions)
            found = next((item for item in snapshot.sessions if item.id == session), None)
            if found is not None:
                self.tell(session, self._narrated(narrator, snapshot, found, is_replay=False))
            self.asking.retain(item["id"] for item in (*snapshot.permissions, *snapshot.questions))
            self._open_asks(snapshot)
        for run in tuple(self._ends):
            found_run: Run = await self.client.get_run(self.workspace, run)
            if found_run.outcome is not None:
                self._end(_end_of(found_run))
        self._is_behind = False


def _end_of(run: Run) -> RunComplete:
    return RunComplete(
        run.session_id,
        run.message_id,
        run.run_id,
        run.outcome or "interrupted",
        error=run.error,
        folded_into=run.folded_into,
    )
