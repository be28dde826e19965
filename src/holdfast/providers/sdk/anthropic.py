"""Claude, from Anthropic or from a server with the same wire."""

import os
from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from anthropic._models import FinalRequestOptions
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from holdfast.domain.models import ModelInfo
from holdfast.providers.access import Access
from holdfast.providers.sdk.cache_marks import marked

__all__ = ["build", "refine"]


class _Client(AsyncAnthropic):
    async def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        options = await super()._prepare_options(options)
        if isinstance(options.json_data, dict) and os.environ.get("HOLDFAST_DISABLE_ANTHROPIC_CACHE") != "1":
            options.json_data = marked(options.json_data)
        return options


def build(info: ModelInfo, access: Access, client: httpx2.AsyncClient) -> AnthropicModel:
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
