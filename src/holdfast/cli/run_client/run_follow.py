"""Sends a prompt and follows its run to the end, across failures of the stream, the server and the terminal.

The stream is opened before the prompt is sent. A broken stream is resumed by number; a server that dies is started
again once, and the stored run is fetched. An unknown outcome is reported as such and never guessed: exit code 0
requires the complete answer (C-46).
"""

import time
from typing import TYPE_CHECKING, Literal

from holdfast.cli.console.run_output import RunOutput, complain
from holdfast.cli.run_client.run_events import RunEvents
from holdfast.cli.run_client.signals import DETACHED, Signals
from holdfast.cli.server_connection import FROM_NOW, ServerConnection
from holdfast.client.errors import ClientError, ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.events import CursorFilter, StreamEvent, UnknownEvent, decode_item
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

__all__ = ["RunFollower", "ServerGone", "complete_of", "session_of"]

_TICK = 0.12
_QUIET = 20.0
"""After this many seconds without an event the run is fetched from the server."""

_ENDING = 10.0
"""Maximum seconds for a run to end after an error, a cancel or a timeout."""

_LOST = (ConnectionLost, TimedOut, Unreachable)


class ServerGone(ClientError):
    """The server is gone and the end of the run is not known."""


def complete_of(link: ServerConnection, run: Run) -> RunComplete:
    """Return the end of a stored run in the form of the stream's event."""
    text = ""
    if run.message_id:
        messages = link.ask(tuple[Message, ...], "GET", link.path("sessions", run.session_id, "messages"))
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
        link: ServerConnection,
        signals: Signals,
        speaker: RunOutput,
        watch: RunEvents,
        *,
        cancels: bool = True,
        asker: "ApprovalPrompt | None" = None,
    ) -> None:
        self._link = link
        self._signals = signals
        self._speaker = speaker
        self._cancels = cancels
        self._asker = asker
        self._follower = CursorFilter(FROM_NOW)
        self.watch = watch
        self.is_overdue = False
        self._stopped_by: Literal["", "signal", "timeout"] = ""
        self._patience: float | None = None
        self._heard_at = time.monotonic()
        self._is_reported = False
        self._has_place = False
        """True after the stream has sent its position. Only the first gap event merely reports the position."""
        self._unheard = FROM_NOW
        """The stream reports the end of runs that were accepted after this number; the end of earlier runs must be
        fetched.
        """

    def run(self, stream: SyncEventStream, deadline: float | None, *, may_be_old: bool) -> RunComplete:
        """Follow the run to its end. The stream was opened before the prompt was sent, with `FROM_NOW`.

        `may_be_old`: the run may have existed before, so that its end may not be on the stream.
        """
        self.watch.is_doubtful = may_be_old or self.watch.is_doubtful
        try:
            return self._follow(stream, deadline)
        finally:
            self._speaker.clear()

    def _follow(self, stream: SyncEventStream, deadline: float | None) -> RunComplete:
        while self.watch.end is None:
            try:
                self._heed(deadline)
                if self.watch.is_doubtful and self._has_place:
                    self._look()
                    continue
                self._hear(stream, deadline)
            except _LOST:
                stream.close()
                stream = self._resume()
        stream.close()
        if not self._is_reported:
            self._speaker.line(encode_event(RunCompleteEvent(Change("updated", self.watch.end))))
        return self.watch.end

    def _hear(self, stream: SyncEventStream, deadline: float | None) -> None:
        events = stream.take(self._pause(deadline), wake=self._signals.wake)
        self._signals.drain()
        for raw in events:
            self._heard_at = time.monotonic()
            item = decode_item(raw)
            if isinstance(item.event, GapEvent) and not self._has_place:
                self._has_place = self._follower.accept(item)
                self._unheard = self._follower.since
            elif self._follower.accept(item):
                self._report(item, raw.data)
                self.watch.take(item)
                if self._asker is not None:
                    self._asker.take(item)
                if isinstance(item.event, GapEvent):
                    self._unheard = FROM_NOW
        if self.watch.is_refused:
            raise ServerProblem(503, "The prompt was refused after all: it could not be stored")
        if not events and stream.is_over:
            raise ConnectionLost
        if time.monotonic() - self._heard_at > _QUIET:
            self._heard_at = time.monotonic()
            self._has_place = True
            self._unheard = FROM_NOW
            self.watch.is_doubtful = True
        if self._asker is not None and self._asker.is_asking:
            self._asker.poll()
        else:
            self._speaker.draw()

    def _report(self, item: StreamEvent, raw: bytes) -> None:
        """Print the events of the session as JSON, up to the end of the run."""
        if self.watch.end is not None or session_of(item) != self.watch.session:
            return
        event = item.event
        self._is_reported = isinstance(event, RunCompleteEvent) and event.change.object.run_id == self.watch.run
        self._speaker.line(raw)

    def _pause(self, deadline: float | None) -> float:
        now = time.monotonic()
        moments = [now + (_TICK if self._speaker.draws else _QUIET), self._patience]
        if not self._stopped_by:
            moments.append(deadline)
        if self._asker is not None and self._asker.patience is not None:
            moments.append(now + self._asker.patience)
        return max(0.0, min(moment for moment in moments if moment is not None) - now)

    def _heed(self, deadline: float | None) -> None:
        """Handle signals and timeouts."""
        if self._signals.is_hung_up:
            raise SystemExit(DETACHED)
        if not self._stopped_by and self._signals.stops:
            self._stopped_by = "signal"
            self._cancel()
        elif not self._stopped_by and deadline is not None and time.monotonic() >= deadline:
            if not self._cancels:
                complain(f"holdfast: run {self.watch.run} has not ended yet.")
                raise SystemExit(124)
            self._stopped_by = "timeout"
            self.is_overdue = True
            self._cancel()
        if self._patience is not None and time.monotonic() >= self._patience:
            self._give_up()

    def _cancel(self) -> None:
        """Cancel this run, and continue to wait for its end (C-48)."""
        self._speaker.doing("stopping")
        self._patience = self._patience or time.monotonic() + _ENDING
        self._link.patience = _ENDING / 2
        path = self._link.path("runs", self.watch.run, "cancel")
        try:
            self._link.send("POST", path, query=(("client_id", self._link.client_id),), can_repeat=True)
            self._signals.heeded()
        except ServerProblem as problem:
            # It has ended, or it is part of another run; the stored run shows which.
            self._speaker.clear()
            complain(str(problem))
            self.watch.is_doubtful = True
        except _LOST:
            # Cancel again after reconnecting.
            self._stopped_by = ""
            raise

    def _give_up(self) -> None:
        watch = self.watch
        if watch.error and not self._stopped_by:
            watch.end = RunComplete(watch.session, MessageId(""), watch.run, "failed", error=watch.error)
            return
        raise ServerGone(f"The run was asked to stop and has not ended yet: see `holdfast runs show {watch.run}`.")

    def _look(self) -> None:
        """Fetch the stored run."""
        self.watch.is_doubtful = False
        run = self._link.ask(Run, "GET", self._link.path("runs", self.watch.run))
        if run.outcome is not None:
            if run.number <= self._unheard:
                self.watch.end = complete_of(self._link, run)
            return
        if self._asker is not None:
            self._asker.look()
        if self._speaker.mode == "stream":
            path = self._link.path("sessions", self.watch.session, "messages")
            self.watch.catch_up(self._link.ask(tuple[Message, ...], "GET", path))
        if self.watch.error and self._patience is None:
            self._patience = time.monotonic() + _ENDING / 2

    def _resume(self) -> SyncEventStream:
        """Reconnect: restart the server if needed, fetch the run, then resume the stream."""
        self._has_place = True
        self._unheard = FROM_NOW
        self._speaker.doing("looking for the server")
        self._speaker.draw()
        try:
            for _ in range(3):
                self._link.enter(self._signals.wait)
                try:
                    self._look()
                    return self._link.stream(self._follower.since)
                except _LOST:
                    self._signals.wait(_TICK)
        except ClientError as error:
            raise ServerGone(
                f"{str(error).rstrip('.')}. The prompt is on disk; when a server runs again, "
                f"`holdfast runs wait {self.watch.run}` tells how it ended."
            ) from None
        raise ServerGone(f"The server keeps breaking off: try `holdfast runs wait {self.watch.run}` later.")


def session_of(item: StreamEvent) -> SessionId | None:
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
            return _named_session(payload)
        case _:
            return None


def _named_session(payload: dict[object, object]) -> SessionId | None:
    for known in (payload, payload.get("payload")):
        if isinstance(known, dict) and isinstance(known.get("session_id"), str):
            return SessionId(known["session_id"])
    return None
