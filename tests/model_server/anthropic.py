"""The Anthropic messages wire."""

from collections.abc import Iterator
from typing import Any

from model_server.script import Act, CallTool, Item, Redact, Reply, Say, Think, event, finish_of

__all__ = ["items"]

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "other": "pause_turn",
}


def _event(kind: str, **fields: Any) -> bytes:  # noqa: ANN401
    return event({"type": kind, **fields}, kind)


def items(reply: Reply) -> Iterator[Item]:
    usage = reply.usage
    begin = {
        "input_tokens": usage.input_tokens,
        "output_tokens": 1,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }
    message: dict[str, Any] = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": begin,
    }  # fmt: skip
    yield _event("message_start", message=message)
    yield _event("ping")
    index = 0
    for act in reply.acts:
        if callable(act):
            yield act
            continue
        yield from _block(act, index)
        index += 1
    delta = {"stop_reason": _REASONS[finish_of(reply)], "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": usage.output_tokens})
    yield _event("message_stop")


def _block(act: Act, index: int) -> Iterator[bytes]:
    block: dict[str, Any]
    deltas: list[dict[str, Any]] = []
    match act:
        case Say(pieces=pieces):
            block = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        case Think(pieces=pieces, signature=signature):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            if signature:
                deltas.append({"type": "signature_delta", "signature": signature})
        case Redact(data=data):
            block = {"type": "redacted_thinking", "data": data}
        case CallTool(id=id, name=name, pieces=pieces):
            block = {"type": "tool_use", "id": id, "name": name, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        case _:
            return
    yield _event("content_block_start", index=index, content_block=block)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)
