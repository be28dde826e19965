"""Effective providers: catalogue entries overridden by settings, field by field. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from holdfast.domain.models import ModelInfo
from holdfast.domain.settings import ModelSettings, ProviderSettings, Selection, Settings
from holdfast.domain.usage import Price
from holdfast.providers.catalog import Catalog, CatalogModel, CatalogProvider, info_of
from holdfast.providers.findings import Found

__all__ = ["WIRES", "Described", "Offer", "Origin", "describe", "fitting", "models_of", "offers_of", "wire_of"]

WIRES = (
    "openai-compat",
    "openai",
    "openai-responses",
    "openai-chat",
    "anthropic",
    "gemini",
    "vertexai",
    "bedrock",
    "azure",
    "mistral",
)
"""Valid values of a provider's `type`. `openai` is the responses API at OpenAI itself, the chat API elsewhere."""

_OTHER_NAMES = {
    "google": "gemini",
    "google-vertex": "vertexai",
    "vertex": "vertexai",
    "amazon-bedrock": "bedrock",
    **dict.fromkeys(
        ("openrouter", "openai-compatible", "vercel", "ollama", "lmstudio", "llamacpp", "vllm", "litellm", "omlx"),
        "openai-compat",
    ),
}

_MEDIA_IN_RESULTS = frozenset({"anthropic", "bedrock"})
"""Wires on which a tool result may contain an image."""

Origin = Literal["catalog", "settings", "local"]
"""Source of a provider's definition."""


def wire_of(name: str) -> str:
    """Return the wire for a `type` or one of its aliases; unknown names are returned unchanged."""
    name = name.strip().lower()
    return _OTHER_NAMES.get(name, name)


class Offer(msgspec.Struct, frozen=True):
    """One effective provider. Its templates are not expanded yet."""

    id: str
    name: str
    type: str
    origin: Origin
    base_url: str = ""
    default_large: str = ""
    default_small: str = ""
    settings: ProviderSettings = ProviderSettings()
    catalog: CatalogProvider | None = None
    path: tuple[str, ...] = ()
    """Its path in the settings; empty if they do not mention it."""

    @property
    def is_named(self) -> bool:
        """True if the settings mention the provider."""
        return bool(self.path)


class Described(msgspec.Struct, frozen=True):
    """A model of an offer: its facts, and its wire if it differs from the provider's."""

    info: ModelInfo
    type: str
    base_url: str
    thinking: str = ""
    options: dict[str, Any] = {}
    knows_levels: bool = False
    """True if an empty list of reasoning levels means that there are none."""


def offers_of(catalog: Catalog, settings: Settings, local: Iterable[Offer] = ()) -> Iterator[Offer]:
    """Yield all providers, each id once: those of the settings, then the catalogue, then local servers."""
    seen: set[str] = set()
    at_home = {offer.id: offer for offer in local}
    for name, given in settings.providers.items():
        offer = _with_settings(name, given, catalog, at_home.get(name))
        if offer.id not in seen:
            seen.add(offer.id)
            yield offer
    if settings.options.disable_default_providers:
        return
    for known in catalog.providers:
        if known.id not in seen:
            yield _plain(known)
    for offer in at_home.values():
        if offer.id not in seen:
            yield offer


def _plain(known: CatalogProvider) -> Offer:
    return Offer(
        known.id,
        known.name,
        known.type,
        "catalog",
        known.base_url,
        known.default_large,
        known.default_small,
        catalog=known,
    )


def _with_settings(name: str, given: ProviderSettings, catalog: Catalog, local: Offer | None) -> Offer:
    """Apply settings to a provider. `id` derives another name from a catalogue provider, e.g. for a second account."""
    base = local or Offer(name, name, "openai-compat", "settings")
    if (known := catalog.provider(name)) is not None:
        base = _plain(known)
    elif given.id and (known := catalog.provider(given.id)) is not None:
        base = msgspec.structs.replace(_plain(known), id=name, name=f"{known.name} ({name})")
    return msgspec.structs.replace(
        base,
        name=given.name or base.name,
        type=wire_of(given.type) or base.type,
        base_url=given.base_url or base.base_url,
        settings=given,
        path=("providers", name),
    )


def describe(offer: Offer, id: str, found: Found | None = None) -> Described | None:
    """Combine the facts about a model, in order of precedence: settings, catalogue, server. None if it is unknown."""
    listed = offer.catalog.model(id) if offer.catalog else None
    given = next((model for model in offer.settings.models if model.id == id), None)
    if listed is None and given is None and found is None:
        return None
    wire = (listed.type if listed and not offer.settings.type else "") or offer.type
    base_url = (listed.base_url if listed and not offer.settings.base_url else "") or offer.base_url
    info = info_of(offer.id, listed or CatalogModel(id))
    if found is not None:
        info = _with_found(info, found)
    if given is not None:
        info = _with_given(info, given)
    if offer.settings.flat_rate:
        info = msgspec.structs.replace(info, price=Price())
    info = msgspec.structs.replace(info, takes_media_in_results=info.supports_images and wire in _MEDIA_IN_RESULTS)
    knows_levels = listed is not None or (given is not None and given.reasoning_levels is not None)
    thinking = listed.thinking if listed else ""
    return Described(info, wire, base_url, thinking, given.options if given else {}, knows_levels)


def models_of(offer: Offer, found: Iterable[Found] = ()) -> list[Described]:
    """Return all models of a provider, each id once; those listed in the settings come first."""
    by_id = {model.id: model for model in found}
    names = dict.fromkeys(model.id for model in offer.settings.models)
    names |= dict.fromkeys(model.id for model in (offer.catalog.models if offer.catalog else ()))
    names |= dict.fromkeys(by_id)
    described = (describe(offer, name, by_id.get(name)) for name in names)
    return [model for model in described if model is not None]


def _with_found(info: ModelInfo, found: Found) -> ModelInfo:
    return msgspec.structs.replace(
        info,
        name=info.name if info.name != info.model else found.name or info.name,
        context_window=info.context_window or found.context_window,
        max_output_tokens=info.max_output_tokens or found.max_tokens,
        supports_images=info.supports_images or bool(found.images),
        can_reason=info.can_reason or bool(found.can_reason),
    )


def _with_given(info: ModelInfo, given: ModelSettings) -> ModelInfo:
    price = info.price
    return msgspec.structs.replace(
        info,
        name=given.name or info.name,
        context_window=_or(given.context_window, info.context_window),
        max_output_tokens=_or(given.default_max_tokens, info.max_output_tokens),
        price=Price(
            _or(given.cost_per_1m_in, price.input),
            _or(given.cost_per_1m_out, price.output),
            # The names follow the wire: cache writes count as input, cache reads as output.
            _or(given.cost_per_1m_out_cached, price.cache_read),
            _or(given.cost_per_1m_in_cached, price.cache_write),
        ),
        supports_images=_or(given.supports_attachments, info.supports_images),
        can_reason=_or(given.can_reason, info.can_reason or bool(given.reasoning_levels)),
        reasoning_levels=_or(given.reasoning_levels, info.reasoning_levels),
        default_reasoning_effort=given.default_reasoning_effort or info.default_reasoning_effort,
    )


def _or(given: Any, known: Any) -> Any:  # noqa: ANN401 - any fact
    return known if given is None else given


def fitting(selection: Selection, model: Described) -> tuple[ModelInfo, Selection]:
    """Adapt a selection to a model: reasoning effort only if the model can reason, and only a level that
    it supports.
    """
    info = model.info
    is_asked = bool(selection.reasoning_effort or selection.think)
    if is_asked and not info.can_reason and not model.knows_levels:
        # Support for reasoning is unknown; the user's selection decides.
        info = msgspec.structs.replace(info, can_reason=True)
    if not info.can_reason:
        return info, msgspec.structs.replace(selection, reasoning_effort="", think=False)
    asked = selection.reasoning_effort
    if not asked or asked in info.reasoning_levels or not (model.knows_levels or info.reasoning_levels):
        return info, selection
    if not info.reasoning_levels:
        return info, msgspec.structs.replace(selection, reasoning_effort="", think=asked != "none")
    return info, msgspec.structs.replace(selection, reasoning_effort=info.default_reasoning_effort)
