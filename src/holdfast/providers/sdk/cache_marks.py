"""Prompt cache marks for Anthropic: tools, system prompt, the last two messages. Pure."""

from typing import Any

__all__ = ["marked"]

_MARK = {"type": "ephemeral"}


def marked(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request body with cache marks on the last tool, the last system block and the last two messages."""
    out = dict(body)
    if tools := out.get("tools"):
        out["tools"] = _last_marked(tools)
    system = out.get("system")
    if isinstance(system, str) and system:
        system = [{"type": "text", "text": system}]
    if isinstance(system, list):
        out["system"] = _last_marked(system)
    messages = list(out.get("messages") or ())
    for place in range(max(0, len(messages) - 2), len(messages)):
        messages[place] = _message_marked(messages[place])
    out["messages"] = messages
    return out


def _message_marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    return message | {"content": _last_marked(content)} if isinstance(content, list) else message


def _last_marked(blocks: list[Any]) -> list[Any]:
    """Mark the last block that accepts a mark; thinking blocks do not."""
    out = list(blocks)
    for place in range(len(out) - 1, -1, -1):
        block = out[place]
        if isinstance(block, dict) and block.get("type") not in ("thinking", "redacted_thinking"):
            out[place] = block | {"cache_control": _MARK}
            break
    return out
