"""The app's connection to the server: one workspace, its events folded into a view, and the user's requests.

`ServerConnection` follows the event stream of one workspace and applies every event to a `View`. It never draws: it
records what has changed and calls `on_change`, and the renderer reads the changes when the next frame is due.

* `view` holds sessions, messages, runs and open requests (`client/view.py`); a snapshot replaces its contents.
* `index` (`SessionIndex`) holds relations within the shown session that drawing needs, and the changed messages.
* `servers` (`Servers`) holds the states of MCP and language servers.

The connection never gives up: `client/workspace_connection.py` resumes a broken stream from its cursor, and starts a
server again that has stopped. Changing the session fetches a snapshot; events of the stream wait meanwhile
(`_is_settled`).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Literal

import msgspec

from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.client.events import StreamEvent
from holdfast.client.server_launcher import ServerLocation
from holdfast.client.view import View
from holdfast.client.workspace_connection import WorkspaceConnection
from holdfast.domain.approvals import PermissionNotification, QuestionNotification
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    AttachedEvent,
    ConfigChangedEvent,
    LspEvent,
    McpEvent,
    MessageDeltaEvent,
    MessageEvent,
    MessagePartEvent,
    PermissionNotificationEvent,
    QuestionNotificationEvent,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
    ToolOutputEvent,
)
from holdfast.domain.extensions import NEVER, LspInfo, LspState, McpInfo
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId, subagent_session
from holdfast.domain.messages import Message, ToolResult
from holdfast.domain.runs import Attachment, Delivery, Run
from holdfast.protocol.bodies import AgentMessage, PromptAccepted, SnapshotBody
from holdfast.tasks import TaskOwner
from holdfast.tui.blocks import MessageContext

__all__ = [
    "LSP_STATE_NAMES",
    "ConnectionState",
    "ServerConnection",
    "ServerCounts",
    "Servers",
    "SessionIndex",
    "count_servers",
]


class SessionIndex:
    """Relations within one session: calls and results, runs and prompts, sub-agents and the calls that started them."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._results: dict[ToolCallId, ToolResult] = {}
        self._calls: dict[ToolCallId, MessageId] = {}
        self._prompted_at: dict[RunId, int] = {}
        self._subagents: dict[SessionId, dict[MessageId, Message]] = {}
        self.latest: MessageId | None = None
        """The newest answer."""
        self.changed: dict[MessageId, None] = {}
        """Messages of the session that changed since they were drawn, in order. The renderer clears it."""
        self.context = MessageContext(self._results, view.outputs, self._subagent_messages, self._run_prompted_at)

    def load(self, messages: Iterable[Message]) -> None:
        """Replace the contents. Nothing is marked as changed: the caller redraws everything."""
        for known in (self._results, self._calls, self._prompted_at, self._subagents, self.changed):
            known.clear()
        self.latest = None
        for message in messages:
            self.add(message)
        self.changed.clear()

    def add(self, message: Message) -> None:
        """Add or replace a message, and mark it and the message of its calls as changed."""
        self.changed[message.id] = None
        if message.role == "assistant":
            self.latest = message.id
        elif message.role == "user":
            self._prompted_at.setdefault(message.run_id, message.created_at)
        for call in message.tool_calls:
            self._calls[call.id] = message.id
        for result in message.tool_results:
            self._results[result.tool_call_id] = result
            if (owner := self._calls.get(result.tool_call_id)) is not None:
                self.changed[owner] = None

    def mark_changed(self, message: MessageId) -> None:
        """Mark a message as changed."""
        self.changed[message] = None

    # Sub-agents.

    def starting_message(self, session: SessionId) -> MessageId | None:
        """Return the message of this session whose call started the sub-agent with that session."""
        # The session of a sub-agent is named after the message and the call that started it.
        message, separator, call = session.partition("$$")
        return MessageId(message) if separator and self._calls.get(ToolCallId(call)) == message else None

    def add_subagent(self, session: SessionId, messages: Iterable[Message]) -> None:
        """Add the earlier messages of a sub-agent."""
        if (owner := self.starting_message(session)) is not None:
            self._subagents[session] = {message.id: message for message in messages}
            self.changed[owner] = None

    def unloaded_subagents(self, limit: int = 20) -> list[SessionId]:
        """Return sessions of sub-agents whose messages have not been fetched, the newest first."""
        names = (subagent_session(message, call) for call, message in reversed(self._calls.items()))
        return [name for name in names if name in self._view.sessions and name not in self._subagents][:limit]

    def _subagent_messages(self, message: MessageId, call: ToolCallId) -> tuple[Message, ...]:
        name = subagent_session(message, call)
        if name not in self._view.sessions:
            return ()
        known = dict(self._subagents.get(name, {}))
        known.update((item.id, item) for item in self._view.messages(name))
        return tuple(known.values())

    def _run_prompted_at(self, run: RunId) -> int:
        return self._prompted_at.get(run, 0)


LSP_STATE_NAMES = {
    LspState.UNSTARTED: "not started",
    LspState.STARTING: "starting",
    LspState.READY: "ready",
    LspState.ERROR: "error",
    LspState.STOPPED: "stopped",
    LspState.DISABLED: "disabled",
}


class ServerCounts(msgspec.Struct, frozen=True):
    """Number of servers of one kind, and how many of them are ready or have failed."""

    kind: str
    ready: int
    failed: int
    total: int


class Servers:
    """States of the MCP and language servers of one workspace: fetched once, then updated by events."""

    def __init__(self) -> None:
        self.mcps: dict[str, McpInfo] = {}
        self.lsps: dict[str, LspInfo] = {}

    async def fetch(self, client: Client, workspace: WorkspaceId) -> None:
        """Fetch the states; keeps the previous ones if the request fails."""
        try:
            self.mcps = await client.mcp_states(workspace)
            self.lsps = await client.list_lsps(workspace)
        except ClientError:
            return

    def apply(self, event: object) -> bool:
        """Apply an event. Returns True if it concerns a server."""
        match event:
            case McpEvent(change=change):
                notice = change.object
                known = self.mcps.get(notice.name) or McpInfo(notice.name, notice.state, NEVER)
                self.mcps[notice.name] = msgspec.structs.replace(
                    known,
                    state=notice.state,
                    error=notice.error,
                    tool_count=notice.tool_count,
                    prompt_count=notice.prompt_count,
                    resource_count=notice.resource_count,
                )
            case LspEvent(change=change):
                status = change.object
                self.lsps[status.name] = LspInfo(
                    status.name, status.state, NEVER, status.error, status.diagnostic_count
                )
            case _:
                return False
        return True

    def counts(self) -> Iterator[ServerCounts]:
        """Yield the counts of each kind. Disabled and unused servers do not count."""
        mcps = [info.state for info in self.mcps.values() if info.state != "disabled"]
        yield from count_servers("mcp", mcps, "connected", ("error", "needs auth"))
        idle = (LspState.UNSTARTED, LspState.STOPPED, LspState.DISABLED)
        lsps = [info.state for info in self.lsps.values() if info.state not in idle]
        yield from count_servers("lsp", lsps, LspState.READY, (LspState.ERROR,))


def count_servers(kind: str, states: Iterable[object], good: object, bad: Iterable[object]) -> Iterator[ServerCounts]:
    """Count the servers of a kind; yields nothing if there are none."""
    known, failed = list(states), set(bad)
    if known:
        yield ServerCounts(kind, known.count(good), sum(state in failed for state in known), len(known))


ConnectionState = Literal["connecting", "live", "broken"]


class ServerConnection:
    """Connection of one terminal app to a workspace. `on_change` is called after every visible change."""

    def __init__(
        self, location: ServerLocation, directory: str, *, on_change: Callable[[], None], yolo: bool = False
    ) -> None:
        environment = [f"{name}={value}" for name, value in os.environ.items()]
        self._connection = WorkspaceConnection(
            location, directory, environment, via="terminal", yolo=self._initial_yolo
        )
        self.yolo = yolo
        """True if prompts of this client are approved automatically, also where other clients are asked for
        approval.
        """
        self._on_change = on_change
        self._tasks = TaskOwner()
        self.view = View()
        self.index = SessionIndex(self.view)
        self.servers = Servers()
        self.session: SessionId | None = None
        self.state: ConnectionState = "connecting"
        self.error = ""
        self.needs_full_redraw = True
        """True if the whole session has to be drawn. The renderer resets it."""
        self.notice: AgentNotice | None = None
        """The last notice of the engine about the current run, until the run continues."""
        self.outcomes: dict[str, PermissionNotification | QuestionNotification] = {}
        """Outcomes of approvals and questions, by their ids."""
        self.warnings: list[str] = []
        """Notices that have not been shown yet."""
        self.notes: list[str] = []
        """Notices that need no attention and have not been shown yet."""
        self.node = ""
        """The server of the event stream, if several hosts were given."""
        self.ended_runs: list[RunId] = []
        """Runs of any session that have ended since the app last checked."""
        self.other_clients = 0
        """Number of other clients that view the same session."""
        self._order: dict[RunId, int] = {}
        self._workspace_reads = 0
        self._is_ready = asyncio.Event()
        self._is_settled = asyncio.Event()
        """Cleared while a snapshot is being fetched. Stream events wait meanwhile: a snapshot older than events that
        were already applied would undo them, and they are not sent twice.
        """
        self._is_settled.set()
        self._pending_snapshots = 0
        self.shell_commands: list[str] = []
        """Shell commands that were started here and are running."""

    @property
    def client(self) -> Client:
        """The client; available after `open`."""
        return self._connection.client

    @property
    def is_open(self) -> bool:
        """True after the workspace was loaded."""
        return self._is_ready.is_set()

    @property
    def workspace(self) -> WorkspaceId:
        """The id of the workspace."""
        return self._connection.workspace

    @property
    def directory(self) -> str:
        """The directory of the workspace."""
        return self.view.workspace.path if self.view.workspace else self._connection.directory

    async def open(self) -> None:
        """Find or start the server, open the workspace and load its state. Raises `ClientError`."""
        await self._connection.enter()
        self._load(await self.client.snapshot(self.workspace))
        self._is_ready.set()
        self._tasks.start(self._connection.follow(self._receive, self._report_trouble), name="events")

    async def close(self) -> None:
        """Stop following and leave the workspace."""
        self._tasks.cancel_all()
        await self._tasks.drain()
        await self._connection.leave()

    def _initial_yolo(self) -> bool:
        """Return the mode to open the workspace with. After a reconnect it is kept: other clients use it too."""
        return self.yolo if self.view.workspace is None else self.view.workspace.yolo

    # Following the event stream.

    async def _receive(self, item: StreamEvent) -> None:
        """Apply an event of the stream. The first one after an interruption shows that the connection is live again."""
        await self._is_settled.wait()
        if self.state != "live" or self.node != self._connection.node:
            self._set_node(self._connection.node)
            self._set_state("live", "")
            self._start_task(self._report_session())
            self._start_task(self._read_servers())
        self._apply(item)
        if self.view.is_stale:
            self._load(await self.client.snapshot(self.workspace, self.session))

    def _set_node(self, node: str) -> None:
        if node != self.node:
            self.notes += [f"Continuing at {node}, because {self.node} is not available."] if self.node else []
            self.node = node
            self._on_change()

    @property
    def has_alternatives(self) -> bool:
        """True if several hosts were given."""
        return self._connection.has_alternatives

    def _report_trouble(self, reason: str) -> None:
        self._set_state("broken", reason)

    async def _read_presence(self) -> None:
        """Fetch the number of clients: events report only changes."""
        if self.session is None or self.state != "live":
            return
        try:
            session = await self.client.get_session(self.workspace, self.session)
        except ClientError:
            return
        if session.id == self.session:
            self._set_clients(session.attached_clients)

    def _set_clients(self, clients: int) -> None:
        others = max(0, clients - 1)
        if others != self.other_clients:
            self.other_clients = others
            self._on_change()

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.start(work, name="refresh")

    def _set_state(self, state: ConnectionState, error: str) -> None:
        if (state, error) != (self.state, self.error):
            self.state, self.error = state, error
            self._on_change()

    def _load(self, snapshot: SnapshotBody) -> None:
        """Replace the view by a snapshot; the stream continues after its cursor."""
        self.view.load(snapshot, self.session)
        self._connection.cursor = self.view.cursor
        self.index.load(self.messages())
        self.needs_full_redraw = True
        self.notice = None
        self._start_task(self._load_subagents())
        self._on_change()

    async def _load_subagents(self) -> None:
        """Fetch the messages of sub-agents, which a snapshot of their parent session does not contain."""
        for name in self.index.unloaded_subagents():
            try:
                self.index.add_subagent(name, await self.client.list_messages(self.workspace, name))
            except ClientError:
                return
            self._on_change()

    def _apply(self, item: StreamEvent) -> None:
        if isinstance(item.event, ConfigChangedEvent):
            self._start_task(self._read_workspace())
            self._start_task(self._read_servers())
        elif self.servers.apply(item.event):
            self._on_change()
        elif isinstance(item.event, AttachedEvent) and item.event.change.object.session_id == self.session:
            self._set_clients(item.event.change.object.clients)
        if not self.view.apply(item):
            return
        match item.event:
            case MessageEvent(change=change):
                self._mark_changed(change.object.session_id, change.object.id, change.object)
            case MessageDeltaEvent(payload=growth) | MessagePartEvent(payload=growth):
                self._mark_changed(growth.session_id, growth.message_id)
            case ToolOutputEvent(payload=output):
                self._mark_changed(output.session_id, output.message_id)
            case event:
                self._apply_status(event)
        self._on_change()

    def _apply_status(self, event: object) -> None:
        """Process an event that is not part of a message but changes the display."""
        match event:
            case AgentEvent(change=change):
                self.notice = change.object if change.object.type in ("retrying", "re_authenticate") else self.notice
                self.warnings += [change.object.error] if change.object.type == "fallback" else []
            case PermissionNotificationEvent(change=answer):
                self.outcomes[answer.object.id] = answer.object
            case QuestionNotificationEvent(change=closed):
                self.outcomes[closed.object.batch_id] = closed.object
            case RunEvent(change=run) if run.type == "updated" and run.object.state == "waiting":
                self._start_task(self._read_order())
            case RunCompleteEvent(change=end):
                self.notice = None if self.notice and self.notice.type == "retrying" else self.notice
                self.ended_runs.append(end.object.run_id)
            case SessionEvent(change=session) if session.type == "deleted" and session.object.id == self.session:
                self.session, self.needs_full_redraw = None, True
                self.index.load(())
            case _:
                pass

    def _mark_changed(self, session: SessionId, message: MessageId, full: Message | None = None) -> None:
        """Mark a message of the session, or the message whose call started the sub-agent, as changed."""
        if session != self.session:
            if (owner := self.index.starting_message(session)) is not None:
                self.index.mark_changed(owner)
            return
        self.notice = None
        if full is not None:
            self.index.add(full)
        else:
            self.index.mark_changed(message)

    async def _read_order(self) -> None:
        """Fetch the order of the queue: the event of a run that was moved does not contain its position."""
        if self.session is None:
            return
        try:
            texts = await self.client.list_queued(self.workspace, self.session)
        except ClientError:
            return
        queued = self.waiting()
        self._order = {}
        for position, text in enumerate(texts):
            found = next((run for run in queued if run.prompt == text), None)
            if found is not None:
                queued.remove(found)
                self._order[found.run_id] = position
        self._on_change()

    async def _read_workspace(self) -> None:
        """Fetch the workspace. Of concurrent requests only the result of the last one is used."""
        self._workspace_reads += 1
        number = self._workspace_reads
        try:
            workspace = await self.client.get_workspace(self.workspace)
        except ClientError:
            return
        if number == self._workspace_reads:
            self.view.workspace = workspace
            self._on_change()

    async def _read_servers(self) -> None:
        await self.servers.fetch(self.client, self.workspace)
        self._on_change()

    # State.

    def messages(self) -> tuple[Message, ...]:
        """The messages of the session."""
        return self.view.messages(self.session) if self.session is not None else ()

    def message(self, message: MessageId) -> Message | None:
        """Return a message of the session."""
        return self.view.message(self.session, message) if self.session is not None else None

    def latest(self) -> Message | None:
        """Return the newest answer."""
        return self.message(self.index.latest) if self.index.latest else None

    def runs(self) -> list[Run]:
        """Return the runs of the session that have not ended, in order: the head, then those that wait."""
        if self.session is None:
            return []
        runs = [run for run in self.view.runs_of(self.session) if run.state not in ("ended", "folded")]
        last = len(self._order)
        return sorted(runs, key=lambda run: (run.state == "waiting", self._order.get(run.run_id, last), run.number))

    def waiting(self) -> list[Run]:
        """Return the runs that wait."""
        return [run for run in self.runs() if run.state == "waiting"]

    # Requests of the user.

    async def open_session(self, session: SessionId | None) -> None:
        """View another session, or none."""
        before, self.session = self.session, session
        self.other_clients = 0
        self._pending_snapshots += 1
        self._is_settled.clear()
        try:
            snapshot = await self.client.snapshot(self.workspace, session)
            if session == self.session:
                self._load(snapshot)
        except ClientError:
            # Keep showing the previous session.
            self.session = before if session == self.session else self.session
            raise
        finally:
            self._pending_snapshots -= 1
            if not self._pending_snapshots:
                self._is_settled.set()
        await self._report_session()

    async def _report_session(self) -> None:
        """Report the current session for other clients to see. Without an open stream the server refuses it."""
        try:
            await self.client.set_current_session(self.workspace, self.session or SessionId(""))
        except ClientError:
            return
        await self._read_presence()

    async def prompt(
        self, text: str, *, delivery: Delivery | None = None, attachments: tuple[Attachment, ...] = ()
    ) -> PromptAccepted:
        """Send a prompt; the first one creates the session. Waits until the connection is open."""
        await self._is_ready.wait()
        if self.session is None:
            created = await self.client.create_session(self.workspace)
            await self.open_session(created.id)
        assert self.session is not None
        message = AgentMessage(
            self.session,
            text,
            attachments=attachments or None,
            delivery=delivery,
            client_id=self.client.client_id,
            interactive=True,
            yolo=self.yolo,
        )
        return await self.client.send_prompt(self.workspace, message)

    async def cancel(self) -> tuple[RunId, ...]:
        """Cancel the runs of the session; returns those that were cancelled."""
        if self.session is None:
            return ()
        return tuple((await self.client.cancel_session(self.workspace, self.session)).cancelled)

    async def answer_permission(self, body: dict[str, Any]) -> None:
        """Send the answer to an approval. Raises `ClientError`."""
        await self.client.grant(self.workspace, body)

    async def answer_question(self, request_id: str, body: dict[str, Any]) -> None:
        """Send the answers to a batch of questions; `cancelled` in the body dismisses it. Raises `ClientError`."""
        if body.get("cancelled"):
            await self.client.cancel_question(self.workspace, request_id)
        else:
            await self.client.answer_question(self.workspace, msgspec.to_builtins(body))
