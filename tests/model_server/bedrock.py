"""Bedrock's ConverseStream wire: messages of AWS's event stream, with JSON in them."""

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from model_server.script import Act, CallTool, Item, Redact, Reply, Say, Think, encoded, finish_of

__all__ = ["event_message", "items"]

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filtered",
    "other": "malformed_model_output",
}


def event_message(name: str, payload: dict[str, Any], kind: str = "event") -> bytes:
    """Encode one message; `kind` is "event" or "exception"."""
    named = ((":message-type", kind), (f":{kind}-type", name), (":content-type", "application/json"))
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for key, value in named
    )
    body = encoded(payload)
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    data = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + body
    return data + struct.pack(">I", zlib.crc32(data))


def items(reply: Reply) -> Iterator[Item]:
    yield event_message("messageStart", {"role": "assistant"})
    index = 0
    for act in reply.acts:
        if callable(act):
            yield act
            continue
        yield from _block(act, index)
        index += 1
    yield event_message("messageStop", {"stopReason": _REASONS[finish_of(reply)]})
    usage = reply.usage
    if usage.is_reported:
        counts = {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.input_tokens + usage.output_tokens,
            "cacheReadInputTokens": usage.cache_read_tokens,
            "cacheWriteInputTokens": usage.cache_write_tokens,
        }
        yield event_message("metadata", {"usage": counts, "metrics": {"latencyMs": 1}})


def _block(act: Act, index: int) -> Iterator[bytes]:
    """Only calls are announced; other blocks start with their content."""
    place = {"contentBlockIndex": index}
    deltas: list[dict[str, Any]] = []
    match act:
        case Say(pieces=pieces):
            deltas = [{"text": piece} for piece in pieces]
        case Think(pieces=pieces, signature=signature):
            deltas = [{"reasoningContent": {"text": piece}} for piece in pieces]
            if signature:
                deltas.append({"reasoningContent": {"signature": signature}})
        case Redact(data=data):
            deltas = [{"reasoningContent": {"redactedContent": base64.b64encode(data.encode()).decode()}}]
        case CallTool(id=id, name=name, pieces=pieces):
            yield event_message("contentBlockStart", place | {"start": {"toolUse": {"toolUseId": id, "name": name}}})
            deltas = [{"toolUse": {"input": piece}} for piece in pieces]
        case _:
            return
    for delta in deltas:
        yield event_message("contentBlockDelta", place | {"delta": delta})
    yield event_message("contentBlockStop", place)
