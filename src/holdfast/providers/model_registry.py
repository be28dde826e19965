"""Provider registry for one state of the settings: usable providers, and the model that a selection denotes.

Expanding a template may run a command, and a stored key may be slow to read: both run in a thread, once.
"""

import asyncio
from collections.abc import Iterable
from functools import cached_property
from typing import TypeGuard

import msgspec

from holdfast.domain.errors import NoUsableModel, ProviderError
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.settings import Selection, Settings
from holdfast.providers.adapter_config import is_loopback
from holdfast.providers.catalog import Catalog, close_matches
from holdfast.providers.effective_providers import (
    Endpoint,
    EndpointSources,
    ModelSpec,
    Provider,
    Unavailable,
    describe,
    effective_providers,
    key_variables,
    models_of,
    resolve_endpoint,
)
from holdfast.providers.model_discovery import (
    LOCAL_SERVERS,
    DiscoveredModel,
    DiscoveryResult,
    DiscoveryTarget,
    ModelDiscovery,
    ollama_address,
)
from holdfast.providers.provider_errors import redact

__all__ = ["ModelChoice", "ModelRegistry", "ModelView", "ProviderView", "model_view", "provider_view"]
_SETUP_ADVICE = (
    "Store a key with `holdfast login PROVIDER`, or start a local model server; `holdfast models` lists what is "
    "usable. --model demo/tour selects the built-in scripted model."
)
_KINDS = {id: kind for id, _, kind, _ in LOCAL_SERVERS}


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


def provider_view(provider: Provider, found: Endpoint | Unavailable, models: Iterable[ModelSpec]) -> ProviderView:
    """Convert a provider to its view."""
    variables = provider.catalog.api_key if provider.catalog else ()
    return ProviderView(
        provider.id,
        provider.name,
        provider.type,
        tuple(model_view(model.info) for model in models),
        f"${variables[0]}" if variables else "",
        # Only the address of the catalogue: an address in the settings may contain a key.
        provider.catalog.base_url if provider.catalog else "",
        provider.default_large,
        provider.default_small,
        provider.origin,
        found.sentence if isinstance(found, Unavailable) else "",
    )


class ModelChoice(msgspec.Struct, frozen=True):
    """One model of a reachable provider."""

    provider: Provider
    endpoint: Endpoint
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
        self._endpoints: dict[str, Endpoint | Unavailable] = {}
        self._views: dict[str, ProviderView] = {}

    @cached_property
    def providers(self) -> dict[str, Provider]:
        """Providers by id, in the order in which they are tried."""
        local = [
            Provider(
                id, name, "openai-compat", "local", ollama_address(self._sources.environment) if id == "ollama" else url
            )
            for id, name, _, url in LOCAL_SERVERS
        ]
        return {provider.id: provider for provider in effective_providers(self._catalog, self._settings, local)}

    # Selection

    async def pick(self, selection: Selection) -> ModelChoice | None:
        """Resolve a selection; without a provider and model, select automatically. None means the scripted model.
        Raises `ProviderError`.
        """
        if not f"{selection.provider}{selection.model}".isprintable():
            # Project settings can name models, and errors are printed on terminals.
            raise ProviderError(
                "A name of a model or provider contains characters that cannot be displayed: check models in"
                " your settings.",
                title="Unknown Model",
                trouble="refused",
            )
        name, model = self._split(selection)
        if name == self._tour.provider:
            if model in ("", self._tour.model):
                return None
            raise _unknown_model("the scripted provider", self._tour.provider, model, [self._tour.model])
        if name:
            provider = self._provider(name)
            found = self._require_endpoint(provider, await self._endpoint(provider))
            model = model or await self._first_model(provider, found)
            if not model:
                raise await self._no_model_error(provider, found)
            return ModelChoice(provider, found, await self._model(provider, found, model), selection)
        return await self._select_by_model(model, selection) if model else await self._select_automatically(selection)

    async def pick_small(self, large: ModelChoice | None, selection: Selection) -> ModelChoice | None:
        """Return the small model for a large one: the provider's default, else the same model."""
        if large is None:
            return None
        name = large.provider.default_small
        model = describe(large.provider, name) if name else None
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
        provider = self.find(head)
        is_provider = provider is not None and (provider.catalog is None or describe(provider, rest) is not None)
        return (head, rest) if is_provider else ("", selection.model)

    def find(self, name: str) -> Provider | None:
        """Look up a provider by id or alias."""
        known = self._catalog.provider(name)
        return self.providers.get(name) or self.providers.get(known.id if known else name.lower())

    def _provider(self, name: str) -> Provider:
        provider = self.find(name)
        if provider is not None:
            return provider
        names = [*self.providers, self._tour.provider]
        raise ProviderError(
            f"There is no provider {name}.{_suggest(close_matches(name, names))} `holdfast models --all` lists them; "
            f"for one of your own set providers.{name}.base_url.",
            title="Unknown Provider",
            trouble="refused",
        )

    async def _select_by_model(self, id: str, selection: Selection) -> ModelChoice | None:
        if id == self._tour.model:
            return None
        holders = [provider for provider in self.providers.values() if describe(provider, id) is not None]
        for provider in holders:
            found = await self._endpoint(provider)
            if isinstance(found, Endpoint):
                return ModelChoice(provider, found, await self._model(provider, found, id), selection)
        if holders:
            self._require_endpoint(holders[0], await self._endpoint(holders[0]))
        for provider in self._discovered_providers():
            found = await self._endpoint(provider)
            if isinstance(found, Endpoint) and (await self._query(provider, found)).model(id):
                return ModelChoice(provider, found, await self._model(provider, found, id), selection)
        names = [
            f"{provider.id}/{model.info.model}" for provider in self.providers.values() for model in models_of(provider)
        ]
        raise ProviderError(
            f"There is no model {id}.{_suggest(close_matches(id, names))} `holdfast models TERM` finds them.",
            title="Unknown Model",
            trouble="refused",
        )

    async def _select_automatically(self, selection: Selection) -> ModelChoice | None:
        """Select automatically: providers named in the settings, those with a key, local servers, then the scripted
        model.
        """
        providers = [
            provider for provider in self.providers.values() if provider.origin != "local" or provider.is_named
        ]
        await asyncio.to_thread(self._resolve_until_usable, providers)
        silent: list[tuple[Provider, Endpoint]] = []
        for provider in providers:
            found = await self._endpoint(provider)
            if _qualifies(found, provider):
                model = await self._first_model(provider, found)
                if model:
                    return ModelChoice(provider, found, await self._model(provider, found, model), selection)
                if provider.is_named or provider.origin == "settings":
                    silent.append((provider, found))
        pick = await self._select_local(selection)
        if pick is None and silent:
            # A server that the settings name is never replaced by the scripted model: its failure is reported.
            raise await self._no_model_error(*silent[0])
        return pick

    async def fallback_reason(self) -> str:
        """Return why no model is usable, with the deficiency of the first provider of the settings that has one."""
        named = [
            provider
            for provider in self.providers.values()
            if (provider.origin == "settings" or provider.is_named) and not provider.settings.disable
        ]
        lacks = [found for provider in named if isinstance(found := await self._endpoint(provider), Unavailable)]
        cause = f"No usable model: {lacks[0].sentence}" if lacks else "No usable model."
        return f"{cause} {_SETUP_ADVICE}"

    async def _select_local(self, selection: Selection) -> ModelChoice | None:
        local = [
            (provider, found)
            for provider in self._discovered_providers()
            if provider.origin == "local" and is_loopback(provider.base_url)
            if isinstance(found := await self._endpoint(provider), Endpoint)
        ]
        results = await asyncio.gather(*(self._query(provider, found) for provider, found in local))
        for (provider, found), result in zip(local, results, strict=True):
            if model := _preferred_model(result.models):
                described = describe(provider, model.id, model)
                assert described is not None
                return ModelChoice(provider, found, described, selection)
        return None

    async def _first_model(self, provider: Provider, found: Endpoint) -> str:
        if provider.default_large:
            return provider.default_large
        if provider.settings.models:
            return provider.settings.models[0].id
        best = _preferred_model((await self._query(provider, found)).models) if _lists_models(provider) else None
        return best.id if best else ""

    async def _no_model_error(self, provider: Provider, found: Endpoint) -> ProviderError:
        advice = f"name one as {provider.id}/MODEL"
        if _lists_models(provider) and not (result := await self._query(provider, found)).has_answered:
            where = redact(found.base_url, (found.api_key,))
            message = f"{provider.name} does not answer at {where}: {result.error or 'it returned no list of models'}."
            message += f" Start it, or {advice}."
            return NoUsableModel(message, title="Provider Not Ready", trouble="connection")
        message = f"{provider.name} is chosen, but none of its models: {advice}."
        return ProviderError(message, title="Unknown Model", trouble="refused")

    async def _model(self, provider: Provider, found: Endpoint, id: str) -> ModelSpec:
        """Describe a model. Raises `ProviderError` if the provider's known models do not include it."""
        target = _target(provider, found)
        cached = self._discovery.cached(target)
        described = describe(provider, id, cached.model(id) if cached else None)
        if described is not None:
            if not described.info.context_window and _lists_models(provider):
                self._discovery.query_in_background(target)
            return described
        result = await self._query(provider, found) if _lists_models(provider) else DiscoveryResult()
        # Ollama appends ":latest" to names without a tag.
        listed = result.model(id) or result.model(f"{id}:latest")
        names = [model.info.model for model in models_of(provider, result.models)]
        if listed is None and names:
            raise _unknown_model(provider.name, provider.id, id, names)
        # The provider publishes no model list; let it validate the name.
        named = describe(provider, listed.id if listed else id, listed or DiscoveredModel(id))
        assert named is not None
        return named

    def key_variables(self) -> set[str]:
        """Return the environment variables that may contain a key."""
        return {name for provider in self.providers.values() for name in key_variables(provider)}

    # Discovery

    def _discovered_providers(self) -> list[Provider]:
        """Providers whose models are known only by a query."""
        return [
            provider
            for provider in self.providers.values()
            if provider.origin in ("settings", "local") and _lists_models(provider)
        ]

    async def _query(self, provider: Provider, found: Endpoint) -> DiscoveryResult:
        return await self._discovery.query(_target(provider, found))

    async def _endpoint(self, provider: Provider) -> Endpoint | Unavailable:
        known = self._endpoints.get(provider.id)
        if known is None:
            known = self._endpoints[provider.id] = await asyncio.to_thread(resolve_endpoint, provider, self._sources)
        return known

    def _resolve_until_usable(self, providers: Iterable[Provider]) -> None:
        """Resolve providers one after the other until one is usable. One thread for all is faster than
        one thread each.
        """
        for provider in providers:
            if provider.id not in self._endpoints:
                self._endpoints[provider.id] = resolve_endpoint(provider, self._sources)
            if _qualifies(self._endpoints[provider.id], provider):
                return

    def _require_endpoint(self, provider: Provider, found: Endpoint | Unavailable) -> Endpoint:
        if isinstance(found, Endpoint):
            return found
        raise NoUsableModel(
            found.sentence, title="Provider Not Ready", trouble="credentials" if found.is_key else "refused"
        )

    # Views

    async def view(self, *, refresh: bool = False) -> tuple[ProviderView, ...]:
        """Return all providers. Waits for servers to list their models.

        With `refresh`, usable providers of the catalogue are queried too, if their API lists models: the result then
        includes models that are newer than the catalogue.
        """
        providers = await self._resolve_all()
        if refresh:
            await asyncio.gather(*(self._refresh_view(provider) for provider in providers))
        return await self._views_of(providers, waits=True)

    async def usable_view(self) -> tuple[ProviderView, ...]:
        """Return the usable providers with their cached models. Does not wait for servers."""
        providers = [
            provider for provider in await self._resolve_all() if isinstance(self._endpoints[provider.id], Endpoint)
        ]
        return tuple(view for view in await self._views_of(providers, waits=False) if view.is_usable)

    async def _resolve_all(self) -> list[Provider]:
        providers = list(self.providers.values())
        unknown = [provider for provider in providers if provider.id not in self._endpoints]
        if unknown:
            self._endpoints |= await asyncio.to_thread(
                lambda: {item.id: resolve_endpoint(item, self._sources) for item in unknown}
            )
        return providers

    async def _views_of(self, providers: Iterable[Provider], *, waits: bool) -> tuple[ProviderView, ...]:
        views = await asyncio.gather(
            *(self._view(provider, self._endpoints[provider.id], waits=waits) for provider in providers)
        )
        tour = ProviderView(
            self._tour.provider, "Scripted", "scripted", (model_view(self._tour),), origin="scripted",
            default_large_model_id=self._tour.model, default_small_model_id=self._tour.model,
        )  # fmt: skip
        return (*views, tour)

    async def _refresh_view(self, provider: Provider) -> None:
        found = self._endpoints[provider.id]
        if provider.origin == "catalog" and isinstance(found, Endpoint) and _lists_models(provider):
            listed = (await self._query(provider, found)).models
            self._views[provider.id] = provider_view(provider, found, models_of(provider, listed))

    async def _view(self, provider: Provider, found: Endpoint | Unavailable, *, waits: bool) -> ProviderView:
        if provider.origin == "catalog":
            if provider.id not in self._views:
                self._views[provider.id] = provider_view(provider, found, models_of(provider))
            return self._views[provider.id]
        result: DiscoveryResult | None = None
        if isinstance(found, Endpoint) and _lists_models(provider):
            is_ours = provider.is_named or is_loopback(found.base_url)
            target = _target(provider, found)
            result = self._discovery.cached(target)
            if result is None and is_ours and waits:
                result = await self._discovery.query(target)
            elif result is None and is_ours:
                self._discovery.query_in_background(target)
        models = models_of(provider, result.models if result else ())
        if provider.origin == "local" and not models and isinstance(found, Endpoint):
            found = Unavailable(f"{provider.name} does not answer at {provider.base_url}.")
        return provider_view(provider, found, models)


def _qualifies(found: Endpoint | Unavailable, provider: Provider) -> TypeGuard[Endpoint]:
    """Return whether the provider may be selected automatically. Ambient credentials, such as AWS, do not qualify."""
    return isinstance(found, Endpoint) and (provider.is_named or not found.is_ambient)


def _lists_models(provider: Provider) -> bool:
    return provider.type == "openai-compat" and provider.settings.discover_models


def _target(provider: Provider, found: Endpoint) -> DiscoveryTarget:
    headers = {"authorization": f"Bearer {found.api_key}"} if found.api_key else {}
    headers |= {name.lower(): value for name, value in found.headers.items()}
    return DiscoveryTarget(found.base_url, _KINDS.get(provider.id, "openai"), tuple(sorted(headers.items())))


def _preferred_model(models: Iterable[DiscoveredModel]) -> DiscoveredModel | None:
    """Prefer models that can use tools, then those in memory; otherwise keep the server's order."""
    ranked = sorted(models, key=lambda model: (model.tools is False, not model.is_loaded))
    return ranked[0] if ranked else None


def _suggest(names: list[str]) -> str:
    return f" Did you mean {' or '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}?" if names else ""


def _unknown_model(name: str, provider: str, id: str, names: Iterable[str]) -> ProviderError:
    return ProviderError(
        f"There is no model {id} at {name}.{_suggest(close_matches(id, names))} "
        f"`holdfast models {provider}` lists them; one that is newer can be described under "
        f"providers.{provider}.models.",
        title="Unknown Model",
        trouble="refused",
    )
