"""Factory for model adapters. The adapter module is imported when the first model of its kind is built."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

import msgspec

from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.settings import Selection
from holdfast.providers.adapter_config import BETWEEN, FIRST_BYTE, ModelAccess
from holdfast.providers.effective_providers import Endpoint, ModelSpec, Provider, adapt_selection
from holdfast.providers.shared_http_clients import in_thread

__all__ = ["ModelAdapter", "ModelConfig", "build", "configure_model", "reasoning_body"]


def reasoning_body(dialect: str, info: ModelInfo, selection: Selection) -> dict[str, Any]:
    """Return additions to the request body. A value of None removes a key that is sent by default."""
    wanted_effort = selection.reasoning_effort
    if not dialect or not info.can_reason or not (wanted_effort or selection.think):
        return {}
    effort = wanted_effort or info.default_reasoning_effort
    is_on = effort != "none"
    body: dict[str, Any] = {}
    match dialect:
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


_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


class ModelAdapter(Protocol):
    """A model as the engine uses it."""

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Send a request and yield the parts of the response."""
        ...


class ModelConfig(msgspec.Struct, frozen=True):
    """Complete configuration of a model instance. Equal configurations build equal models. The repr omits the key."""

    type: str
    info: ModelInfo
    access: ModelAccess
    selection: Selection

    def __repr__(self) -> str:
        return f"ModelConfig({self.info.provider}/{self.info.model})"

    def cache_key(self) -> bytes:
        """Return a cache key; equal configurations have equal keys."""
        return msgspec.json.encode(self, order="sorted")


def configure_model(provider: Provider, endpoint: Endpoint, model: ModelSpec, selection: Selection) -> ModelConfig:
    """Combine a provider, its endpoint, a model and a selection into a configuration.

    Precedence of options, lowest first: reasoning dialect of the server, provider, model. Sampling parameters of the
    selection take precedence over those of the model.
    """
    info, selection = adapt_selection(selection, model)
    options = dict(model.options)
    given = {name: options.pop(name, None) for name in _SAMPLING}
    inner = options.pop("provider_options", {})
    options |= inner if isinstance(inner, dict) else {}
    sampling: dict[str, Any] = {
        name: value for name, value in given.items() if value is not None and getattr(selection, name) is None
    }
    dialect = reasoning_body(model.thinking, info, selection) if model.type == "openai-compat" else {}
    named = {name: value for name, value in provider.settings.provider_options.items() if name not in endpoint.extras}
    access = ModelAccess(
        # A model of the catalogue may have its own address; the provider's expanded address applies otherwise.
        base_url=model.base_url if model.base_url != provider.base_url else endpoint.base_url,
        api_key=endpoint.api_key,
        headers=endpoint.headers,
        body=endpoint.body,
        options=dialect | named | options,
        system_prefix=provider.settings.system_prompt_prefix,
        first_byte=float(provider.settings.timeout or FIRST_BYTE),
        between=float(provider.settings.timeout or BETWEEN),
        extras=endpoint.extras,
    )
    selection = msgspec.structs.replace(selection, provider=info.provider, model=info.model, **sampling)
    return ModelConfig(model.type, info, access, selection)


async def build(plan: ModelConfig) -> ModelAdapter:
    """Build the adapter for a configuration. Its module is imported in a thread; its SDK is loaded with the
    first request.
    """
    adapted: ModelAdapter
    if plan.type == "openai-compat":
        compatible = await in_thread("holdfast.providers.openai_compatible")
        adapted = compatible.CompatibleModel(plan.info, plan.access, plan.selection)
    else:
        adapter = await in_thread("holdfast.providers.pydantic_ai")
        adapted = adapter.PydanticModel(plan.info, plan.access, plan.selection, kind=plan.type)
    return adapted
