"""Interprets the events of one run. Pure: events in, text and the end out."""

from collections.abc import Iterable
from typing import Protocol

from holdfast.client.events import StreamEvent
from holdfast.client.text_once import StreamedText
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    GapEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message, Part, ReasoningPart, TextPart, ToolCallPart
from holdfast.domain.runs import Run

__all__ = ["AnswerText", "RunEventSink", "RunEvents"]

_NOTICE_TYPES = ("retrying", "fallback")


class RunEventSink(Protocol):
    """Receiver of the text and progress of a run."""

    def write_piece(self, message: MessageId, piece: str) -> None:
        """Receive a piece of an answer, each exactly once and in order."""

    def set_activity(self, activity: str) -> None:
        """Receive the current activity of the run."""

    def print_notice(self, text: str) -> None:
        """Receive a notice that needs no action."""

    def retract(self) -> None:
        """Discard the text of the last answer: it is sent again from its beginning."""


class AnswerText:
    """Passes the text of growing answers to a sink, each piece exactly once.

    If a failed attempt is replaced by one with a different text, the text is passed on again from its beginning.
    """

    def __init__(self, sink: RunEventSink) -> None:
        self._sink = sink
        self._messages: set[MessageId] = set()
        self._is_text: dict[tuple[MessageId, int], bool] = {}
        self._texts: dict[tuple[MessageId, int], StreamedText] = {}

    def shown_length(self, message: MessageId, text: str) -> int:
        """Return how many code points of a complete answer were passed on; 0 if they are not a prefix of it."""
        shown = "".join(part.text for (known, _), part in sorted(self._texts.items()) if known == message)
        if text.startswith(shown):
            return len(shown)
        self._sink.retract()
        return 0

    def add_message(self, message: Message) -> None:
        """Process a complete message."""
        if message.role != "assistant":
            return
        self._messages.add(message.id)
        for index, part in enumerate(message.parts):
            self._add_part(message.id, index, part)

    def add_part(self, part: MessagePart) -> None:
        """Process a new or complete part."""
        if part.message_id in self._messages:
            self._add_part(part.message_id, part.part, part.content)

    def add_delta(self, delta: MessageDelta) -> None:
        """Process a delta."""
        key = (delta.message_id, delta.part)
        if self._is_text.get(key):
            self._add_text(key, delta.offset, delta.text)

    def _add_part(self, message: MessageId, index: int, part: Part) -> None:
        key = (message, index)
        is_new = key not in self._is_text
        self._is_text[key] = isinstance(part, TextPart)
        if not self._is_text[key] and self._texts.pop(key, None) is not None:
            # Another attempt has begun with a part of another type at this index.
            self._sink.retract()
        match part:
            case TextPart(data=data):
                self._add_text(key, 0, data.text)
            case ReasoningPart() if is_new:
                self._sink.set_activity("thinking")
            case ToolCallPart(data=call) if is_new:
                self._sink.set_activity(f"tool {call.name}")
            case _:
                pass

    def _add_text(self, key: tuple[MessageId, int], offset: int, text: str) -> None:
        streamed = self._texts.get(key) or StreamedText()
        new, is_restart = streamed.add(offset, text)
        if is_restart:
            self._sink.retract()
            new = streamed.text
        if new:
            # A part without text is not recorded: its type may still change without a retraction.
            self._texts[key] = streamed
            self._sink.set_activity("answering")
            self._sink.write_piece(key[0], new)


class RunEvents:
    """Follows one run in the event stream of a workspace (C-29, C-30)."""

    def __init__(self, run: RunId, session: SessionId, sink: RunEventSink) -> None:
        self.run = run
        self.session = session
        self.end: RunComplete | None = None
        self.error = ""
        """Message of an error event of this run."""
        self.is_refused = False
        self.needs_refetch = False
        """Set if events may have been missed: the stored run must be fetched."""
        self._sink = sink
        self._answers = AnswerText(sink)

    def shown_length(self, end: RunComplete) -> int:
        """Return how many code points of the final text were passed on."""
        return self._answers.shown_length(end.message_id, end.text)

    def process_messages(self, messages: Iterable[Message]) -> None:
        """Process the current messages, after events may have been missed."""
        for message in messages:
            if message.run_id == self.run:
                self._answers.add_message(message)

    def process(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        match item.event:
            case RunCompleteEvent(change=change) if change.object.run_id == self.run:
                self.end = change.object
            case RunEvent(change=change) if change.object.run_id == self.run:
                self._run(change)
            case AgentEvent(change=Change(object=notice)) if notice.type in _NOTICE_TYPES and notice.run_id == self.run:
                self._sink.print_notice(notice.error)
            case AgentEvent(change=Change(object=notice)) if _is_server_notice(notice):
                # For example, a full disk: the run waits, and so does the caller (C-29).
                self._sink.print_notice(notice.error)
            case AgentEvent(change=change) if self._is_own_error(change.object):
                self.error = change.object.error or "The run failed."
                self.needs_refetch = True
            case GapEvent():
                self.needs_refetch = True
            case MessageEvent(change=change) if change.object.run_id == self.run:
                self._answers.add_message(change.object)
            case MessagePartEvent(payload=part):
                self._answers.add_part(part)
            case MessageDeltaEvent(payload=delta):
                self._answers.add_delta(delta)
            case _:
                pass

    def _is_own_error(self, notice: AgentNotice) -> bool:
        """Return True for an error of this run. Errors of other runs do not count; without a run id the session decides
        (C-29).
        """
        if notice.type != "error":
            return False
        if notice.run_id:
            return notice.run_id == self.run
        return bool(notice.session_id) and notice.session_id == self.session

    def _run(self, change: Change[Run]) -> None:
        run = change.object
        if change.type == "deleted":
            self.is_refused = True
        elif run.state in ("waiting", "accepted"):
            self._sink.set_activity("waiting for its turn")
        elif run.state == "cancelling":
            self._sink.set_activity("stopping")
        elif run.state == "folded":
            self._sink.set_activity(f"part of run {run.folded_into}")
        elif run.state == "active":
            self._sink.set_activity("working")


def _is_server_notice(notice: AgentNotice) -> bool:
    """Return True for a notice of the server itself, without run and session."""
    return notice.type == "error" and bool(notice.error) and not (notice.run_id or notice.session_id)
