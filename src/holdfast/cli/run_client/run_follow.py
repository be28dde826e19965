"""Sends a prompt and follows its run to the end, across failures of the stream, the server and the terminal.

The stream is opened before the prompt is sent. A broken stream is resumed by number; a server that dies is started
again once, and the stored run is fetched. An unknown outcome is reported as such and never guessed: exit code 0
requires the complete answer (C-46).
"""

import time
from typing import TYPE_CHECKING, Literal

from holdfast.cli.console.run_output import RunOutput, print_stderr
from holdfast.cli.run_client.run_events import RunEvents
from holdfast.cli.run_client.signals import DETACHED, Signals
from holdfast.cli.server_connection import CHECK_INTERVAL, FROM_NOW, ServerConnection
from holdfast.client.errors import ClientError, ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.events import CursorFilter, StreamEvent, UnknownEvent, decode_event
from holdfast.client.sync_client import SyncEventStream
from holdfast.domain.events import (
    AgentEvent,
    Change,
    FileEvent,
    GapEvent,
    MessageDeltaEvent,
    MessageEvent,
    MessagePartEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
    encode_event,
)
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, text_of
from holdfast.domain.runs import Run

if TYPE_CHECKING:
    from holdfast.cli.console.approvals import ApprovalPrompt

__all__ = ["RunFollower", "ServerGone", "event_session", "fetch_run_complete"]

_REDRAW_INTERVAL = 0.12
"""Seconds between two frames of the progress line."""
_MAX_SILENCE = 20.0
"""After this many seconds without an event the run is fetched from the server."""

_END_TIMEOUT = 10.0
"""Maximum seconds for a run to end after an error, a cancel or a timeout."""

_CONNECTION_ERRORS = (ConnectionLost, TimedOut, Unreachable)


class ServerGone(ClientError):
    """The server is gone and the end of the run is not known."""


def fetch_run_complete(connection: ServerConnection, run: Run) -> RunComplete:
    """Return the end of a stored run in the form of the stream's event."""
    text = ""
    if run.message_id:
        messages = connection.request(
            tuple[Message, ...], "GET", connection.path("sessions", run.session_id, "messages")
        )
        text = next((text_of(message) for message in messages if message.id == run.message_id), "")
    return RunComplete(
        run.session_id,
        run.message_id,
        run.run_id,
        run.outcome or "interrupted",
        text=text,
        error=run.error,
        cancelled=run.outcome == "cancelled",
        folded_into=run.folded_into,
        model_unreachable=run.model_unreachable,
    )


class RunFollower:
    """Follows one run. With `cancels`, a signal or the timeout cancels the run too; otherwise it only ends the
    waiting.
    """

    def __init__(
        self,
        connection: ServerConnection,
        signals: Signals,
        output: RunOutput,
        events: RunEvents,
        *,
        cancels: bool = True,
        approvals: "ApprovalPrompt | None" = None,
    ) -> None:
        self._connection = connection
        self._signals = signals
        self._output = output
        self._cancels = cancels
        self._approvals = approvals
        self._cursor = CursorFilter(FROM_NOW)
        self.events = events
        self.is_overdue = False
        self._stopped_by: Literal["", "signal", "timeout"] = ""
        self._give_up_at: float | None = None
        self._last_event_at = time.monotonic()
        self._is_reported = False
        self._number = 0
        """The number with which the run was accepted, once it is known."""
        self._has_position = False
        """True after the stream has sent its position: the first gap event reports only that, later ones a gap."""
        self._first_number = FROM_NOW
        """The stream reports the end of runs that were accepted after this number; the end of earlier runs must be
        fetched.
        """

    def run(self, stream: SyncEventStream, deadline: float | None, *, may_be_old: bool) -> RunComplete:
        """Follow the run to its end. The stream was opened before the prompt was sent, with `FROM_NOW`.

        `may_be_old`: the run may have existed before, so that its end may not be on the stream.
        """
        self.events.needs_refetch = may_be_old or self.events.needs_refetch
        try:
            return self._follow(stream, deadline)
        finally:
            self._output.clear()

    def _follow(self, stream: SyncEventStream, deadline: float | None) -> RunComplete:
        while self.events.end is None:
            try:
                self._check_signals(deadline)
                if self.events.needs_refetch and self._has_position:
                    self._fetch_run()
                    continue
                self._read_events(stream, deadline)
            except _CONNECTION_ERRORS:
                stream.close()
                stream = self._resume()
        stream.close()
        if not self._is_reported:
            self._output.write_event(encode_event(RunCompleteEvent(Change("updated", self.events.end))))
        return self.events.end

    def _read_events(self, stream: SyncEventStream, deadline: float | None) -> None:
        events = stream.receive(self._next_wait(deadline), wake=self._signals.wake)
        self._signals.drain()
        for raw in events:
            self._last_event_at = time.monotonic()
            item = decode_event(raw)
            if isinstance(item.event, GapEvent) and not self._has_position:
                self._has_position = self._cursor.accept(item)
                self._first_number = self._cursor.since
            elif self._cursor.accept(item):
                self._report(item, raw.data)
                self.events.process(item)
                if self._approvals is not None:
                    self._approvals.process(item)
                if isinstance(item.event, GapEvent):
                    self._first_number = FROM_NOW
        if self.events.is_refused:
            raise ServerProblem(503, "The prompt was refused: it could not be stored")
        if not events and stream.is_over:
            raise ConnectionLost
        self._connection.check_stream(stream)
        if time.monotonic() - self._last_event_at > _MAX_SILENCE:
            self._last_event_at = time.monotonic()
            # The stream may be dead without an error: rely on the stored run from now on.
            self._has_position = True
            self._first_number = FROM_NOW
            self.events.needs_refetch = True
        if self._approvals is not None and self._approvals.is_open:
            self._approvals.poll()
        else:
            self._output.draw()

    def _report(self, item: StreamEvent, raw: bytes) -> None:
        """Print the events of the session as JSON, up to the end of the run."""
        if self.events.end is not None or event_session(item) != self.events.session:
            return
        event = item.event
        self._is_reported = isinstance(event, RunCompleteEvent) and event.change.object.run_id == self.events.run
        self._output.write_event(raw)

    def _next_wait(self, deadline: float | None) -> float:
        now = time.monotonic()
        silence = CHECK_INTERVAL if self._connection.has_alternatives else _MAX_SILENCE
        times = [now + (_REDRAW_INTERVAL if self._output.draws else silence), self._give_up_at]
        if not self._stopped_by:
            times.append(deadline)
        if self._approvals is not None and self._approvals.poll_interval is not None:
            times.append(now + self._approvals.poll_interval)
        return max(0.0, min(at for at in times if at is not None) - now)

    def _check_signals(self, deadline: float | None) -> None:
        """Handle signals and timeouts."""
        if self._signals.is_hung_up:
            raise SystemExit(DETACHED)
        if not self._stopped_by and self._signals.stops:
            self._stopped_by = "signal"
            self._cancel()
        elif not self._stopped_by and deadline is not None and time.monotonic() >= deadline:
            if not self._cancels:
                print_stderr(f"holdfast: run {self.events.run} has not ended yet.")
                raise SystemExit(124)
            self._stopped_by = "timeout"
            self.is_overdue = True
            self._cancel()
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            self._handle_lost_server()

    def _cancel(self) -> None:
        """Cancel this run, and continue to wait for its end (C-48)."""
        self._output.set_activity("stopping")
        self._give_up_at = self._give_up_at or time.monotonic() + _END_TIMEOUT
        self._connection.timeout = _END_TIMEOUT / 2
        path = self._connection.path("runs", self.events.run, "cancel")
        try:
            self._connection.send("POST", path, query=(("client_id", self._connection.client_id),), can_repeat=True)
            self._signals.confirm_cancel()
        except ServerProblem as problem:
            # It has ended, or it is part of another run; the stored run shows which.
            self._output.clear()
            print_stderr(str(problem))
            self.events.needs_refetch = True
        except _CONNECTION_ERRORS:
            # Cancel again after reconnecting.
            self._stopped_by = ""
            raise

    def _handle_lost_server(self) -> None:
        events = self.events
        if events.error and not self._stopped_by:
            events.end = RunComplete(events.session, MessageId(""), events.run, "failed", error=events.error)
            return
        raise ServerGone(f"The run was cancelled and has not ended yet: see `holdfast runs show {events.run}`.")

    def _fetch_run(self) -> None:
        """Fetch the stored run."""
        self.events.needs_refetch = False
        run = self._connection.request(Run, "GET", self._connection.path("runs", self.events.run))
        self._number = run.number
        if run.outcome is not None:
            # A run that was accepted while the stream was open has its end on the stream, after its last events:
            # taking the stored end would skip them.
            if run.number <= self._first_number:
                self.events.end = fetch_run_complete(self._connection, run)
            return
        if self._approvals is not None:
            self._approvals.refresh()
        if self._output.mode == "stream":
            path = self._connection.path("sessions", self.events.session, "messages")
            self.events.process_messages(self._connection.request(tuple[Message, ...], "GET", path))
        if self.events.error and self._give_up_at is None:
            self._give_up_at = time.monotonic() + _END_TIMEOUT / 2

    def _resume(self) -> SyncEventStream:
        """Reconnect: restart the server if needed, fetch the run, then resume the stream.

        Without a position the stream begins with the run, so that no event of it is missed.
        """
        if not self._has_position:
            self._has_position = True
            self._first_number = FROM_NOW
        self._output.set_activity("reconnecting")
        self._output.draw()
        try:
            for _ in range(3):
                self._connection.open(self._signals.wait)
                try:
                    self._fetch_run()
                    if self._cursor.since == FROM_NOW and self._number:
                        self._cursor.since = self._number - 1
                    return self._connection.stream(self._cursor.since)
                except _CONNECTION_ERRORS:
                    self._signals.wait(_REDRAW_INTERVAL)
        except ClientError as error:
            raise ServerGone(
                f"{str(error).rstrip('.')}. The prompt is on disk; when a server runs again, "
                f"`holdfast runs wait {self.events.run}` prints its answer."
            ) from None
        raise ServerGone(f"The connection breaks repeatedly: try `holdfast runs wait {self.events.run}` later.")


def event_session(item: StreamEvent) -> SessionId | None:
    """Return the session that an event belongs to."""
    match item.event:
        case SessionEvent(change=session):
            return session.object.id
        case MessageDeltaEvent(payload=growth) | MessagePartEvent(payload=growth):
            return growth.session_id
        case (
            MessageEvent(change=Change(object=thing))
            | FileEvent(change=Change(object=thing))
            | RunEvent(change=Change(object=thing))
            | RunCompleteEvent(change=Change(object=thing))
            | AgentEvent(change=Change(object=thing))
            | PermissionRequestEvent(change=Change(object=thing))
            | PermissionNotificationEvent(change=Change(object=thing))
            | QuestionRequestEvent(change=Change(object=thing))
            | QuestionNotificationEvent(change=Change(object=thing))
        ):
            return thing.session_id or None
        case UnknownEvent(payload=dict() as payload):
            return _session_in_payload(payload)
        case _:
            return None


def _session_in_payload(payload: dict[object, object]) -> SessionId | None:
    for known in (payload, payload.get("payload")):
        if isinstance(known, dict) and isinstance(known.get("session_id"), str):
            return SessionId(known["session_id"])
    return None
