"""Mistral's chat wire. Reasoning is a kind of content, calls are sent in one piece, and the last piece has the rest.

It has no redacted blocks, and no finish reason for a filtered response.
"""

from collections.abc import Iterator
from typing import Any

from model_server.script import CallTool, Item, Redact, Reply, Say, Think, event, finish_of

__all__ = ["items"]

_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "other": "error"}


def _chunk(delta: dict[str, Any], reason: str | None = None, **fields: Any) -> bytes:  # noqa: ANN401
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event(head | {"choices": [choice]} | fields)


def items(reply: Reply) -> Iterator[Item]:
    yield _chunk({"role": "assistant", "content": ""})
    calls: list[dict[str, Any]] = []
    has_thought = False
    for act in reply.acts:
        match act:
            case Say(pieces=pieces):
                yield from (_chunk({"content": _text(piece) if has_thought else piece}) for piece in pieces)
            case Think(pieces=pieces, signature=signature):
                has_thought = True
                yield from (_chunk({"content": [_reasoning(_text(piece))]}) for piece in pieces)
                if signature:
                    yield _chunk({"content": [_reasoning([], signature=signature, closed=True)]})
            case CallTool(id=id, name=name, pieces=pieces):
                function = {"name": name, "arguments": "".join(pieces)}
                calls.append({"id": id, "function": function, "index": len(calls)})
            case Redact():
                pass
            case _:
                yield act
    last = {"content": ""} | ({"tool_calls": calls} if calls else {})
    yield _chunk(last, _REASONS[finish_of(reply)], **({"usage": _usage(reply)} if reply.usage.is_reported else {}))
    yield b"data: [DONE]\n\n"


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def _reasoning(thinking: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"type": "thinking", "thinking": thinking, **fields}


def _usage(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    prompt = usage.input_tokens + usage.cache_read_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }
