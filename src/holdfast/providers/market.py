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
from holdfast.providers.access import is_loopback
from holdfast.providers.catalog import Catalog, close_matches
from holdfast.providers.discovery import LOCAL_SERVERS, Discovery, Finding, Place, ollama_address
from holdfast.providers.findings import Found
from holdfast.providers.offers import Described, Offer, describe, models_of, offers_of
from holdfast.providers.reach import Lack, Reach, Sources, key_variables, reach
from holdfast.providers.troubles import redacted
from holdfast.providers.view import ProviderView, model_view, provider_view

__all__ = ["Market", "Pick"]

_SET_UP = (
    "Store a key with `holdfast login PROVIDER`, or start a local model server; `holdfast models` lists what is "
    "usable. --model demo/tour selects the built-in scripted model."
)
_KINDS = {id: kind for id, _, kind, _ in LOCAL_SERVERS}


class Pick(msgspec.Struct, frozen=True):
    """One model of a reachable provider."""

    offer: Offer
    reach: Reach
    model: Described
    selection: Selection


class Market:
    """Providers and models available under one state of the settings. `tour` is the built-in scripted model, used
    when no other is available; its pick is None.
    """

    def __init__(
        self, catalog: Catalog, settings: Settings, sources: Sources, discovery: Discovery, tour: ModelInfo
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._sources = sources
        self._discovery = discovery
        self._tour = tour
        self._reached: dict[str, Reach | Lack] = {}
        self._views: dict[str, ProviderView] = {}

    @cached_property
    def offers(self) -> dict[str, Offer]:
        """Providers by id, in the order in which they are tried."""
        local = [
            Offer(
                id, name, "openai-compat", "local", ollama_address(self._sources.environment) if id == "ollama" else url
            )
            for id, name, _, url in LOCAL_SERVERS
        ]
        return {offer.id: offer for offer in offers_of(self._catalog, self._settings, local)}

    # Selection

    async def pick(self, selection: Selection) -> Pick | None:
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
            return Pick(offer, found, await self._model(offer, found, model), selection)
        return await self._by_model(model, selection) if model else await self._best(selection)

    async def pick_small(self, large: Pick | None, selection: Selection) -> Pick | None:
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

    def find(self, name: str) -> Offer | None:
        """Look up a provider by id or alias."""
        known = self._catalog.provider(name)
        return self.offers.get(name) or self.offers.get(known.id if known else name.lower())

    def _offer(self, name: str) -> Offer:
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

    async def _by_model(self, id: str, selection: Selection) -> Pick | None:
        if id == self._tour.model:
            return None
        holders = [offer for offer in self.offers.values() if describe(offer, id) is not None]
        for offer in holders:
            found = await self._reach(offer)
            if isinstance(found, Reach):
                return Pick(offer, found, await self._model(offer, found, id), selection)
        if holders:
            self._usable(holders[0], await self._reach(holders[0]))
        for offer in self._own():
            found = await self._reach(offer)
            if isinstance(found, Reach) and (await self._ask(offer, found)).model(id):
                return Pick(offer, found, await self._model(offer, found, id), selection)
        names = [f"{offer.id}/{model.info.model}" for offer in self.offers.values() for model in models_of(offer)]
        raise ProviderError(
            f"There is no model {id}.{_meant(close_matches(id, names))} `holdfast models TERM` finds them.",
            title="Unknown Model",
            trouble="refused",
        )

    async def _best(self, selection: Selection) -> Pick | None:
        """Select automatically: providers named in the settings, those with a key, local servers, then the scripted
        model.
        """
        offers = [offer for offer in self.offers.values() if offer.origin != "local" or offer.is_named]
        await asyncio.to_thread(self._try, offers)
        silent: list[tuple[Offer, Reach]] = []
        for offer in offers:
            found = await self._reach(offer)
            if _counts(found, offer):
                model = await self._first_model(offer, found)
                if model:
                    return Pick(offer, found, await self._model(offer, found, model), selection)
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
        lacks = [found for offer in named if isinstance(found := await self._reach(offer), Lack)]
        cause = f"No usable model: {lacks[0].sentence}" if lacks else "No usable model."
        return f"{cause} {_SET_UP}"

    async def _best_local(self, selection: Selection) -> Pick | None:
        local = [
            (offer, found)
            for offer in self._own()
            if offer.origin == "local" and is_loopback(offer.base_url)
            if isinstance(found := await self._reach(offer), Reach)
        ]
        findings = await asyncio.gather(*(self._ask(offer, found) for offer, found in local))
        for (offer, found), finding in zip(local, findings, strict=True):
            if model := _best_of(finding.models):
                described = describe(offer, model.id, model)
                assert described is not None
                return Pick(offer, found, described, selection)
        return None

    async def _first_model(self, offer: Offer, found: Reach) -> str:
        if offer.default_large:
            return offer.default_large
        if offer.settings.models:
            return offer.settings.models[0].id
        best = _best_of((await self._ask(offer, found)).models) if _can_ask(offer) else None
        return best.id if best else ""

    async def _nothing_there(self, offer: Offer, found: Reach) -> ProviderError:
        advice = f"name one as {offer.id}/MODEL"
        if _can_ask(offer) and not (finding := await self._ask(offer, found)).has_answered:
            where = redacted(found.base_url, (found.api_key,))
            message = f"{offer.name} does not answer at {where}: {finding.error or 'no list of models came'}."
            message += f" Start it, or {advice}."
            return ProviderError(message, title="Provider Not Ready", trouble="connection")
        message = f"{offer.name} is chosen, but none of its models: {advice}."
        return ProviderError(message, title="Unknown Model", trouble="refused")

    async def _model(self, offer: Offer, found: Reach, id: str) -> Described:
        """Describe a model. Raises `ProviderError` if the provider's known models do not include it."""
        place = _place(offer, found)
        remembered = self._discovery.known(place)
        described = describe(offer, id, remembered.model(id) if remembered else None)
        if described is not None:
            if not described.info.context_window and _can_ask(offer):
                self._discovery.ask_in_background(place)
            return described
        finding = await self._ask(offer, found) if _can_ask(offer) else Finding()
        # Ollama appends ":latest" to names without a tag.
        listed = finding.model(id) or finding.model(f"{id}:latest")
        names = [model.info.model for model in models_of(offer, finding.models)]
        if listed is None and names:
            raise _unknown_model(offer.name, offer.id, id, names)
        # The provider publishes no model list; let it validate the name.
        named = describe(offer, listed.id if listed else id, listed or Found(id))
        assert named is not None
        return named

    def key_variables(self) -> set[str]:
        """Return the environment variables that may contain a key."""
        return {name for offer in self.offers.values() for name in key_variables(offer)}

    # Discovery

    def _own(self) -> list[Offer]:
        """Providers whose models are known only by a query."""
        return [offer for offer in self.offers.values() if offer.origin in ("settings", "local") and _can_ask(offer)]

    async def _ask(self, offer: Offer, found: Reach) -> Finding:
        return await self._discovery.ask(_place(offer, found))

    async def _reach(self, offer: Offer) -> Reach | Lack:
        known = self._reached.get(offer.id)
        if known is None:
            known = self._reached[offer.id] = await asyncio.to_thread(reach, offer, self._sources)
        return known

    def _try(self, offers: Iterable[Offer]) -> None:
        """Resolve providers one after the other until one is usable. One thread for all is faster than
        one thread each.
        """
        for offer in offers:
            if offer.id not in self._reached:
                self._reached[offer.id] = reach(offer, self._sources)
            if _counts(self._reached[offer.id], offer):
                return

    def _usable(self, offer: Offer, found: Reach | Lack) -> Reach:
        if isinstance(found, Reach):
            return found
        raise ProviderError(
            found.sentence, title="Provider Not Ready", trouble="credentials" if found.is_key else "refused"
        )

    # Views

    async def view(self) -> tuple[ProviderView, ...]:
        """Return all providers. Waits for servers to list their models."""
        return await self._views_of(await self._tried(), asks=True)

    async def usable_view(self) -> tuple[ProviderView, ...]:
        """Return the usable providers with their cached models. Does not wait for servers."""
        offers = [offer for offer in await self._tried() if isinstance(self._reached[offer.id], Reach)]
        return tuple(view for view in await self._views_of(offers, asks=False) if view.is_usable)

    async def _tried(self) -> list[Offer]:
        offers = list(self.offers.values())
        unknown = [offer for offer in offers if offer.id not in self._reached]
        if unknown:
            self._reached |= await asyncio.to_thread(lambda: {item.id: reach(item, self._sources) for item in unknown})
        return offers

    async def _views_of(self, offers: Iterable[Offer], *, asks: bool) -> tuple[ProviderView, ...]:
        views = await asyncio.gather(*(self._view(offer, self._reached[offer.id], asks=asks) for offer in offers))
        tour = ProviderView(
            self._tour.provider, "Scripted", "scripted", (model_view(self._tour),), origin="scripted",
            default_large_model_id=self._tour.model, default_small_model_id=self._tour.model,
        )  # fmt: skip
        return (*views, tour)

    async def _view(self, offer: Offer, found: Reach | Lack, *, asks: bool) -> ProviderView:
        if offer.origin == "catalog":
            if offer.id not in self._views:
                self._views[offer.id] = provider_view(offer, found, models_of(offer))
            return self._views[offer.id]
        finding: Finding | None = None
        if isinstance(found, Reach) and _can_ask(offer):
            is_ours = offer.is_named or is_loopback(found.base_url)
            place = _place(offer, found)
            finding = self._discovery.known(place)
            if finding is None and is_ours and asks:
                finding = await self._discovery.ask(place)
            elif finding is None and is_ours:
                self._discovery.ask_in_background(place)
        models = models_of(offer, finding.models if finding else ())
        if offer.origin == "local" and not models and isinstance(found, Reach):
            found = Lack(f"{offer.name} does not answer at {offer.base_url}.")
        return provider_view(offer, found, models)


def _counts(found: Reach | Lack, offer: Offer) -> TypeGuard[Reach]:
    """Return whether the provider may be selected automatically. Ambient credentials, such as AWS, do not qualify."""
    return isinstance(found, Reach) and (offer.is_named or not found.is_ambient)


def _can_ask(offer: Offer) -> bool:
    return offer.type == "openai-compat" and offer.settings.discover_models


def _place(offer: Offer, found: Reach) -> Place:
    headers = {"authorization": f"Bearer {found.api_key}"} if found.api_key else {}
    headers |= {name.lower(): value for name, value in found.headers.items()}
    return Place(found.base_url, _KINDS.get(offer.id, "openai"), tuple(sorted(headers.items())))


def _best_of(models: Iterable[Found]) -> Found | None:
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
