"""View state of a workspace: a fold of a snapshot and the events after it. Pure.

A snapshot followed by later events produces the same state as the complete event stream. The cost of a delta does not
depend on the length of its message: deltas are collected, and joined when the message is read.
"""

from collections import deque
from typing import TypeAlias

import msgspec

from holdfast.client.events import StreamEvent, UnknownEvent
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    ApprovalEvent,
    Change,
    Event,
    GapEvent,
    HelloEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
    ToolOutput,
    ToolOutputEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody

__all__ = ["RequestBody", "View", "ViewSettings"]

RequestBody: TypeAlias = dict[str, object]
"""A permission request or a batch of questions, as received."""

_FOLD_AFTER = 1024


class ViewSettings(msgspec.Struct, frozen=True):
    """Limits of a view. `keeps_all`: messages of every session are kept; otherwise only those of watched sessions."""

    keeps_all: bool = True
    ended_runs: int = 50
    notices: int = 50
    output: int = 16_384


class _Draft:
    """A message with deltas that were not joined yet."""

    __slots__ = ("_growth", "_limit", "_message")

    def __init__(self, message: Message) -> None:
        self._message = message
        self._growth: list[MessageDelta | MessagePart] = []
        self._limit = _FOLD_AFTER

    def add(self, growth: MessageDelta | MessagePart) -> None:
        """Append a delta or part."""
        self._growth.append(growth)
        if len(self._growth) >= self._limit:
            # Each fold copies the text. Doubling the limit keeps the total cost proportional to the length of the text.
            self._limit *= 2
            self.render()

    def render(self) -> Message:
        """Join the deltas and return the message."""
        if self._growth:
            self._message = grow(self._message, self._growth)
            self._growth.clear()
        return self._message


class View:
    """The state of a workspace according to its events. `is_stale` is set after a gap: load a snapshot."""

    def __init__(self, settings: ViewSettings | None = None) -> None:
        self._settings = settings or ViewSettings()
        self._drafts: dict[SessionId, dict[MessageId, _Draft]] = {}
        self._watched: set[SessionId] = set()
        self._ended: deque[RunId] = deque()
        self._seen = 0
        self._is_fed = False
        self._is_ahead = False
        self.cursor = 0
        """The last number that is part of this view."""
        self.is_stale = False
        self.workspace: WorkspaceBody | None = None
        self.sessions: dict[SessionId, Session] = {}
        self.runs: dict[RunId, Run] = {}
        """Active runs and the most recent ended runs, in the order of their acceptance."""
        self.permissions: dict[str, RequestBody] = {}
        self.questions: dict[str, RequestBody] = {}
        self.outputs: dict[ToolCallId, str] = {}
        """The latest output of each running tool; removed when its result arrives."""
        self.presence: object = None
        self.notices: deque[AgentNotice] = deque(maxlen=self._settings.notices)

    def messages(self, session: SessionId) -> tuple[Message, ...]:
        """Return the messages of a session, with the text streamed so far."""
        return tuple(draft.render() for draft in self._drafts.get(session, {}).values())

    def message(self, session: SessionId, message: MessageId) -> Message | None:
        """Return a message, with the text streamed so far."""
        draft = self._drafts.get(session, {}).get(message)
        return None if draft is None else draft.render()

    def runs_of(self, session: SessionId) -> tuple[Run, ...]:
        """Return the runs of a session."""
        return tuple(run for run in self.runs.values() if run.session_id == session)

    def forget(self, session: SessionId) -> None:
        """Stop watching a session and drop its messages, unless all are kept."""
        self._watched.discard(session)
        if not self._settings.keeps_all:
            self._drafts.pop(session, None)

    def load(self, snapshot: SnapshotBody, session: SessionId | None = None) -> None:
        """Replace the state by a snapshot. `session` is the session whose messages it contains, and is watched from now
        on.

        A snapshot may be newer than the stream that feeds this view. Numbered events that it already contains are
        ignored when they arrive, as are the deltas between them. A view without earlier events expects its stream to
        start at the cursor of the snapshot.
        """
        self.cursor = snapshot.cursor
        if not self._is_fed:
            self._seen = snapshot.cursor
        self._is_ahead = snapshot.cursor > self._seen
        self.is_stale = False
        self.workspace = snapshot.workspace
        self.sessions = {item.id: item for item in snapshot.sessions}
        self.runs = {run.run_id: run for run in sorted(snapshot.runs, key=lambda run: run.number)}
        ended = [run for run in snapshot.runs if run.state == "ended"]
        self._ended = deque(run.run_id for run in sorted(ended, key=lambda run: (run.ended_at, run.number)))
        self.permissions = _by_id(snapshot.permissions)
        self.questions = _by_id(snapshot.questions)
        self._drafts.clear()
        self.outputs.clear()
        self._watched.clear()
        if session is not None:
            self._watched.add(session)
            self._drafts[session] = {}
        for message in snapshot.messages:
            self._drafts.setdefault(message.session_id, {})[message.id] = _Draft(message)

    def apply(self, item: StreamEvent) -> bool:
        """Apply one stream event. Returns whether it may have changed the state."""
        self._is_fed = True
        if item.number is not None:
            self._seen = max(self._seen, item.number)
            self._is_ahead = self._is_ahead and self._seen < self.cursor
            if item.number <= self.cursor:
                return False
            self.cursor = item.number
        match item.event:
            case HelloEvent(payload=hello):
                # Live events follow all numbered events up to the cursor of the hello event.
                self._is_ahead = self._is_ahead and hello.cursor < self.cursor
                return False
            case GapEvent(payload=gap):
                self._seen = self.cursor = gap.cursor
                self._is_ahead = False
                self.is_stale = True
                return True
            case event:
                return self._apply_event(event)

    def _apply_event(self, event: Event | UnknownEvent) -> bool:
        match event:
            case MessageDeltaEvent(payload=growth) | MessagePartEvent(payload=growth):
                return self._apply_growth(growth)
            case MessageEvent(change=message):
                self._apply_message(message)
            case SessionEvent(change=session):
                self._apply_session(session)
            case RunEvent(change=run):
                self._apply_run(run)
            case RunCompleteEvent(change=complete):
                self._end_run(complete.object)
            case AgentEvent(change=printed):
                self.notices.append(printed.object)
            case ToolOutputEvent(payload=output):
                return self._append_output(output)
            case (
                PermissionRequestEvent()
                | PermissionNotificationEvent()
                | QuestionRequestEvent()
                | QuestionNotificationEvent()
            ):
                return self._apply_request(event)
            case _:
                return self._apply_unknown(event)
        return True

    def _apply_request(self, event: ApprovalEvent) -> bool:
        match event:
            case PermissionRequestEvent(change=request):
                self.permissions[request.object.id] = msgspec.to_builtins(request.object)
            case PermissionNotificationEvent(change=notice):
                return self._apply_permission_notice(msgspec.to_builtins(notice.object))
            case QuestionRequestEvent(change=batch):
                self.questions[batch.object.id] = msgspec.to_builtins(batch.object)
            case QuestionNotificationEvent(change=closed):
                self.questions.pop(closed.object.batch_id, None)
        return True

    def _apply_growth(self, growth: MessageDelta | MessagePart) -> bool:
        draft = self._drafts.get(growth.session_id, {}).get(growth.message_id)
        if draft is None or self._is_ahead:
            return False
        draft.add(growth)
        return True

    def _append_output(self, output: ToolOutput) -> bool:
        if output.session_id not in self._drafts:
            return False
        printed = self.outputs.get(output.tool_call_id, "") + output.text
        self.outputs[output.tool_call_id] = printed[-self._settings.output :]
        return True

    def _apply_message(self, change: Change[Message]) -> None:
        message = change.object
        for result in message.tool_results:
            self.outputs.pop(result.tool_call_id, None)
        if change.type == "deleted":
            self._drafts.get(message.session_id, {}).pop(message.id, None)
        elif self._settings.keeps_all or message.session_id in self._watched:
            # Assigning to an existing key keeps the position of the message.
            self._drafts.setdefault(message.session_id, {})[message.id] = _Draft(message)
        self._count(change)

    def _count(self, change: Change[Message]) -> None:
        """Update the message count of a session when a message arrives, because the session's own
        event may be delayed.
        """
        message = change.object
        session = self.sessions.get(message.session_id)
        if session is None or change.type == "updated":
            return
        count, at = session.message_count - 1, session.updated_at
        if change.type == "created":
            count, at = session.message_count + 1, max(at, message.updated_at)
        self.sessions[session.id] = msgspec.structs.replace(session, message_count=count, updated_at=at)

    def _apply_session(self, change: Change[Session]) -> None:
        session = change.object
        if change.type != "deleted":
            self.sessions[session.id] = session
            return
        self.sessions.pop(session.id, None)
        self._drafts.pop(session.id, None)
        for run in self.runs_of(session.id):
            self._remove_run(run.run_id)
        self._drop_requests("session_id", session.id)

    def _drop_requests(self, key: str, owner: str) -> None:
        for requests in (self.permissions, self.questions):
            for name in [name for name, request in requests.items() if request.get(key) == owner]:
                del requests[name]

    def _apply_run(self, change: Change[Run]) -> None:
        run = change.object
        if change.type == "deleted":
            self._remove_run(run.run_id)
            return
        before = self.runs.get(run.run_id)
        if before is not None and not run.prompt:
            # Only the first event of a run contains the prompt.
            run = msgspec.structs.replace(run, prompt=before.prompt)
        self.runs[run.run_id] = run

    def _end_run(self, end: RunComplete) -> None:
        # A server that crashed has not withdrawn its requests; those of an ended run cannot be answered.
        self._drop_requests("run_id", end.run_id)
        before = self.runs.get(end.run_id)
        if before is None:
            return
        self.runs[end.run_id] = msgspec.structs.replace(
            before,
            state="ended",
            outcome=end.outcome,
            error=end.error,
            message_id=end.message_id,
            folded_into=end.folded_into,
        )
        self._ended.append(end.run_id)
        while len(self._ended) > self._settings.ended_runs:
            self.runs.pop(self._ended.popleft(), None)

    def _remove_run(self, run: RunId) -> None:
        self.runs.pop(run, None)
        if run in self._ended:
            self._ended.remove(run)

    def _apply_unknown(self, other: object) -> bool:
        """Handle events that this view does not show or has no type for. Presence is received as a plain object."""
        if isinstance(other, UnknownEvent) and other.type == "presence":
            self.presence = other.payload
            return True
        return False

    def _apply_permission_notice(self, notice: RequestBody) -> bool:
        """Close a resolved permission request. Returns False for the first notice, which only announces the request."""
        if not (notice.get("granted") or notice.get("denied") or notice.get("withdrawn")):
            return False
        self._resolve_permission(notice)
        return True

    def _resolve_permission(self, notice: RequestBody) -> None:
        """Remove a request by its id, or by its tool call: notices for Crush clients contain only the latter."""
        if "id" in notice:
            self.permissions.pop(str(notice["id"]), None)
            return
        call = notice.get("tool_call_id")
        for name in [name for name, request in self.permissions.items() if request.get("tool_call_id") == call]:
            del self.permissions[name]


def _by_id(requests: tuple[dict[str, object], ...]) -> dict[str, RequestBody]:
    return {str(request.get("id")): request for request in requests}
