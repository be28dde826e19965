"""Request body of the OpenAI chat wire. Pure.

The wire has many dialects. The body contains only keys that all of them accept; users add others with `extra_body`
and `provider_options`, and remove one by setting it to null.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Message,
    Reasoning,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResult,
    replace_surrogates,
)
from holdfast.domain.model_requests import ModelInfo, ModelRequest, ToolSpec
from holdfast.domain.settings import Selection
from holdfast.providers.adapter_config import ModelAccess

__all__ = ["PLAIN_REASONING", "chat_body", "effort_of", "output_tokens_of"]

PLAIN_REASONING = "reasoning_content"
"""Signature of reasoning received under this key. Such servers require it back under the same key."""

_encode = msgspec.json.Encoder().encode
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def chat_body(request: ModelRequest, info: ModelInfo, access: ModelAccess, selection: Selection) -> bytes:
    """Encode the request body. The cost is linear in the length of the conversation."""
    body: dict[str, Any] = {
        "model": info.model,
        "messages": [*_system(request, access), *_messages(request.messages, info)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(spec) for spec in request.tools]
    if max_tokens := output_tokens_of(request, selection):
        body["max_tokens"] = max_tokens
    body["reasoning_effort"] = effort_of(info, selection) or None
    for name in ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty"):
        body[name] = getattr(selection, name)
    for added in (access.options, selection.provider_options, access.body):
        body = _merge(body, added)
    return _encode({name: value for name, value in body.items() if value is not None})


def effort_of(info: ModelInfo, selection: Selection) -> str:
    """Return the reasoning effort to request: the selected one if the model supports it, else the model's default;
    empty to omit the parameter.
    """
    if not info.can_reason:
        return ""
    effort = selection.reasoning_effort
    if effort and (effort in info.reasoning_levels or not info.reasoning_levels):
        return effort
    return info.default_reasoning_effort if effort or selection.think else ""


def output_tokens_of(request: ModelRequest, selection: Selection) -> int:
    """Return the output limit of the selection, else of the request."""
    return selection.max_tokens or request.max_output_tokens


def _merge(body: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Merge recursively: dictionaries are merged, other values are replaced."""
    out = dict(body)
    for name, value in added.items():
        before = out.get(name)
        out[name] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return out


def _system(request: ModelRequest, access: ModelAccess) -> Iterable[dict[str, Any]]:
    for text in (access.system_prefix, request.system):
        if text.strip():
            yield {"role": "system", "content": replace_surrogates(text)}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    parameters = msgspec.Raw(spec.parameters.encode() or b"{}")
    return {
        "type": "function",
        "function": {"name": spec.name, "description": spec.description, "parameters": parameters},
    }


def _messages(messages: Sequence[Message], info: ModelInfo) -> Iterable[dict[str, Any]]:
    shown: list[ToolResult] = []
    for message in messages:
        if message.role == "tool":
            for result in message.tool_results:
                yield _result(result, info)
                if result.data and not info.takes_media_in_results:
                    shown.append(result)
            continue
        if shown:
            # The wire requires results directly after their calls, so media of results follow the last result.
            yield _images_message(shown)
            shown = []
        yield _assistant(message, info) if message.role == "assistant" else _user(message)
    if shown:
        yield _images_message(shown)


def _user(message: Message) -> dict[str, Any]:
    texts = [part.data.text for part in message.parts if isinstance(part, TextPart)]
    if not any(isinstance(part, BinaryPart) for part in message.parts):
        # Small servers accept only a plain string.
        return {"role": "user", "content": "\n\n".join(texts)}
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            content.append({"type": "text", "text": part.data.text})
        elif isinstance(part, BinaryPart):
            content.append(_media(part.data))
    return {"role": "user", "content": content}


def _media(file: Binary) -> dict[str, Any]:
    data = base64.b64encode(file.data).decode("ascii")
    return _encoded_media(file.mime_type, data, file.path.rpartition("/")[2] or "file")


def _encoded_media(kind: str, data: str, name: str) -> dict[str, Any]:
    if kind in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO[kind]}}
    url = f"data:{kind};base64,{data}"
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def _result(result: ToolResult, info: ModelInfo) -> dict[str, Any]:
    content: Any = result.content
    if result.data and info.takes_media_in_results:
        content = [
            {"type": "text", "text": result.content},
            _encoded_media(result.mime_type, result.data, result.name),
        ]
    return {"role": "tool", "tool_call_id": result.tool_call_id, "content": content}


def _images_message(results: Sequence[ToolResult]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for result in results:
        content.append({"type": "text", "text": f"What {result.name} (call {result.tool_call_id}) shows:"})
        content.append(_encoded_media(result.mime_type, result.data, result.name))
    return {"role": "user", "content": content}


def _assistant(message: Message, info: ModelInfo) -> dict[str, Any]:
    text = "".join(part.data.text for part in message.parts if isinstance(part, TextPart))
    out: dict[str, Any] = {"role": "assistant", "content": text or None}
    calls = [part.data for part in message.parts if isinstance(part, ToolCallPart)]
    if calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input or "{}"}}
            for call in calls
        ]
    if message.provider == info.provider and message.model == info.model:
        reasonings = [part.data for part in message.parts if isinstance(part, ReasoningPart)]
        plain = [reasoning.thinking for reasoning in reasonings if reasoning.signature == PLAIN_REASONING]
        if plain and calls:
            out[PLAIN_REASONING] = "".join(plain)
        if details := [detail for reasoning in reasonings for detail in _details(reasoning)]:
            out["reasoning_details"] = details
    return out


def _details(reasoning: Reasoning) -> Iterable[dict[str, Any] | msgspec.Raw]:
    """Return signed text and encrypted blocks in the format of OpenRouter, unchanged."""
    if reasoning.signature and reasoning.signature != PLAIN_REASONING:
        yield {"type": "reasoning.text", "text": reasoning.thinking, "signature": reasoning.signature}
    for block in reasoning.redacted:
        if block.startswith("{"):
            yield msgspec.Raw(block.encode())
