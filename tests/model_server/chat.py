"""The OpenAI chat wire."""

from collections.abc import Iterator
from typing import Any

from model_server.script import CallTool, Item, Redact, Reply, Say, Think, event, finish_of

__all__ = ["items"]


def _chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return event({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def items(reply: Reply) -> Iterator[Item]:
    yield _chunk({"role": "assistant", "content": ""})
    calls = 0
    for act in reply.acts:
        match act:
            case Say(pieces=pieces):
                yield from (_chunk({"content": piece}) for piece in pieces)
            case Think(pieces=pieces, signature=""):
                yield from (_chunk({"reasoning_content": piece}) for piece in pieces)
            case Think(pieces=pieces, signature=signature):
                yield from (_detail({"type": "reasoning.text", "text": piece}) for piece in pieces)
                yield _detail({"type": "reasoning.text", "text": "", "signature": signature})
            case Redact(data=data):
                yield _detail({"type": "reasoning.encrypted", "data": data})
            case CallTool():
                yield from _call(act, calls)
                calls += 1
            case _:
                yield act
    yield _chunk({}, finish_of(reply))
    if reply.usage.is_reported:
        yield event({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _detail(detail: dict[str, Any]) -> bytes:
    return _chunk({"reasoning": detail.get("text", ""), "reasoning_details": [detail | {"index": 0}]})


def _call(act: CallTool, index: int) -> Iterator[bytes]:
    function = {"name": act.name, "arguments": ""}
    yield _chunk({"tool_calls": [{"index": index, "id": act.id, "type": "function", "function": function}]})
    for piece in act.pieces:
        yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
    }
