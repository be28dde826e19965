"""Claude, from Anthropic or from a server with the same wire."""

import os
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from anthropic._models import FinalRequestOptions
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from holdfast.domain.model_requests import ModelInfo
from holdfast.providers.adapter_config import ModelAccess

__all__ = ["build", "marked", "refine"]


# Prompt cache marks: tools, system prompt, the last two messages.

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


class _Client(AsyncAnthropic):
    async def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        options = await super()._prepare_options(options)
        if isinstance(options.json_data, dict) and os.environ.get("HOLDFAST_DISABLE_ANTHROPIC_CACHE") != "1":
            options.json_data = marked(options.json_data)
        return options


def build(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> AnthropicModel:
    """Create the model. A key with the prefix `Bearer ` is sent as an OAuth token."""
    token = access.api_key.removeprefix("Bearer ")
    is_bearer = token != access.api_key
    sdk = _Client(
        api_key=None if is_bearer else access.api_key,
        auth_token=token if is_bearer else None,
        base_url=access.base_url.rstrip("/").removesuffix("/v1") or None,
        default_headers=access.headers,
        http_client=client,
        max_retries=0,
    )
    return AnthropicModel(info.model, provider=AnthropicProvider(anthropic_client=sdk))


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    """Return the settings unchanged."""
    return settings
