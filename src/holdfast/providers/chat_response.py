"""Convert responses on the OpenAI chat wire, in all its dialects, to stream parts. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.domain.ids import ToolCallId
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
from holdfast.providers.chat_request import PLAIN_REASONING

__all__ = ["ChatResponse", "ErrorInStream", "NotUnderstood"]


class NotUnderstood(Exception):
    """This is not a response of a model."""


class ErrorInStream(Exception):
    """An error object inside the response stream. `error` is the server's value, of any type."""

    def __init__(self, error: Any) -> None:  # noqa: ANN401 - any JSON value
        super().__init__()
        self.error = error


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, Any] | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    error: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None


class _Timings(msgspec.Struct):
    prompt_n: int | None = None
    predicted_n: int | None = None
    cache_n: int | None = None


class _Extra(msgspec.Struct):
    usage: _Usage | None = None
    error: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    timings: _Timings | None = None
    x_groq: _Extra | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_loose = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_FINISHES: dict[str, StepFinish] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "complete": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
    "sensitive": "content_filter",
}


class _Open:
    """A tool call in progress. It is published once its name is known; earlier arguments are buffered in `buffered`."""

    def __init__(self, reported_id: str) -> None:
        self.reported_id = reported_id
        self.id = ToolCallId("")
        self.buffered: list[str] = []


class ChatResponse:
    """Parser state of one response: fed with the data of SSE events, returns stream parts."""

    def __init__(self) -> None:
        self._calls: list[_Open] = []
        self._at: dict[int, _Open] = {}
        self._reason: StepFinish | None = None
        self._usage = Usage()
        self._has_plain = False
        self.is_done = False
        """True if the server sent its end marker."""

    @property
    def is_finished(self) -> bool:
        """True if the response is complete: end marker or finish reason received."""
        return self.is_done or self._reason is not None

    def feed(self, events: Iterable[bytes]) -> list[StreamPart]:
        """Convert the data of events to stream parts. Adjacent text is merged. Raises `NotUnderstood`,
        `ErrorInStream`.
        """
        parts: list[StreamPart] = []
        texts: list[str] = []
        for data in events:
            if data.strip() == b"[DONE]":
                self.is_done = True
                break
            for chunk in _chunks(data):
                choices = chunk.choices
                if choices and len(choices) == 1 and (text := _only_text(chunk, choices[0])) is not None:
                    texts.append(text)
                    continue
                if texts:
                    self._add_text("".join(texts), parts)
                    texts.clear()
                if not choices and chunk.usage is None:
                    _check_oddity(data)
                self._process_chunk(chunk, parts)
        if texts:
            self._add_text("".join(texts), parts)
        return parts

    def end(self) -> list[StreamPart]:
        """Return the final parts. Valid only if `is_finished`."""
        parts: list[StreamPart] = []
        self._end_reasoning(parts)
        parts += [ToolCallEnd(call.id) for call in self._calls if call.id]
        if self._usage.is_reported:
            parts.append(UsagePart(self._usage))
        reason = self._reason or "stop"
        has_calls = any(call.id for call in self._calls)
        # Some servers report "stop" although the response contains tool calls.
        parts.append(FinishedPart("tool_calls" if has_calls and reason in ("stop", "other") else reason))
        return parts

    def _add_text(self, text: str, parts: list[StreamPart]) -> None:
        self._end_reasoning(parts)
        parts.append(TextDelta(text))

    def _process_chunk(self, chunk: _Chunk, parts: list[StreamPart]) -> None:
        extra = chunk.x_groq
        if error := chunk.error or (extra.error if extra else None):
            raise ErrorInStream(error)
        # One choice is requested. A server that sends more would mix several responses.
        for choice in (chunk.choices or ())[:1]:
            if choice.error:
                raise ErrorInStream(choice.error)
            # Some servers ignore `stream` and send the whole message at once.
            delta = choice.delta or choice.message
            if delta is not None:
                self._process_delta(delta, parts)
            if reason := _finish_reason(choice.finish_reason):
                if reason == "error":
                    raise ErrorInStream({"message": "it stopped in the middle of the answer because of an error"})
                self._reason = _FINISHES.get(reason, "other")
        if usage := chunk.usage or (extra.usage if extra else None):
            self._usage = _usage(usage)
        # llama.cpp reports its counts as timings.
        elif chunk.timings is not None and not self._usage.is_reported:
            timings = chunk.timings
            self._usage = Usage(timings.prompt_n or 0, timings.predicted_n or 0, timings.cache_n or 0)

    def _process_delta(self, delta: _Delta, parts: list[StreamPart]) -> None:
        # OpenRouter sends the same reasoning twice; the details are the form that later requests must return.
        if delta.reasoning_details:
            parts += _details(delta.reasoning_details)
        elif delta.reasoning_content:
            self._has_plain = True
            parts.append(ReasoningDelta(delta.reasoning_content))
        elif isinstance(delta.reasoning, str) and delta.reasoning:
            parts.append(ReasoningDelta(delta.reasoning))
        content = delta.content
        # Mistral's form: a list of typed pieces.
        if isinstance(content, list):
            content = "".join(str(item.get("text") or "") for item in content)
        if text := content or delta.refusal:
            self._add_text(text, parts)
        if delta.tool_calls:
            self._end_reasoning(parts)
            for call in delta.tool_calls:
                parts += self._process_call(call)

    def _end_reasoning(self, parts: list[StreamPart]) -> None:
        """Close plain reasoning with its signature, so that later requests return it under the same key."""
        if self._has_plain:
            self._has_plain = False
            parts.append(ReasoningSignature(PLAIN_REASONING))

    def _process_call(self, reported: _Call) -> Iterator[StreamPart]:
        function = reported.function or _Function()
        call = self._find(reported, function)
        text = function.arguments
        # Some servers send the arguments as an object instead of JSON text.
        if isinstance(text, dict):
            text = _encode(text).decode()
        if not call.id and function.name:
            call.id = self._unused_call_id(call.reported_id)
            yield ToolCallStart(call.id, function.name)
            if buffered := "".join(call.buffered):
                yield ToolCallDelta(call.id, buffered)
        if text:
            if call.id:
                yield ToolCallDelta(call.id, text)
            else:
                call.buffered.append(text)

    def _find(self, reported: _Call, function: _Function) -> _Open:
        """Return the call that a delta belongs to. Servers identify calls by index, by id, or
        inconsistently by both.
        """
        known = (
            self._at.get(reported.index) if reported.index is not None else (self._calls[-1] if self._calls else None)
        )
        if reported.index is None and reported.id:
            known = next((call for call in self._calls if call.reported_id == reported.id), None)
        begins_another = known is not None and known.id and function.name and (reported.id or "") != known.reported_id
        if known is None or begins_another or (reported.index is None and not reported.id and function.name):
            known = _Open(reported.id or "")
            self._calls.append(known)
        if reported.id and not known.reported_id:
            known.reported_id = reported.id
        if reported.index is not None:
            self._at[reported.index] = known
        return known

    def _unused_call_id(self, reported: str) -> ToolCallId:
        taken = {call.id for call in self._calls}
        number = len(self._calls)
        candidate = reported or f"call_{number}"
        # Some models reuse an id within one response; results could then not be assigned.
        while candidate in taken:
            number += 1
            candidate = f"{reported or 'call'}_{number}"
        return ToolCallId(candidate)


def _only_text(chunk: _Chunk, choice: _Choice) -> str | None:
    """Return the text of a chunk that contains only text, else None. Fast path for the common case."""
    delta = choice.delta
    if delta is None or chunk.usage is not None or choice.finish_reason or chunk.error or choice.error:
        return None
    if delta.tool_calls or delta.reasoning_content or delta.reasoning or delta.reasoning_details:
        return None
    content = delta.content
    has_more = chunk.timings is not None or chunk.x_groq is not None
    return content if isinstance(content, str) and content and not has_more else None


def _check_oddity(data: bytes) -> None:
    """Raise `ErrorInStream` for servers that report a failure as an ordinary chunk."""
    value = _loose(data) if b"\n" not in data else None
    if isinstance(value, dict) and "error" not in value and (value.get("object") or value.get("type")) == "error":
        raise ErrorInStream(value)


def _chunks(data: bytes) -> Iterable[_Chunk]:
    try:
        return (_decode(data),)
    except msgspec.ValidationError:
        return (_decode_leniently(data),)
    except UnicodeDecodeError:
        return _chunks(replace_json_surrogates(data))
    except msgspec.DecodeError:
        if b"\n" not in data:
            raise NotUnderstood(data[:200].decode("utf-8", "replace")) from None
        # Some servers omit the empty line between events.
        return [chunk for line in data.split(b"\n") if line.strip() != b"[DONE]" for chunk in _chunks(line)]


def _decode_leniently(data: bytes) -> _Chunk:
    """Decode a chunk leniently: numbers as strings are converted. Raises `NotUnderstood`."""
    value = _loose(data)
    try:
        if isinstance(value, dict):
            return msgspec.convert(value, _Chunk, strict=False)
    except msgspec.ValidationError:
        pass
    raise NotUnderstood(data[:200].decode("utf-8", "replace"))


def _finish_reason(reason: str | None) -> str:
    reason = (reason or "").lower()
    return "" if reason in ("null", "none") else reason


def _usage(reported: _Usage) -> Usage:
    """Convert token counts. This wire includes cached tokens in the prompt; `Usage` counts them separately."""
    details = reported.prompt_tokens_details or _Details()
    read = details.cached_tokens or reported.prompt_cache_hit_tokens or 0
    written = details.cache_write_tokens or 0
    return Usage(max(0, (reported.prompt_tokens or 0) - read - written), reported.completion_tokens or 0, read, written)


def _details(details: Iterable[dict[str, Any]]) -> Iterator[StreamPart]:
    for detail in details:
        if text := detail.get("text") or detail.get("summary"):
            yield ReasoningDelta(str(text))
        if signature := detail.get("signature"):
            yield ReasoningSignature(str(signature))
        if detail.get("data"):
            yield RedactedReasoning(_encode(detail).decode())
