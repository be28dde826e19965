"""Providers and models as published to clients: facts and usability, without secrets. Pure."""

from collections.abc import Iterable

import msgspec

from holdfast.domain.models import ModelInfo
from holdfast.providers.offers import Described, Offer
from holdfast.providers.reach import Lack, Reach

__all__ = ["ModelView", "ProviderView", "model_view", "provider_view"]


class ModelView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model, with the field names of the wire protocol."""

    id: str
    name: str
    cost_per_1m_in: float
    cost_per_1m_out: float
    cost_per_1m_in_cached: float
    cost_per_1m_out_cached: float
    context_window: int
    default_max_tokens: int
    can_reason: bool
    supports_attachments: bool
    reasoning_levels: tuple[str, ...] = ()
    default_reasoning_effort: str = ""


class ProviderView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider and its models. `lack` is the reason why it cannot be used, or empty."""

    id: str
    name: str
    type: str
    models: tuple[ModelView, ...]
    api_key: str = ""
    """Environment variable of the key, as a template. Never the key itself."""
    api_endpoint: str = ""
    default_large_model_id: str = ""
    default_small_model_id: str = ""
    origin: str = "catalog"
    lack: str = ""

    @property
    def is_usable(self) -> bool:
        """True if the provider can be used."""
        return not self.lack


def model_view(info: ModelInfo) -> ModelView:
    """Convert a model to its view."""
    price = info.price
    return ModelView(
        info.model,
        info.name or info.model,
        price.input,
        price.output,
        price.cache_write,
        price.cache_read,
        info.context_window,
        info.max_output_tokens,
        info.can_reason,
        info.supports_images,
        info.reasoning_levels,
        info.default_reasoning_effort,
    )


def provider_view(offer: Offer, found: Reach | Lack, models: Iterable[Described]) -> ProviderView:
    """Convert a provider to its view."""
    variables = offer.catalog.api_key if offer.catalog else ()
    return ProviderView(
        offer.id,
        offer.name,
        offer.type,
        tuple(model_view(model.info) for model in models),
        f"${variables[0]}" if variables else "",
        # Only the address of the catalogue: an address in the settings may contain a key.
        offer.catalog.base_url if offer.catalog else "",
        offer.default_large,
        offer.default_small,
        offer.origin,
        found.sentence if isinstance(found, Lack) else "",
    )
