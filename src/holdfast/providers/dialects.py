"""Dialects of the OpenAI chat wire for reasoning parameters. Pure.

The parameters are sent only if a user selected reasoning; otherwise the provider's default applies.
"""

from typing import Any

from holdfast.domain.models import ModelInfo
from holdfast.domain.settings import Selection

__all__ = ["reasoning_body"]


def reasoning_body(way: str, info: ModelInfo, selection: Selection) -> dict[str, Any]:
    """Return additions to the request body. A value of None removes a key that is sent by default."""
    asked = selection.reasoning_effort
    if not way or not info.can_reason or not (asked or selection.think):
        return {}
    effort = asked or info.default_reasoning_effort
    is_on = effort != "none"
    body: dict[str, Any] = {}
    match way:
        case "openrouter" | "ant-ling":
            return {"reasoning": {"effort": effort} if effort else {"enabled": True}, "reasoning_effort": None}
        case "together":
            body = {"reasoning": {"enabled": is_on}}
        case "deepseek" | "zai":
            body = {"thinking": {"type": "enabled" if is_on else "disabled"}}
        case "qwen":
            body = {"enable_thinking": is_on}
        case "baseten":
            body = {"chat_template_args": {"enable_thinking": is_on}}
        case _:
            return {}
    if not info.reasoning_levels:
        # Reasoning of such a model can be switched on, but has no levels.
        body["reasoning_effort"] = None
    return body
