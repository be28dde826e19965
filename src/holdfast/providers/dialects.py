"""How servers of the OpenAI chat wire want to be told about reasoning, each in its own words. Pure.

Said only if a user asked for it: else a provider does as it does by itself.
"""

from typing import Any

from holdfast.domain.models import ModelInfo
from holdfast.domain.settings import Selection

__all__ = ["reasoning_body"]


def reasoning_body(way: str, info: ModelInfo, selection: Selection) -> dict[str, Any]:
    """What is added to a request's body. A value of None takes the key away that is sent otherwise."""
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
        # Such a model can be told to think, but not how hard.
        body["reasoning_effort"] = None
    return body
