"""OpenAI, by its responses and chat APIs, and Azure."""

from typing import Any
from urllib.parse import urlsplit

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.domain.model_requests import ModelInfo
from holdfast.providers.adapter_config import ModelAccess

__all__ = ["build", "build_azure", "build_chat", "build_responses", "refine"]


def build(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> OpenAIChatModel | OpenAIResponsesModel:
    """Create a model: the responses API at OpenAI itself, the chat API elsewhere, where only that is common."""
    host = urlsplit(access.base_url).hostname or "api.openai.com"
    return (build_responses if host.endswith("openai.com") else build_chat)(info, access, client)


def build_chat(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> OpenAIChatModel:
    """Create a model of the chat API."""
    return OpenAIChatModel(info.model, provider=_provider(access, client))


def build_responses(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> OpenAIResponsesModel:
    """Create a model of the responses API."""
    return OpenAIResponsesModel(info.model, provider=_provider(access, client))


def build_azure(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> OpenAIChatModel:
    """Create a model of the chat API at an Azure endpoint."""
    provider = AzureProvider(
        azure_endpoint=access.base_url,
        api_version=access.extras.get("api_version") or None,
        api_key=access.api_key,
        http_client=client,
    )
    provider.client.max_retries = 0
    return OpenAIChatModel(info.model, provider=provider)


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    """Disable storage at OpenAI; reasoning is then returned encrypted and sent back with the next request."""
    own = {"openai_store": False, "openai_reasoning_summary": "auto", "openai_prompt_cache_key": session}
    return own | settings


def _provider(access: ModelAccess, client: httpx2.AsyncClient) -> OpenAIProvider:
    sdk = AsyncOpenAI(
        api_key=access.api_key or "none",
        base_url=access.base_url or "https://api.openai.com/v1",
        http_client=client,
        max_retries=0,
    )
    return OpenAIProvider(openai_client=sdk)
