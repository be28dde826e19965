"""Convert the events of pydantic-ai to stream parts."""

from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic_ai.messages import (
    ModelResponsePart,
    ModelResponsePartDelta,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import StreamedResponse

from holdfast.domain.ids import ToolCallId
from holdfast.domain.models import (
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
from holdfast.domain.usage import Usage

__all__ = ["Answer"]

_REASONS: dict[str, StepFinish] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
_SIGNED = "thought_signature"
_REDACTED = ("redacted_thinking", "redacted_content")


def _text(arguments: object) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


class Answer:
    """State of one response in progress."""

    def __init__(self) -> None:
        self._calls: dict[int, ToolCallId] = {}
        self._texts: list[int] = []

    def feed(self, event: ModelResponseStreamEvent) -> Iterator[StreamPart]:
        """Convert one event to stream parts."""
        match event:
            case PartStartEvent(index=index, part=part):
                yield from self._begin(index, part)
            case PartDeltaEvent(index=index, delta=delta):
                yield from self._grow(index, delta)
            case PartEndEvent(part=ThinkingPart() as thought):
                yield from _seal(thought)
            case PartEndEvent(index=index, part=ToolCallPart(provider_details=dict(details))):
                # Deltas of a call may follow after the next call has begun, so calls are ended with the response.
                yield _mark("call", list(self._calls).index(index), details)
            case PartEndEvent(index=index, part=TextPart(provider_details=dict(details))) if _SIGNED in details:
                yield _mark("text", self._texts.index(index), details)
            case _:
                pass

    def _begin(self, index: int, part: ModelResponsePart) -> Iterator[StreamPart]:
        match part:
            case TextPart(content=text):
                self._texts.append(index)
                if text:
                    yield TextDelta(text)
            case ThinkingPart(content=text) if text:
                yield ReasoningDelta(text)
            case ToolCallPart():
                id = self._calls[index] = ToolCallId(part.tool_call_id)
                yield ToolCallStart(id, part.tool_name)
                if text := _text(part.args):
                    yield ToolCallDelta(id, text)
            case _:
                pass

    def _grow(self, index: int, delta: ModelResponsePartDelta) -> Iterator[StreamPart]:
        match delta:
            case TextPartDelta(content_delta=text) if text:
                yield TextDelta(text)
            case ThinkingPartDelta(content_delta=text) if text:
                yield ReasoningDelta(text)
            case ToolCallPartDelta() if index in self._calls:
                if text := _text(delta.args_delta):
                    yield ToolCallDelta(self._calls[index], text)
            case _:
                pass

    def end(self, response: StreamedResponse) -> Iterator[StreamPart] | None:
        """Return the final parts, or None if the provider did not report a complete response."""
        said = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        # On OpenAI's chat API pydantic-ai invents a missing finish reason, but records that it did.
        is_made_up = getattr(response, "_has_finish_reason", True) is False and said != "content_filter"
        if said in (None, "error") or is_made_up or response.state == "incomplete":
            return None
        return self._last(_REASONS.get(str(response.finish_reason), "other"), response)

    def _last(self, reason: StepFinish, response: StreamedResponse) -> Iterator[StreamPart]:
        for id in self._calls.values():
            yield ToolCallEnd(id)
        usage = response.usage
        cached = usage.cache_read_tokens + usage.cache_write_tokens
        counted = Usage(
            max(0, usage.input_tokens - cached),
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
        if counted.is_reported:
            yield UsagePart(counted)
        yield FinishedPart("tool_calls" if self._calls and reason in ("stop", "other") else reason)


def _mark(what: str, number: int, details: dict[str, Any]) -> RedactedReasoning:
    """Metadata that the provider requires back with this text or call."""
    return RedactedReasoning(msgspec.json.encode({what: number, "details": details}).decode())


def _seal(thought: ThinkingPart) -> Iterator[StreamPart]:
    if thought.id in _REDACTED:
        if thought.signature:
            yield RedactedReasoning(thought.signature)
    elif thought.id or thought.provider_details:
        packed = {"id": thought.id, "signature": thought.signature, "details": thought.provider_details}
        yield ReasoningSignature(msgspec.json.encode(packed).decode())
    elif thought.signature:
        yield ReasoningSignature(thought.signature)
