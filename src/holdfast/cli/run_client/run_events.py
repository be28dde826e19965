"""Interprets the events of one run. Pure: events in, text and the end out."""

from collections.abc import Iterable
from typing import Protocol

from holdfast.client.events import StreamEvent
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

__all__ = ["RunEventSink", "RunEvents", "TextOnce"]

_NOTED = ("retrying", "fallback")


class RunEventSink(Protocol):
    """Receiver of the text and progress of a run."""

    def text(self, message: MessageId, piece: str) -> None:
        """Receive a piece of an answer, each exactly once and in order."""

    def doing(self, what: str) -> None:
        """Receive the current activity of the run."""

    def note(self, text: str) -> None:
        """Receive a notice that needs no action."""

    def withdrawn(self) -> None:
        """Discard the text of the last answer: it is sent again from its beginning."""


class _Handed:
    """The text of one part that has been passed on."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0

    def text(self) -> str:
        """Return the text."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, piece: str) -> None:
        """Append a piece."""
        self._pieces.append(piece)
        self.length += len(piece)


class TextOnce:
    """The text of growing answers, each piece passed on exactly once.

    A failed attempt is replaced by another one. Its text is compared with the text that was passed on: where they
    differ, the text is passed on again from its beginning.
    """

    def __init__(self, ears: RunEventSink) -> None:
        self._ears = ears
        self._messages: set[MessageId] = set()
        self._is_text: dict[tuple[MessageId, int], bool] = {}
        self._handed: dict[tuple[MessageId, int], _Handed] = {}

    def said(self, message: MessageId, text: str) -> int:
        """Return how many code points of a complete answer were passed on; 0 if they are not a prefix of it."""
        said = "".join(part.text() for (known, _), part in sorted(self._handed.items()) if known == message)
        if text.startswith(said):
            return len(said)
        self._ears.withdrawn()
        return 0

    def message(self, message: Message) -> None:
        """Process a complete message."""
        if message.role != "assistant":
            return
        self._messages.add(message.id)
        for index, part in enumerate(message.parts):
            self._whole(message.id, index, part)

    def part(self, part: MessagePart) -> None:
        """Process a new or complete part."""
        if part.message_id in self._messages:
            self._whole(part.message_id, part.part, part.content)

    def _whole(self, message: MessageId, index: int, part: Part) -> None:
        key = (message, index)
        is_new = key not in self._is_text
        self._is_text[key] = isinstance(part, TextPart)
        if not self._is_text[key] and self._handed.pop(key, None) is not None:
            self._ears.withdrawn()
        match part:
            case TextPart(data=data):
                self._say(key, 0, data.text)
            case ReasoningPart() if is_new:
                self._ears.doing("thinking")
            case ToolCallPart(data=call) if is_new:
                self._ears.doing(f"tool {call.name}")
            case _:
                pass

    def delta(self, delta: MessageDelta) -> None:
        """Process a delta."""
        key = (delta.message_id, delta.part)
        if self._is_text.get(key):
            self._say(key, delta.offset, delta.text)

    def _say(self, key: tuple[MessageId, int], offset: int, text: str) -> None:
        handed = self._handed.get(key) or _Handed()
        if offset > handed.length:
            # A gap in the text: the next change of the message, or its end, contains the complete part.
            return
        if offset < handed.length:
            known = handed.text()
            same = known[offset : offset + len(text)]
            if text.startswith(same):
                text = text[len(same) :]
            else:
                handed, text = _Handed(), known[:offset] + text
                self._ears.withdrawn()
        if text:
            self._handed[key] = handed
            handed.add(text)
            self._ears.doing("answering")
            self._ears.text(key[0], text)


class RunEvents:
    """Follows one run in the event stream of a workspace (C-29, C-30)."""

    def __init__(self, run: RunId, session: SessionId, ears: RunEventSink) -> None:
        self.run = run
        self.session = session
        self.end: RunComplete | None = None
        self.error = ""
        """Message of an error event of this run."""
        self.is_refused = False
        self.is_doubtful = False
        """Set if events may have been missed: the stored run must be fetched."""
        self._ears = ears
        self._pieces = TextOnce(ears)

    def said(self, end: RunComplete) -> int:
        """Return how many code points of the final text were passed on."""
        return self._pieces.said(end.message_id, end.text)

    def catch_up(self, messages: Iterable[Message]) -> None:
        """Process the current messages, after events may have been missed."""
        for message in messages:
            if message.run_id == self.run:
                self._pieces.message(message)

    def take(self, item: StreamEvent) -> None:
        """Process an event of the stream."""
        match item.event:
            case RunCompleteEvent(change=change) if change.object.run_id == self.run:
                self.end = change.object
            case RunEvent(change=change) if change.object.run_id == self.run:
                self._run(change)
            case AgentEvent(change=Change(object=notice)) if notice.type in _NOTED and notice.run_id == self.run:
                self._ears.note(notice.error)
            case AgentEvent(change=Change(object=notice)) if _is_everybodys(notice):
                # For example, a full disk: the run waits, and so does the caller (C-29).
                self._ears.note(notice.error)
            case AgentEvent(change=change) if self._concerns(change.object):
                self.error = change.object.error or "The run failed."
                self.is_doubtful = True
            case GapEvent():
                self.is_doubtful = True
            case MessageEvent(change=change) if change.object.run_id == self.run:
                self._pieces.message(change.object)
            case MessagePartEvent(payload=part):
                self._pieces.part(part)
            case MessageDeltaEvent(payload=delta):
                self._pieces.delta(delta)
            case _:
                pass

    def _concerns(self, notice: AgentNotice) -> bool:
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
            self._ears.doing("waiting for its turn")
        elif run.state == "cancelling":
            self._ears.doing("stopping")
        elif run.state == "folded":
            self._ears.doing(f"part of run {run.folded_into}")
        elif run.state == "active":
            self._ears.doing("working")


def _is_everybodys(notice: AgentNotice) -> bool:
    """Return True for a notice of the server itself, without run and session."""
    return notice.type == "error" and bool(notice.error) and not (notice.run_id or notice.session_id)
