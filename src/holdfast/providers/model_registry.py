"""Provider registry for one state of the settings: usable providers, and the model that a selection denotes.

Expanding a template may run a command, and a stored key may be slow to read: both run in a thread, once.
"""

import asyncio
from collections.abc import Iterable
from functools import cached_property
from typing import TypeGuard

import msgspec

from holdfast.domain.errors import ProviderError
from holdfast.domain.models import ModelInfo
from holdfast.domain.settings import Selection, Settings
from holdfast.providers.catalog import Catalog, close_matches
from holdfast.providers.model_access import is_loopback
from holdfast.providers.model_discovery import (
    LOCAL_SERVERS,
    DiscoveredModel,
    DiscoveryResult,
    DiscoveryTarget,
    ModelDiscovery,
    ollama_address,
)
from holdfast.providers.provider_config import (
    Endpoint,
    EndpointSources,
    ModelSpec,
    Provider,
    Unavailable,
    describe,
    key_variables,
    models_of,
    offers_of,
    reach,
)
from holdfast.providers.provider_errors import redacted

__all__ = ["ModelChoice", "ModelRegistry", "ModelView", "ProviderView", "model_view", "provider_view"]


# Providers and models as published to clients: facts and usability, without secrets. Pure.


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


def provider_view(offer: Provider, found: Endpoint | Unavailable, models: Iterable[ModelSpec]) -> ProviderView:
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
        found.sentence if isinstance(found, Unavailable) else "",
    )


# Provider registry for one state of the settings: usable providers, and the model that a selection denotes.

_SET_UP = (
    "Store a key with `holdfast login PROVIDER`, or start a local model server; `holdfast models` lists what is "
    "usable. --model demo/tour selects the built-in scripted model."
)
_KINDS = {id: kind for id, _, kind, _ in LOCAL_SERVERS}


class ModelChoice(msgspec.Struct, frozen=True):
    """One model of a reachable provider."""

    offer: Provider
    reach: Endpoint
    model: ModelSpec
    selection: Selection


class ModelRegistry:
    """Providers and models available under one state of the settings. `tour` is the built-in scripted model, used
    when no other is available; its pick is None.
    """

    def __init__(
        self, catalog: Catalog, settings: Settings, sources: EndpointSources, discovery: ModelDiscovery, tour: ModelInfo
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._sources = sources
        self._discovery = discovery
        self._tour = tour
        self._reached: dict[str, Endpoint | Unavailable] = {}
        self._views: dict[str, ProviderView] = {}

    @cached_property
    def offers(self) -> dict[str, Provider]:
        """Providers by id, in the order in which they are tried."""
        local = [
            Provider(
                id, name, "openai-compat", "local", ollama_address(self._sources.environment) if id == "ollama" else url
            )
            for id, name, _, url in LOCAL_SERVERS
        ]
        return {offer.id: offer for offer in offers_of(self._catalog, self._settings, local)}

    # Selection

    async def pick(self, selection: Selection) -> ModelChoice | None:
        """Resolve a selection; without a provider and model, select automatically. None means the scripted model.
        Raises `ProviderError`.
        """
        if not f"{selection.provider}{selection.model}".isprintable():
            # Project settings can name models, and errors are printed on terminals.
            raise ProviderError(
                "A name of a model or provider has characters that cannot be shown: look at models in your settings.",
                title="Unknown Model",
                trouble="refused",
            )
        provider, model = self._split(selection)
        if provider == self._tour.provider:
            if model in ("", self._tour.model):
                return None
            raise _unknown_model("the scripted provider", self._tour.provider, model, [self._tour.model])
        if provider:
            offer = self._offer(provider)
            found = self._usable(offer, await self._reach(offer))
            model = model or await self._first_model(offer, found)
            if not model:
                raise await self._nothing_there(offer, found)
            return ModelChoice(offer, found, await self._model(offer, found, model), selection)
        return await self._by_model(model, selection) if model else await self._best(selection)

    async def pick_small(self, large: ModelChoice | None, selection: Selection) -> ModelChoice | None:
        """Return the small model for a large one: the provider's default, else the same model."""
        if large is None:
            return None
        name = large.offer.default_small
        model = describe(large.offer, name) if name else None
        return msgspec.structs.replace(large, model=model or large.model, selection=selection)

    def _split(self, selection: Selection) -> tuple[str, str]:
        """Split a model name that includes its provider."""
        if selection.provider:
            return selection.provider, selection.model
        head, slash, rest = selection.model.partition("/")
        if not slash or not rest:
            return "", selection.model
        if head == self._tour.provider:
            return head, rest
        # Many model names contain the maker's name and a slash; such a prefix is not a provider.
        offer = self.find(head)
        is_provider = offer is not None and (offer.catalog is None or describe(offer, rest) is not None)
        return (head, rest) if is_provider else ("", selection.model)

    def find(self, name: str) -> Provider | None:
        """Look up a provider by id or alias."""
        known = self._catalog.provider(name)
        return self.offers.get(name) or self.offers.get(known.id if known else name.lower())

    def _offer(self, name: str) -> Provider:
        offer = self.find(name)
        if offer is not None:
            return offer
        names = [*self.offers, self._tour.provider]
        raise ProviderError(
            f"There is no provider {name}.{_meant(close_matches(name, names))} `holdfast models --all` lists them; "
            f"for one of your own set providers.{name}.base_url.",
            title="Unknown Provider",
            trouble="refused",
        )

    async def _by_model(self, id: str, selection: Selection) -> ModelChoice | None:
        if id == self._tour.model:
            return None
        holders = [offer for offer in self.offers.values() if describe(offer, id) is not None]
        for offer in holders:
            found = await self._reach(offer)
            if isinstance(found, Endpoint):
                return ModelChoice(offer, found, await self._model(offer, found, id), selection)
        if holders:
            self._usable(holders[0], await self._reach(holders[0]))
        for offer in self._own():
            found = await self._reach(offer)
            if isinstance(found, Endpoint) and (await self._ask(offer, found)).model(id):
                return ModelChoice(offer, found, await self._model(offer, found, id), selection)
        names = [f"{offer.id}/{model.info.model}" for offer in self.offers.values() for model in models_of(offer)]
        raise ProviderError(
            f"There is no model {id}.{_meant(close_matches(id, names))} `holdfast models TERM` finds them.",
            title="Unknown Model",
            trouble="refused",
        )

    async def _best(self, selection: Selection) -> ModelChoice | None:
        """Select automatically: providers named in the settings, those with a key, local servers, then the scripted
        model.
        """
        offers = [offer for offer in self.offers.values() if offer.origin != "local" or offer.is_named]
        await asyncio.to_thread(self._try, offers)
        silent: list[tuple[Provider, Endpoint]] = []
        for offer in offers:
            found = await self._reach(offer)
            if _counts(found, offer):
                model = await self._first_model(offer, found)
                if model:
                    return ModelChoice(offer, found, await self._model(offer, found, model), selection)
                if offer.is_named or offer.origin == "settings":
                    silent.append((offer, found))
        pick = await self._best_local(selection)
        if pick is None and silent:
            # A server that the settings name is never replaced by the scripted model: its failure is reported.
            raise await self._nothing_there(*silent[0])
        return pick

    async def fallback_reason(self) -> str:
        """Return why no model is usable, with the deficiency of the first provider of the settings that has one."""
        named = [
            offer
            for offer in self.offers.values()
            if (offer.origin == "settings" or offer.is_named) and not offer.settings.disable
        ]
        lacks = [found for offer in named if isinstance(found := await self._reach(offer), Unavailable)]
        cause = f"No usable model: {lacks[0].sentence}" if lacks else "No usable model."
        return f"{cause} {_SET_UP}"

    async def _best_local(self, selection: Selection) -> ModelChoice | None:
        local = [
            (offer, found)
            for offer in self._own()
            if offer.origin == "local" and is_loopback(offer.base_url)
            if isinstance(found := await self._reach(offer), Endpoint)
        ]
        findings = await asyncio.gather(*(self._ask(offer, found) for offer, found in local))
        for (offer, found), finding in zip(local, findings, strict=True):
            if model := _best_of(finding.models):
                described = describe(offer, model.id, model)
                assert described is not None
                return ModelChoice(offer, found, described, selection)
        return None

    async def _first_model(self, offer: Provider, found: Endpoint) -> str:
        if offer.default_large:
            return offer.default_large
        if offer.settings.models:
            return offer.settings.models[0].id
        best = _best_of((await self._ask(offer, found)).models) if _can_ask(offer) else None
        return best.id if best else ""

    async def _nothing_there(self, offer: Provider, found: Endpoint) -> ProviderError:
        advice = f"name one as {offer.id}/MODEL"
        if _can_ask(offer) and not (finding := await self._ask(offer, found)).has_answered:
            where = redacted(found.base_url, (found.api_key,))
            message = f"{offer.name} does not answer at {where}: {finding.error or 'no list of models came'}."
            message += f" Start it, or {advice}."
            return ProviderError(message, title="Provider Not Ready", trouble="connection")
        message = f"{offer.name} is chosen, but none of its models: {advice}."
        return ProviderError(message, title="Unknown Model", trouble="refused")

    async def _model(self, offer: Provider, found: Endpoint, id: str) -> ModelSpec:
        """Describe a model. Raises `ProviderError` if the provider's known models do not include it."""
        place = _place(offer, found)
        remembered = self._discovery.known(place)
        described = describe(offer, id, remembered.model(id) if remembered else None)
        if described is not None:
            if not described.info.context_window and _can_ask(offer):
                self._discovery.ask_in_background(place)
            return described
        finding = await self._ask(offer, found) if _can_ask(offer) else DiscoveryResult()
        # Ollama appends ":latest" to names without a tag.
        listed = finding.model(id) or finding.model(f"{id}:latest")
        names = [model.info.model for model in models_of(offer, finding.models)]
        if listed is None and names:
            raise _unknown_model(offer.name, offer.id, id, names)
        # The provider publishes no model list; let it validate the name.
        named = describe(offer, listed.id if listed else id, listed or DiscoveredModel(id))
        assert named is not None
        return named

    def key_variables(self) -> set[str]:
        """Return the environment variables that may contain a key."""
        return {name for offer in self.offers.values() for name in key_variables(offer)}

    # Discovery

    def _own(self) -> list[Provider]:
        """Providers whose models are known only by a query."""
        return [offer for offer in self.offers.values() if offer.origin in ("settings", "local") and _can_ask(offer)]

    async def _ask(self, offer: Provider, found: Endpoint) -> DiscoveryResult:
        return await self._discovery.ask(_place(offer, found))

    async def _reach(self, offer: Provider) -> Endpoint | Unavailable:
        known = self._reached.get(offer.id)
        if known is None:
            known = self._reached[offer.id] = await asyncio.to_thread(reach, offer, self._sources)
        return known

    def _try(self, offers: Iterable[Provider]) -> None:
        """Resolve providers one after the other until one is usable. One thread for all is faster than
        one thread each.
        """
        for offer in offers:
            if offer.id not in self._reached:
                self._reached[offer.id] = reach(offer, self._sources)
            if _counts(self._reached[offer.id], offer):
                return

    def _usable(self, offer: Provider, found: Endpoint | Unavailable) -> Endpoint:
        if isinstance(found, Endpoint):
            return found
        raise ProviderError(
            found.sentence, title="Provider Not Ready", trouble="credentials" if found.is_key else "refused"
        )

    # Views

    async def view(self, *, refresh: bool = False) -> tuple[ProviderView, ...]:
        """Return all providers. Waits for servers to list their models.

        With `refresh`, usable providers of the catalogue are queried too, if their API lists models: the result then
        includes models that are newer than the catalogue.
        """
        providers = await self._tried()
        if refresh:
            await asyncio.gather(*(self._refresh_view(provider) for provider in providers))
        return await self._views_of(providers, asks=True)

    async def usable_view(self) -> tuple[ProviderView, ...]:
        """Return the usable providers with their cached models. Does not wait for servers."""
        offers = [offer for offer in await self._tried() if isinstance(self._reached[offer.id], Endpoint)]
        return tuple(view for view in await self._views_of(offers, asks=False) if view.is_usable)

    async def _tried(self) -> list[Provider]:
        offers = list(self.offers.values())
        unknown = [offer for offer in offers if offer.id not in self._reached]
        if unknown:
            self._reached |= await asyncio.to_thread(lambda: {item.id: reach(item, self._sources) for item in unknown})
        return offers

    async def _views_of(self, offers: Iterable[Provider], *, asks: bool) -> tuple[ProviderView, ...]:
        views = await asyncio.gather(*(self._view(offer, self._reached[offer.id], asks=asks) for offer in offers))
        tour = ProviderView(
            self._tour.provider, "Scripted", "scripted", (model_view(self._tour),), origin="scripted",
            default_large_model_id=self._tour.model, default_small_model_id=self._tour.model,
        )  # fmt: skip
        return (*views, tour)

    async def _refresh_view(self, offer: Provider) -> None:
        found = self._reached[offer.id]
        if offer.origin == "catalog" and isinstance(found, Endpoint) and _can_ask(offer):
            listed = (await self._ask(offer, found)).models
            self._views[offer.id] = provider_view(offer, found, models_of(offer, listed))

    async def _view(self, offer: Provider, found: Endpoint | Unavailable, *, asks: bool) -> ProviderView:
        if offer.origin == "catalog":
            if offer.id not in self._views:
                self._views[offer.id] = provider_view(offer, found, models_of(offer))
            return self._views[offer.id]
        finding: DiscoveryResult | None = None
        if isinstance(found, Endpoint) and _can_ask(offer):
            is_ours = offer.is_named or is_loopback(found.base_url)
            place = _place(offer, found)
            finding = self._discovery.known(place)
            if finding is None and is_ours and asks:
                finding = await self._discovery.ask(place)
            elif finding is None and is_ours:
                self._discovery.ask_in_background(place)
        models = models_of(offer, finding.models if finding else ())
        if offer.origin == "local" and not models and isinstance(found, Endpoint):
            found = Unavailable(f"{offer.name} does not answer at {offer.base_url}.")
        return provider_view(offer, found, models)


def _counts(found: Endpoint | Unavailable, offer: Provider) -> TypeGuard[Endpoint]:
    """Return whether the provider may be selected automatically. Ambient credentials, such as AWS, do not qualify."""
    return isinstance(found, Endpoint) and (offer.is_named or not found.is_ambient)


def _can_ask(offer: Provider) -> bool:
    return offer.type == "openai-compat" and offer.settings.discover_models


def _place(offer: Provider, found: Endpoint) -> DiscoveryTarget:
    headers = {"authorization": f"Bearer {found.api_key}"} if found.api_key else {}
    headers |= {name.lower(): value for name, value in found.headers.items()}
    return DiscoveryTarget(found.base_url, _KINDS.get(offer.id, "openai"), tuple(sorted(headers.items())))


def _best_of(models: Iterable[DiscoveredModel]) -> DiscoveredModel | None:
    """Prefer models that can use tools, then those in memory; otherwise keep the server's order."""
    ranked = sorted(models, key=lambda model: (model.tools is False, not model.is_loaded))
    return ranked[0] if ranked else None


def _meant(names: list[str]) -> str:
    return f" Did you mean {' or '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}?" if names else ""


def _unknown_model(who: str, provider: str, id: str, names: Iterable[str]) -> ProviderError:
    return ProviderError(
        f"There is no model {id} at {who}.{_meant(close_matches(id, names))} `holdfast models {provider}` lists them; "
        f"one that is newer can be described under providers.{provider}.models.",
        title="Unknown Model",
        trouble="refused",
    )
