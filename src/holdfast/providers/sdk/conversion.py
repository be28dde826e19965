"""Convert requests and settings to the types of pydantic-ai, and its responses to stream parts."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec
from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
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
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings, ThinkingEffort
from pydantic_ai.tools import ToolDefinition

from holdfast.domain import messages as ours
from holdfast.domain import model_requests
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
from holdfast.domain.settings import Selection
from holdfast.domain.usage import Usage
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.chat_request import effort_of, output_tokens_of

__all__ = ["StreamParts", "body_for", "conversation", "parameters", "settings_for"]

_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")

_REDACTED = {"bedrock": "redacted_content"}
_REASONS: dict[str, StepFinish] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
_SIGNED = "thought_signature"
_REDACTED_PART = ("redacted_thinking", "redacted_content")


def parameters(request: model_requests.ModelRequest, access: ModelAccess) -> ModelRequestParameters:
    """Return the system prompt and the tools. Tool schemas are sent unchanged."""
    texts = [text for text in (access.system_prefix, request.system) if text.strip()]
    tools = [
        ToolDefinition(
            name=spec.name,
            description=spec.description,
            parameters_json_schema=msgspec.json.decode(spec.parameters or "{}"),
            strict=False,
        )
        for spec in request.tools
    ]
    instructions = [InstructionPart(content=ours.replace_surrogates(text)) for text in texts]
    return ModelRequestParameters(function_tools=tools, instruction_parts=instructions or None)


def conversation(messages: Sequence[ours.Message], info: model_requests.ModelInfo, system: str) -> list[ModelMessage]:
    """Convert messages, merging adjacent requests into one. `system` is pydantic-ai's name for the provider."""
    out: list[ModelMessage] = []
    for message in messages:
        if message.role == "assistant":
            out.append(_assistant(message, info, system))
            continue
        parts = list(_results(message, info) if message.role == "tool" else _user(message))
        if out and isinstance(last := out[-1], ModelRequest):
            last.parts = [*last.parts, *parts]
        else:
            out.append(ModelRequest(parts=parts))
    return [_results_first(item) if isinstance(item, ModelRequest) else item for item in out]


def _results_first(request: ModelRequest) -> ModelRequest:
    """Move tool results to the front: they must directly follow their calls, and media of results come after them."""
    request.parts = sorted(request.parts, key=lambda part: not isinstance(part, ToolReturnPart))
    return request


def _user(message: ours.Message) -> Iterator[ModelRequestPart]:
    content: list[UserContent] = []
    for part in message.parts:
        if isinstance(part, ours.TextPart):
            content.append(part.data.text)
        elif isinstance(part, ours.BinaryPart):
            content.append(BinaryContent(part.data.data, media_type=part.data.mime_type))
    yield UserPromptPart(content=content)


def _results(message: ours.Message, info: model_requests.ModelInfo) -> Iterator[ModelRequestPart]:
    for result in message.tool_results:
        content: Any = result.content
        content_media = _media(result)
        if content_media is not None and info.takes_media_in_results:
            content = [result.content, content_media]
        yield ToolReturnPart(
            tool_name=result.name,
            content=content,
            tool_call_id=result.tool_call_id,
            outcome="failed" if result.is_error else "success",
        )
        if content_media is not None and not info.takes_media_in_results:
            yield UserPromptPart(content=[f"What {result.name} (call {result.tool_call_id}) shows:", content_media])


def _media(result: ours.ToolResult) -> BinaryContent | None:
    if not result.data:
        return None
    return BinaryContent(base64.b64decode(result.data), media_type=result.mime_type)


def _assistant(message: ours.Message, info: model_requests.ModelInfo, system: str) -> ModelResponse:
    # A signature is valid only for the model that created it: other models reject the request.
    is_own = (message.provider, message.model) == (info.provider, info.model)
    marks = list(_marks(message)) if is_own else []
    parts: list[ModelResponsePart] = []
    calls = texts = 0
    for part in message.parts:
        match part:
            case ours.TextPart(data=text):
                details = _details(marks, "text", texts)
                texts += 1
                parts.append(
                    TextPart(content=text.text, provider_name=system if details else None, provider_details=details)
                )
            case ours.ReasoningPart(data=thought) if is_own:
                parts += _reasoning_parts(thought, system)
            case ours.ToolCallPart(data=call):
                details = _details(marks, "call", calls)
                calls += 1
                parts.append(
                    ToolCallPart(
                        tool_name=call.name,
                        args=call.input or "{}",
                        tool_call_id=call.id,
                        provider_name=system if details else None,
                        provider_details=details,
                    )
                )
            case _:
                # Reasoning of another model is signed with a key that this model does not have.
                pass
    return ModelResponse(parts=parts, provider_name=system, model_name=message.model)


def _details(marks: Sequence[dict[str, Any]], what: str, number: int) -> dict[str, Any] | None:
    return next((mark.get("details") for mark in marks if mark.get(what) == number), None)


def _reasoning_parts(thought: ours.Reasoning, system: str) -> Iterable[ThinkingPart]:
    if thought.thinking or thought.signature:
        sealed = _decode_signature(thought.signature)
        if sealed.get("signature") or sealed.get("id") or sealed.get("details"):
            yield ThinkingPart(
                content=thought.thinking,
                id=sealed.get("id"),
                signature=sealed.get("signature"),
                provider_name=system,
                provider_details=sealed.get("details"),
            )
    for block in thought.redacted:
        if not block.startswith("{"):
            yield ThinkingPart(
                content="",
                id=_REDACTED.get(system, "redacted_thinking"),
                signature=block,
                provider_name=system,
            )


def _decode_signature(signature: str) -> dict[str, Any]:
    if signature.startswith("{"):
        try:
            value = msgspec.json.decode(signature)
        except msgspec.DecodeError:
            return {}
        return value if isinstance(value, dict) else {}
    return {"signature": signature}


def _marks(message: ours.Message) -> Iterator[dict[str, Any]]:
    """Yield metadata that the provider requires back with a text or a call, stored beside the reasoning."""
    for part in message.parts:
        if isinstance(part, ours.ReasoningPart):
            for block in part.data.redacted:
                if block.startswith("{"):
                    yield _decode_signature(block)


def _text(arguments: object) -> str:
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


class StreamParts:
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
                yield from self._delta_parts(index, delta)
            case PartEndEvent(part=ThinkingPart() as thought):
                yield from _signature_parts(thought)
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

    def _delta_parts(self, index: int, delta: ModelResponsePartDelta) -> Iterator[StreamPart]:
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
        reported_reason = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        # On OpenAI's chat API pydantic-ai invents a missing finish reason, but records that it did.
        is_made_up = getattr(response, "_has_finish_reason", True) is False and reported_reason != "content_filter"
        if reported_reason in (None, "error") or is_made_up or response.state == "incomplete":
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


def _signature_parts(thought: ThinkingPart) -> Iterator[StreamPart]:
    if thought.id in _REDACTED_PART:
        if thought.signature:
            yield RedactedReasoning(thought.signature)
    elif thought.id or thought.provider_details:
        packed = {"id": thought.id, "signature": thought.signature, "details": thought.provider_details}
        yield ReasoningSignature(msgspec.json.encode(packed).decode())
    elif thought.signature:
        yield ReasoningSignature(thought.signature)


def settings_for(
    request: model_requests.ModelRequest,
    info: model_requests.ModelInfo,
    access: ModelAccess,
    selection: Selection,
    headers: dict[str, str],
) -> dict[str, Any]:
    """Return the common settings and the options known to pydantic-ai. Unknown options go into the body unchanged."""
    settings: dict[str, Any] = {"extra_headers": headers}
    if most := output_tokens_of(request, selection):
        settings["max_tokens"] = most
    for name in _SAMPLING:
        if (value := getattr(selection, name)) is not None:
            settings[name] = value
    effort = effort_of(info, selection)
    if effort in get_args(ThinkingEffort):
        settings["thinking"] = effort
    elif effort in ("none", "off", "disabled"):
        settings["thinking"] = False
    elif info.can_reason and (effort or selection.think):
        settings["thinking"] = True
    settings |= {name: value for name, value in _options(access, selection).items() if _is_setting(name)}
    if body := body_for(access, selection):
        settings["extra_body"] = body
    return settings


def body_for(access: ModelAccess, selection: Selection) -> dict[str, Any]:
    """Return the extra fields for the body of each request."""
    return {name: value for name, value in _options(access, selection).items() if not _is_setting(name)} | access.body


def _options(access: ModelAccess, selection: Selection) -> dict[str, Any]:
    return access.options | selection.provider_options


def _is_setting(name: str) -> bool:
    own = ("openai_", "anthropic_", "google_", "bedrock_", "mistral_")
    return name in ModelSettings.__annotations__ or name.startswith(own)
