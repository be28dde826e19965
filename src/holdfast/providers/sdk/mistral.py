"""Mistral."""

from typing import Any

import httpx2
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.providers.mistral import MistralProvider

from holdfast.domain.models import ModelInfo
from holdfast.providers.access import Access

__all__ = ["build", "refine"]


def build(info: ModelInfo, access: Access, client: httpx2.AsyncClient) -> MistralModel:
    base = access.base_url.rstrip("/").removesuffix("/v1") or None
    return MistralModel(info.model, provider=MistralProvider(api_key=access.api_key, base_url=base, http_client=client))


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "extra_body"}
