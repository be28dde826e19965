"""Providers and models as others may see them: facts, and whether they can be used. No secrets. Pure."""

from collections.abc import Iterable

import msgspec

from holdfast.domain.models import ModelInfo
from holdfast.providers.offers import Described, Offer
from holdfast.providers.reach import Lack, Reach

__all__ = ["ModelView", "ProviderView", "model_view", "provider_view"]


class ModelView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model, with the names that screens know."""

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
    """A provider and what it offers. `lack` says why it cannot be used, or is empty."""

    id: str
    name: str
    type: str
    models: tuple[ModelView, ...]
    api_key: str = ""
    """Which variable the key is looked for in, as a template. Never a key."""
    api_endpoint: str = ""
    default_large_model_id: str = ""
    default_small_model_id: str = ""
    origin: str = "catalog"
    lack: str = ""

    @property
    def is_usable(self) -> bool:
        return not self.lack


def model_view(info: ModelInfo) -> ModelView:
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
    variables = offer.catalog.api_key if offer.catalog else ()
    return ProviderView(
        offer.id,
        offer.name,
        offer.type,
        tuple(model_view(model.info) for model in models),
        f"${variables[0]}" if variables else "",
        # Only the catalogue's own: a user's address may hold a key.
        offer.catalog.base_url if offer.catalog else "",
        offer.default_large,
        offer.default_small,
        offer.origin,
        found.sentence if isinstance(found, Lack) else "",
    )
