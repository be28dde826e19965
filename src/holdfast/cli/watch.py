"""What a run's events mean to the one who waits for it. Pure: events go in, text and the end come out."""

from collections.abc import Iterable
from typing import Protocol

from holdfast.client.items import Item
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

__all__ = ["Ears", "Pieces", "Watch"]

_NOTED = ("retrying", "fallback")


class Ears(Protocol):
    def text(self, message: MessageId, piece: str) -> None:
        """A piece of an answer, each exactly once and in order."""

    def doing(self, what: str) -> None:
        """What the run is at now."""

    def note(self, text: str) -> None:
        """What somebody should know, and nobody has to act on."""

    def withdrawn(self) -> None:
        """What was handed on of the last answer does not count: it comes anew, from its beginning."""


class _Handed:
    """The text of one part, as far as it was handed on."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0

    def text(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)


class Pieces:
    """The text of answers as it grows, each piece handed on exactly once.

    An attempt that failed is taken back, and another comes in its place. What was handed on is compared with it:
    where they differ the text is handed on anew, from its beginning.
    """

    def __init__(self, ears: Ears) -> None:
        self._ears = ears
        self._messages: set[MessageId] = set()
        self._is_text: dict[tuple[MessageId, int], bool] = {}
        self._handed: dict[tuple[MessageId, int], _Handed] = {}

    def said(self, message: MessageId, text: str) -> int:
        """How many code points of a whole answer were handed on; none if what was is no beginning of it."""
        said = "".join(part.text() for (known, _), part in sorted(self._handed.items()) if known == message)
        if text.startswith(said):
            return len(said)
        self._ears.withdrawn()
        return 0

    def message(self, message: Message) -> None:
        if message.role != "assistant":
            return
        self._messages.add(message.id)
        for index, part in enumerate(message.parts):
            self._whole(message.id, index, part)

    def part(self, part: MessagePart) -> None:
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
        key = (delta.message_id, delta.part)
        if self._is_text.get(key):
            self._say(key, delta.offset, delta.text)

    def _say(self, key: tuple[MessageId, int], offset: int, text: str) -> None:
        handed = self._handed.get(key) or _Handed()
        if offset > handed.length:
            # A hole: the whole part comes with the message's next change, or with the end.
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


class Watch:
    """Follows one run among all that a workspace says (C-29, C-30)."""

    def __init__(self, run: RunId, session: SessionId, ears: Ears) -> None:
        self.run = run
        self.session = session
        self.end: RunComplete | None = None
        self.error = ""
        """What an error event of this run said."""
        self.is_refused = False
        self.is_doubtful = False
        """Something may have been missed: the run itself must be asked."""
        self._ears = ears
        self._pieces = Pieces(ears)

    def said(self, end: RunComplete) -> int:
        """How many code points of the final text were handed on."""
        return self._pieces.said(end.message_id, end.text)

    def catch_up(self, messages: Iterable[Message]) -> None:
        """A conversation as it is now, for one who came late or missed something."""
        for message in messages:
            if message.run_id == self.run:
                self._pieces.message(message)

    def take(self, item: Item) -> None:
        match item.event:
            case RunCompleteEvent(payload=change) if change.payload.run_id == self.run:
                self.end = change.payload
            case RunEvent(payload=change) if change.payload.run_id == self.run:
                self._run(change)
            case AgentEvent(payload=Change(payload=notice)) if notice.type in _NOTED and notice.run_id == self.run:
                self._ears.note(notice.error)
            case AgentEvent(payload=Change(payload=notice)) if _is_everybodys(notice):
                # A full disk, say: the run waits for it, and so does whoever waits for the run (C-29).
                self._ears.note(notice.error)
            case AgentEvent(payload=change) if self._concerns(change.payload):
                self.error = change.payload.error or "The run failed."
                self.is_doubtful = True
            case GapEvent():
                self.is_doubtful = True
            case MessageEvent(payload=change) if change.payload.run_id == self.run:
                self._pieces.message(change.payload)
            case MessagePartEvent(payload=part):
                self._pieces.part(part)
            case MessageDeltaEvent(payload=delta):
                self._pieces.delta(delta)
            case _:
                pass

    def _concerns(self, notice: AgentNotice) -> bool:
        """Of another run, even of our own session: no. Without a run id the session decides (C-29)."""
        if notice.type != "error":
            return False
        if notice.run_id:
            return notice.run_id == self.run
        return bool(notice.session_id) and notice.session_id == self.session

    def _run(self, change: Change[Run]) -> None:
        run = change.payload
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
    """Not of a run, not of a session: the server's own trouble."""
    return notice.type == "error" and bool(notice.error) and not (notice.run_id or notice.session_id)
