"""Builds an assistant message from the parts of a streamed response. Pure.

Each stream part yields the changes to publish: mostly one delta, whose cost does not depend on the length of the
message. Text is kept in pieces and joined only when the whole message is requested.
"""

from typing import TypeAlias, assert_never

import msgspec

from holdfast.domain.errors import ProviderError
from holdfast.domain.events import MessageDelta, MessagePart
from holdfast.domain.ids import MessageId, ToolCallId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Message,
    Part,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    replace_surrogates,
)
from holdfast.domain.model_requests import (
    FinishedPart,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    StepFinish,
    StreamPart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    UsagePart,
)
from holdfast.domain.surrogates import replace_json_surrogates
from holdfast.domain.usage import Usage

__all__ = ["Growth", "ResponseBuilder"]

Growth: TypeAlias = MessageDelta | MessagePart


class _Growing:
    """Text that grows by pieces."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0

    def append(self, text: str) -> None:
        self.pieces.append(text)
        self.length += len(text)


class _Text(_Growing):
    def part(self) -> TextPart:
        return TextPart(Text("".join(self.pieces)))


class _Reasoning(_Growing):
    """A reasoning part that grows until something else begins."""

    def __init__(self, now: int) -> None:
        super().__init__()
        self.signature = ""
        self.redacted: tuple[str, ...] = ()
        self.started_at = now
        self.finished_at = 0

    def part(self) -> ReasoningPart:
        thinking = "".join(self.pieces)
        return ReasoningPart(Reasoning(thinking, self.signature, self.started_at, self.finished_at, self.redacted))


class _Call:
    """A tool call; its arguments are shown only when they are complete."""

    def __init__(self, id: ToolCallId, name: str) -> None:
        self.id = id
        self.name = name
        self.pieces: list[str] = []
        self.finished = False
        self.malformed = False

    def part(self) -> ToolCallPart:
        text = "".join(self.pieces) if self.finished and not self.malformed else ""
        return ToolCallPart(ToolCall(self.id, self.name, "{}" if self.malformed else text, self.finished))

    def finish(self) -> None:
        self.finished = True
        text = "".join(self.pieces).strip() or "{}"
        if "\\u" in text:
            text = replace_json_surrogates(text.encode()).decode()
        try:
            msgspec.json.decode(text, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError):
            # Arguments that are nested too deeply are as unusable as malformed ones.
            self.malformed = True
        else:
            self.pieces = [text]


class ResponseBuilder:
    """One assistant message that is being streamed. `taken` are tool call ids that must not be used again."""

    def __init__(self, message: Message, taken: frozenset[ToolCallId] = frozenset()) -> None:
        self._base = message
        self._taken = taken
        self._slots: list[_Text | _Reasoning | _Call] = []
        self._calls: dict[ToolCallId, tuple[int, _Call]] = {}
        self._text: tuple[int, _Text] | None = None
        self._reasoning: tuple[int, _Reasoning] | None = None
        self._newline_dropped = False
        self.usage = Usage()
        self.finish: StepFinish | None = None
        self.size = 0
        """Code points of text, reasoning and arguments so far: what an update of the whole message costs."""

    @property
    def is_empty(self) -> bool:
        """Whether the message has no content yet."""
        return not self._slots

    def anew(self) -> "ResponseBuilder":
        """Return a builder of the same message without content."""
        return ResponseBuilder(self._base, self._taken)

    def feed(self, part: StreamPart, now: int) -> tuple[Growth, ...]:
        """Add a part of the stream and return the changes to publish."""
        match part:
            case TextDelta(text=text):
                return self._feed_text(text, now)
            case ReasoningDelta(text=text):
                return self._feed_reasoning(text, now)
            case ReasoningSignature() | RedactedReasoning():
                return self._seal_reasoning(part, now)
            case ToolCallStart() | ToolCallDelta() | ToolCallEnd():
                return self._feed_call(part, now)
            case UsagePart(usage=usage):
                self.usage = usage
                return ()
            case FinishedPart(reason=reason):
                self.finish = reason
                return self._close_reasoning(now) + self._close_calls()
            case _:
                assert_never(part)

    def extend(self, text: str) -> MessageDelta | None:
        """Append text to an open text part: the fast path of `feed`, taken by nearly every part. None if not
        applicable.
        """
        if self._text is None or not text:
            return None
        if not text.isascii():
            text = replace_surrogates(text)
        index, slot = self._text
        length, size = slot.length, len(text)
        slot.pieces.append(text)
        slot.length = length + size
        self.size += size
        return MessageDelta(self._base.session_id, self._base.id, index, length, text)

    @property
    def id(self) -> MessageId:
        """The id of the message."""
        return self._base.id

    @property
    def malformed_calls(self) -> frozenset[ToolCallId]:
        """Calls whose arguments were no JSON object: their stored input is `{}`."""
        return frozenset(slot.id for slot in self._slots if isinstance(slot, _Call) and slot.malformed)

    def rewrite(self, id: ToolCallId, text: str) -> None:
        """Replace the arguments of a finished call. `text` is a JSON object."""
        for slot in self._slots:
            if isinstance(slot, _Call) and slot.id == id:
                slot.pieces = [replace_surrogates(text)]
                self.size += len(text)

    def message(self, finish: Finish | None = None) -> Message:
        """Return the whole message in its current state."""
        parts: list[Part] = [slot.part() for slot in self._slots]
        if finish is not None:
            parts.append(FinishPart(finish))
        return msgspec.structs.replace(self._base, parts=tuple(parts))

    def open_parts(self) -> tuple[MessagePart, ...]:
        """Return every part in full, for subscribers that missed deltas."""
        return tuple(self._whole(index) for index in range(len(self._slots)))

    def _feed_text(self, text: str, now: int) -> tuple[Growth, ...]:
        text = replace_surrogates(text)
        if not self._slots and not self._newline_dropped and text.startswith("\n"):
            self._newline_dropped = True
            text = text[1:]
        if not text:
            return ()
        if (delta := self.extend(text)) is not None:
            return (delta,)
        self.size += len(text)
        closed = self._close_reasoning(now)
        fresh = _Text()
        fresh.append(text)
        self._text = (len(self._slots), fresh)
        self._slots.append(fresh)
        return (*closed, self._whole(self._text[0]))

    def _feed_reasoning(self, text: str, now: int) -> tuple[Growth, ...]:
        text = replace_surrogates(text)
        if not text:
            return ()
        self.size += len(text)
        closed: tuple[Growth, ...] = ()
        if self._reasoning is not None and self._reasoning[1].signature:
            # A signature covers the text before it only, so later text starts a new part.
            closed = self._close_reasoning(now)
        if self._reasoning is None:
            index, slot = self._open_reasoning(now)
            slot.append(text)
            return (*closed, self._whole(index))
        index, slot = self._reasoning
        delta = self._delta(index, slot.length, text)
        slot.append(text)
        return (delta,)

    def _open_reasoning(self, now: int) -> tuple[int, _Reasoning]:
        slot = _Reasoning(now)
        self._reasoning = (len(self._slots), slot)
        self._slots.append(slot)
        # Text that follows belongs after this reasoning, not to the text part before it.
        self._text = None
        return self._reasoning

    def _seal_reasoning(self, part: ReasoningSignature | RedactedReasoning, now: int) -> tuple[Growth, ...]:
        index, slot = self._reasoning or self._open_reasoning(now)
        if isinstance(part, ReasoningSignature):
            slot.signature += replace_surrogates(part.signature)
        else:
            slot.redacted = (*slot.redacted, replace_surrogates(part.data))
        return (self._whole(index),)

    def _close_reasoning(self, now: int) -> tuple[Growth, ...]:
        if self._reasoning is None:
            return ()
        index, slot = self._reasoning
        slot.finished_at = now
        self._reasoning = None
        return (self._whole(index),)

    def _feed_call(self, part: ToolCallStart | ToolCallDelta | ToolCallEnd, now: int) -> tuple[Growth, ...]:
        if isinstance(part, ToolCallStart):
            closed = self._close_reasoning(now)
            call = _Call(self._unused_id(ToolCallId(replace_surrogates(part.id))), replace_surrogates(part.name))
            index = len(self._slots)
            self._slots.append(call)
            self._calls[part.id] = (index, call)
            return (*closed, self._whole(index))
        if part.id not in self._calls:
            raise ProviderError("The provider continued a tool call that it had not started.")
        index, call = self._calls[part.id]
        if isinstance(part, ToolCallDelta):
            call.pieces.append(replace_surrogates(part.text))
            self.size += len(part.text)
            return ()
        call.finish()
        return (self._whole(index),)

    def _close_calls(self) -> tuple[Growth, ...]:
        """Finish calls that are open at the end of the stream: some providers send no end of a call."""
        closed: list[MessagePart] = []
        for index, slot in enumerate(self._slots):
            if isinstance(slot, _Call) and not slot.finished:
                slot.finish()
                closed.append(self._whole(index))
        return tuple(closed)

    def _unused_id(self, id: ToolCallId) -> ToolCallId:
        """Return the id, or a variant that is unique in the session: results are matched by id."""
        taken = self._taken.union(slot.id for slot in self._slots if isinstance(slot, _Call))
        base = id or ToolCallId("call")
        candidate, count = base, 1
        while candidate in taken or not candidate:
            count += 1
            candidate = ToolCallId(f"{base}-{count}")
        return candidate

    def _delta(self, index: int, offset: int, text: str) -> MessageDelta:
        return MessageDelta(self._base.session_id, self._base.id, index, offset, text)

    def _whole(self, index: int) -> MessagePart:
        return MessagePart(self._base.session_id, self._base.id, index, self._slots[index].part())
