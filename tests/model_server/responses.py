"""The OpenAI responses wire. Reasoning is a summary; its encrypted content serves as the signature."""

from collections.abc import Iterator
from typing import Any

from model_server.script import Act, CallTool, Item, Reply, Say, Think, event, finish_of

__all__ = ["items"]


class _Wire:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._number = 0
        self._output: list[dict[str, Any]] = []

    def event(self, kind: str, **fields: Any) -> bytes:  # noqa: ANN401
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def items(self) -> Iterator[Item]:
        yield self.event("response.created", response=self._response("in_progress"))
        for act in self._reply.acts:
            if callable(act):
                yield act
            else:
                yield from self._act(act, len(self._output))
        finish = finish_of(self._reply)
        status = "incomplete" if finish in ("length", "content_filter") else "completed"
        yield self.event(f"response.{status}", response=self._response(status))

    def _act(self, act: Act, index: int) -> Iterator[bytes]:
        place = {"output_index": index, "item_id": f"item_{index}"}
        match act:
            case Say(pieces=pieces):
                item: dict[str, Any] = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
                yield self._begin(item, index)
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield self.event("response.content_part.added", content_index=0, part=part, **place)
                for piece in pieces:
                    yield self.event("response.output_text.delta", content_index=0, delta=piece, logprobs=[], **place)
                text = "".join(pieces)
                yield self.event("response.output_text.done", content_index=0, text=text, logprobs=[], **place)
                yield self._end(item | {"content": [part | {"text": text}]}, index)
            case Think(pieces=pieces, signature=signature):
                item = {"type": "reasoning", "summary": []}
                yield self._begin(item, index)
                summary = {"type": "summary_text", "text": ""}
                yield self.event("response.reasoning_summary_part.added", summary_index=0, part=summary, **place)
                for piece in pieces:
                    yield self.event("response.reasoning_summary_text.delta", summary_index=0, delta=piece, **place)
                whole = {"summary": [summary | {"text": "".join(pieces)}], "encrypted_content": signature or None}
                yield self._end(item | whole, index)
            case CallTool(id=id, name=name, pieces=pieces):
                item = {"type": "function_call", "call_id": id, "name": name, "arguments": ""}
                yield self._begin(item, index)
                for piece in pieces:
                    yield self.event("response.function_call_arguments.delta", delta=piece, **place)
                arguments = "".join(pieces)
                yield self.event("response.function_call_arguments.done", arguments=arguments, name=name, **place)
                yield self._end(item | {"arguments": arguments}, index)
            case _:
                pass

    def _begin(self, item: dict[str, Any], index: int) -> bytes:
        return self.event("response.output_item.added", output_index=index, item=item | {"id": f"item_{index}"})

    def _end(self, item: dict[str, Any], index: int) -> bytes:
        done = item | {"id": f"item_{index}", "status": "completed"}
        self._output.append(done)
        return self.event("response.output_item.done", output_index=index, item=done)

    def _response(self, status: str) -> dict[str, Any]:
        usage = self._reply.usage
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        why = reasons.get(finish_of(self._reply)) if status == "incomplete" else None
        counts = {
            "input_tokens": usage.input_tokens + usage.cache_read_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.cache_read_tokens + usage.output_tokens,
            "input_tokens_details": {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        return {
            "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status, "error": None,
            "incomplete_details": {"reason": why} if why else None, "output": self._output, "tools": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "instructions": None, "metadata": {},
            "usage": counts if status != "in_progress" and usage.is_reported else None,
        }  # fmt: skip


def items(reply: Reply) -> Iterator[Item]:
    yield from _Wire(reply).items()
