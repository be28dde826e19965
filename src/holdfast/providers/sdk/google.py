"""Gemini, through the Gemini API and Google Cloud."""

from typing import Any

import httpx2
from google.genai import Client
from google.genai.types import HttpOptions, HttpRetryOptions
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.google_cloud import GoogleCloudProvider

from holdfast.domain.model_requests import ModelInfo
from holdfast.providers.adapter_config import ModelAccess

__all__ = ["build", "build_vertex", "refine"]


def build(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> GoogleModel:
    """Create a model of the Gemini API."""
    sdk = Client(vertexai=False, api_key=access.api_key, http_options=_options(access, client))
    return GoogleModel(info.model, provider=GoogleProvider(client=sdk))


def build_vertex(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> GoogleModel:
    """Create a Google Cloud model, with an API key or the credentials of the environment."""
    sdk = Client(
        vertexai=True,
        api_key=access.api_key or None,
        project=None if access.api_key else access.extras.get("project"),
        location=None if access.api_key else access.extras.get("location"),
        http_options=_options(access, client),
    )
    return GoogleModel(info.model, provider=GoogleCloudProvider(client=sdk))


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    """Remove extra body fields: `build` has passed them to the client."""
    return {name: value for name, value in settings.items() if name != "extra_body"}


def _options(access: ModelAccess, client: httpx2.AsyncClient) -> HttpOptions:
    base = access.base_url.rstrip("/").removesuffix("/v1beta").removesuffix("/v1")
    return HttpOptions(
        base_url=base or None,
        api_version=access.extras.get("api_version"),
        extra_body=access.body or None,
        httpx_async_client=client,
        retry_options=HttpRetryOptions(attempts=1),
    )
