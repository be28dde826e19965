"""Gemini's streamGenerateContent wire. It has no redacted blocks, and tool calls are sent in one piece."""

import json
from collections.abc import Iterator
from typing import Any

from model_server.script import CallTool, Item, Reply, Say, Think, event, finish_of

__all__ = ["items"]

_REASONS = {
    "stop": "STOP",
    "length": "MAX_TOKENS",
    "tool_calls": "STOP",
    "content_filter": "SAFETY",
    "other": "OTHER",
}


def _chunk(parts: list[dict[str, Any]], **fields: Any) -> bytes:  # noqa: ANN401
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0} | fields
    return event({"candidates": [candidate], "modelVersion": "m", "responseId": "r1"})


def items(reply: Reply) -> Iterator[Item]:
    signature = ""
    for act in reply.acts:
        match act:
            case Say(pieces=pieces):
                for piece in pieces:
                    yield _chunk([_signed({"text": piece}, signature)])
                    signature = ""
            case Think(pieces=pieces, signature=given):
                yield from (_chunk([{"text": piece, "thought": True}]) for piece in pieces)
                signature = given
            case CallTool(id=id, name=name, pieces=pieces):
                arguments = json.loads("".join(pieces) or "{}")
                call = {"functionCall": {"id": id, "name": name, "args": arguments}}
                yield _chunk([_signed(call, signature)])
                signature = ""
            case _ if callable(act):
                yield act
            case _:
                pass
    usage = reply.usage
    metadata = {
        "promptTokenCount": usage.input_tokens + usage.cache_read_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "cachedContentTokenCount": usage.cache_read_tokens,
    }
    candidate = {"content": {"role": "model", "parts": []}, "finishReason": _REASONS[finish_of(reply)], "index": 0}
    last: dict[str, Any] = {"candidates": [candidate], "modelVersion": "m", "responseId": "r1"}
    yield event(last | ({"usageMetadata": metadata} if usage.is_reported else {}))


def _signed(part: dict[str, Any], signature: str) -> dict[str, Any]:
    return part | ({"thoughtSignature": signature} if signature else {})
