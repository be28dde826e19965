"""Mistral."""

from typing import Any, cast

import httpx2
import msgspec
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.providers.mistral import MistralProvider

from holdfast.domain.models import ModelInfo
from holdfast.providers.access import Access
from holdfast.providers.client import USER_AGENT

__all__ = ["build", "refine"]


class _Client:
    """The client of everybody, for a library that has no place for headers and options of ours."""

    def __init__(self, client: httpx2.AsyncClient, access: Access) -> None:
        self._client = client
        self._headers = {"user-agent": USER_AGENT, **access.headers}
        self._body = access.body

    def build_request(self, method: str, url: str, **more: Any) -> httpx2.Request:  # noqa: ANN401 - the library's
        content = more.get("content")
        if content and self._body:
            more["content"] = msgspec.json.encode(msgspec.json.decode(content) | self._body)
        return self._client.build_request(method, url, **more)

    async def send(self, request: httpx2.Request, **more: Any) -> httpx2.Response:  # noqa: ANN401
        # Not sooner: the library has a look at its own headers in between.
        request.headers.update(self._headers)
        answer = await self._client.send(request, **more)
        if answer.status_code >= 300:
            # It looks into a refusal without having read it.
            await answer.aread()
        return answer

    async def aclose(self) -> None:
        """It is not ours to close."""


def build(info: ModelInfo, access: Access, client: httpx2.AsyncClient) -> MistralModel:
    base = access.base_url.rstrip("/").removesuffix("/v1") or None
    ours = cast("httpx2.AsyncClient", _Client(client, access))
    return MistralModel(info.model, provider=MistralProvider(api_key=access.api_key, base_url=base, http_client=ours))


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    """The body is not ours to change here: it was given to the client."""
    return {name: value for name, value in settings.items() if name != "extra_body"}
