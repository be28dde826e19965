"""Makes the object that speaks to a model. What it needs is imported when the first one of its kind is made."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

import msgspec

from holdfast.domain.models import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.settings import Selection
from holdfast.providers.access import BETWEEN, FIRST_BYTE, Access
from holdfast.providers.client import in_thread
from holdfast.providers.dialects import reasoning_body
from holdfast.providers.offers import Described, Offer, fitting
from holdfast.providers.reach import Reach

__all__ = ["Blueprint", "Speaker", "blueprint", "build"]

_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


class Speaker(Protocol):
    """A model that can be asked, as the engine knows it."""

    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]: ...


class Blueprint(msgspec.Struct, frozen=True):
    """All that decides how a model is asked. Two that are equal make models that are. Never printed: it holds a key."""

    type: str
    info: ModelInfo
    access: Access
    selection: Selection

    def __repr__(self) -> str:
        return f"Blueprint({self.info.provider}/{self.info.model})"

    def mark(self) -> bytes:
        """The same for equal ones."""
        return msgspec.json.encode(self, order="sorted")


def blueprint(offer: Offer, reach: Reach, model: Described, selection: Selection) -> Blueprint:
    """Options add up: how the server wants to be told, the provider's, the model's; the selection's come last."""
    info, selection = fitting(selection, model)
    options = dict(model.options)
    given = {name: options.pop(name, None) for name in _SAMPLING}
    inner = options.pop("provider_options", {})
    options |= inner if isinstance(inner, dict) else {}
    sampling: dict[str, Any] = {
        name: value for name, value in given.items() if value is not None and getattr(selection, name) is None
    }
    dialect = reasoning_body(model.thinking, info, selection) if model.type == "openai-compat" else {}
    named = {name: value for name, value in offer.settings.provider_options.items() if name not in reach.extras}
    access = Access(
        base_url=model.base_url if model.base_url != offer.base_url else reach.base_url,
        api_key=reach.api_key,
        headers=reach.headers,
        body=reach.body,
        options=dialect | named | options,
        system_prefix=offer.settings.system_prompt_prefix,
        first_byte=float(offer.settings.timeout or FIRST_BYTE),
        between=float(offer.settings.timeout or BETWEEN),
        extras=reach.extras,
    )
    selection = msgspec.structs.replace(selection, provider=info.provider, model=info.model, **sampling)
    return Blueprint(model.type, info, access, selection)


async def build(plan: Blueprint) -> Speaker:
    """Imports the adapter in a thread, if it is the first of its kind; its library comes with the first request."""
    made: Speaker
    if plan.type == "openai-compat":
        compatible = await in_thread("holdfast.providers.compatible")
        made = compatible.CompatibleModel(plan.info, plan.access, plan.selection)
    else:
        adapter = await in_thread("holdfast.providers.pydantic")
        made = adapter.PydanticModel(plan.info, plan.access, plan.selection, kind=plan.type)
    return made
