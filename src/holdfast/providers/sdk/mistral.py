"""Mistral. Restores data that pydantic-ai drops: calls split over several chunks, and signatures of reasoning."""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, cast

import httpx2
import msgspec
from mistralai.client.models import (
    AssistantMessage,
    ChatCompletionRequestMessage,
    CompletionEvent,
    TextChunk,
    ThinkChunk,
    ToolMessage,
)
from mistralai.client.utils.eventstreaming import EventStreamAsync
from pydantic_ai._parts_manager import ModelResponsePartsManager
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent, ThinkingPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.providers.mistral import MistralProvider

from holdfast.domain.model_requests import ModelInfo
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.shared_http_clients import USER_AGENT

__all__ = ["build", "refine"]

_MISTRAL_ID = re.compile("[a-zA-Z0-9]{9}")
_NO_ID = "null"
"""Value of the SDK for a call without an id."""


class _Client:
    """Wraps the shared client, because the SDK offers no way to add headers and body fields."""

    def __init__(self, client: httpx2.AsyncClient, access: ModelAccess) -> None:
        self._client = client
        self._headers = {"user-agent": USER_AGENT, **access.headers}
        self._body = access.body

    def build_request(self, method: str, url: str, **more: Any) -> httpx2.Request:  # noqa: ANN401 - the library's
        content = more.get("content")
        if content and self._body:
            more["content"] = msgspec.json.encode(msgspec.json.decode(content) | self._body)
        return self._client.build_request(method, url, **more)

    async def send(self, request: httpx2.Request, **more: Any) -> httpx2.Response:  # noqa: ANN401
        # Not earlier: the SDK inspects its own headers in between.
        request.headers.update(self._headers)
        answer = await self._client.send(request, **more)
        if answer.status_code >= 300:
            # The SDK reads the body of an error response without loading it first.
            await answer.aread()
        return answer

    async def aclose(self) -> None:
        """No-op: the client is shared."""


class _Parts(ModelResponsePartsManager):
    """Parts of a response, with data that only the raw chunk contains."""

    _seal: str | None = None

    async def reading(self, events: AsyncIterator[CompletionEvent]) -> AsyncGenerator[CompletionEvent, None]:
        async for event in events:
            self._seal = None
            for thought in (
                thought for choice in event.data.choices for thought in _think_chunks(choice.delta.content)
            ):
                self._seal = thought.signature or self._seal
                if thought.signature and not thought.thinking:
                    # The SDK would skip a signature without text.
                    thought.thinking = [TextChunk(text="")]
            yield event

    def handle_thinking_delta(self, **given: Any) -> Iterator[ModelResponseStreamEvent]:  # noqa: ANN401
        return super().handle_thinking_delta(**given | {"vendor_part_id": None}, signature=self._seal)

    def handle_tool_call_part(self, **given: Any) -> ModelResponseStreamEvent:  # noqa: ANN401
        # Calls arrive complete. A call in a later chunk is another call, although its index is 0 again.
        id = given.get("tool_call_id")
        return super().handle_tool_call_part(
            **given | {"vendor_part_id": None, "tool_call_id": None if id == _NO_ID else id}
        )


class _Model(MistralModel):
    async def _process_streamed_response(
        self, response: EventStreamAsync[CompletionEvent], model_request_parameters: ModelRequestParameters
    ) -> StreamedResponse:
        parts = _Parts(model_request_parameters=model_request_parameters)
        response.generator = parts.reading(response.generator)
        answer = await super()._process_streamed_response(response, model_request_parameters)
        answer._parts_manager = parts
        return answer

    async def _map_messages(
        self, messages: Sequence[ModelMessage], model_request_parameters: ModelRequestParameters
    ) -> list[ChatCompletionRequestMessage]:
        mapped = await super()._map_messages(messages, model_request_parameters)
        seals = _signatures(messages)
        for message in mapped:
            if isinstance(message, ToolMessage):
                message.tool_call_id = _to_mistral_id(str(message.tool_call_id))
            elif isinstance(message, AssistantMessage):
                for call in message.tool_calls or ():
                    call.id = _to_mistral_id(str(call.id))
                for thought in _think_chunks(message.content):
                    thought.signature = next(seals)
        return mapped


def _think_chunks(content: object) -> Iterator[ThinkChunk]:
    return (chunk for chunk in content if isinstance(chunk, ThinkChunk)) if isinstance(content, list) else iter(())


def _signatures(messages: Sequence[ModelMessage]) -> Iterator[str | None]:
    """Yield one signature per response with reasoning, because its reasoning is sent as one block."""
    for message in messages:
        if isinstance(message, ModelResponse):
            thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
            if thoughts:
                yield next((part.signature for part in reversed(thoughts) if part.signature), None)


def _to_mistral_id(id: str) -> str:
    """Convert a call id to Mistral's format; a conversation may have begun with another provider."""
    return id if _MISTRAL_ID.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:9]


def build(info: ModelInfo, access: ModelAccess, client: httpx2.AsyncClient) -> MistralModel:
    """Create the model."""
    base = access.base_url.rstrip("/").removesuffix("/v1") or None
    ours = cast("httpx2.AsyncClient", _Client(client, access))
    return _Model(info.model, provider=MistralProvider(api_key=access.api_key, base_url=base, http_client=ours))


def refine(settings: dict[str, Any], session: str) -> dict[str, Any]:
    """Remove extra body fields: `build` has passed them to the client."""
    return {name: value for name, value in settings.items() if name != "extra_body"}
