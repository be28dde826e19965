"""Which models a workspace uses: what its settings select, else the best that can be used here and now.

Settings come first; then providers they name, then those of the catalogue for which there is a key, then a local
server that answers, then the scripted tour. A choice is kept until something it depends on has changed, so asking
for it again costs next to nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.atomic_files import file_signature
from holdfast.domain.errors import ProviderError
from holdfast.domain.settings import Selection, Settings
from holdfast.engine.ports import Model
from holdfast.providers.catalog import Catalog, load_catalog, newer_catalog_file
from holdfast.providers.model_discovery import ModelDiscovery
from holdfast.providers.model_factory import ModelConfig, build, configure_model
from holdfast.providers.model_registry import ModelChoice, ModelRegistry, ProviderView
from holdfast.providers.provider_config import EndpointSources, Expand
from holdfast.providers.scripted_model import DemoModel, tour_titles
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration
    from holdfast.config.credentials import Credentials

__all__ = ["ModelSources", "SelectedModels", "Size", "model_sources"]

Size: TypeAlias = Literal["large", "small"]

_MOST_MODELS = 32
_LOOK_AGAIN = 20.0
"""How many seconds a choice stands that was made for want of a better one: a local server may be started."""


def _nothing() -> None:
    return None


class ModelSources(msgspec.Struct, frozen=True):
    """Where everything comes from. All but `settings` and `stamp` may be slow: they are called in a thread.

    `settings` gives the same object as long as nothing has changed. `stamp` gives something that changes when a
    stored key does, one in the environment, or the catalogue. `environment` is that of whoever opened the workspace.
    """

    settings: Callable[[], Settings]
    expand: Expand
    environment: Callable[[], Mapping[str, str]]
    key_of: Callable[[str], str | None] = lambda _: None
    stamp: Callable[[], object] = _nothing
    data_dir: Path | None = None
    doubt: Callable[[], str] = lambda: ""
    """Why nobody can tell which model the settings were to select. Empty if one can."""
    new_token: Callable[[str, str], Awaitable[str | None]] | None = None
    """Exchanges the token of a provider that was refused for a fresh one, and stores it. None if it has no token."""
    sign_in: Callable[[str], Awaitable[bool]] | None = None
    """Runs the command that renews a machine's own credentials (`aws_auth_refresh`)."""


def model_sources(configuration: "Configuration", credentials: "Credentials", data_dir: Path) -> ModelSources:
    """The means of a workspace whose settings and keys are in files. How to renew is left to whoever can."""
    return ModelSources(
        configuration.current,
        configuration.expand,
        lambda: _fresh_environment(configuration),
        credentials.get,
        lambda: (
            file_signature(credentials.path),
            file_signature(str(newer_catalog_file(data_dir))),
            configuration.environment_version,
        ),
        data_dir,
        lambda: _doubt(configuration),
    )


def _doubt(configuration: "Configuration") -> str:
    found = (
        problem
        for problem in configuration.unresolved_errors()
        if problem.key.partition(".")[0] in ("", "models", "providers")
    )
    return str(next(found, ""))


def _fresh_environment(configuration: "Configuration") -> Mapping[str, str]:
    """Somebody asks again because a key was refused, or something has changed: what commands said once may be old."""
    configuration.forget()
    return configuration.environment()


class _Held(msgspec.Struct, frozen=True):
    """An answer, and what it depends on."""

    model: Model
    settings: Settings
    stamp: object
    found: int
    until: float


class _Made(msgspec.Struct, frozen=True):
    """A model, and what it was made of."""

    model: Model
    plan: ModelConfig
    pick: ModelChoice


class SelectedModels:
    """The models of one workspace."""

    def __init__(
        self,
        means: ModelSources,
        discovery: ModelDiscovery | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._means = means
        self._discovery = discovery or ModelDiscovery()
        self._clock = clock
        self._tasks = TaskOwner()
        self._held: dict[Size, _Held] = {}
        self._flights: dict[tuple[Size, int], asyncio.Task[Model]] = {}
        self._renewals: dict[bytes, asyncio.Task[Model | None]] = {}
        self._made: dict[bytes, _Made] = {}
        self._markets: list[tuple[Settings, object, ModelRegistry]] = []
        self._key_variables: set[str] = set()
        self._tour = DemoModel()
        self._titles = tour_titles()

    async def large(self) -> Model:
        return await self._of("large")

    async def small(self) -> Model:
        return await self._of("small")

    async def named(self, name: str) -> Model:
        """One that somebody named, as `provider/model` or by its name alone. Raises `ProviderError`."""
        market = await self._market(self._means.settings(), self._means.stamp())
        pick = await self._picked(market, Selection(name))
        return self._tour if pick is None else await self._model(pick)

    async def renewed(self, model: Model) -> Model | None:
        """The same model with new credentials, after its own were refused. None if there are no others.

        Runs that are refused together share one attempt: a token may be exchanged only once.
        """
        made = next((item for item in self._made.values() if item.model is model), None)
        if made is None:
            return None
        mark = made.plan.cache_key()
        flight = self._renewals.get(mark)
        if flight is None:
            flight = self._tasks.start(self._renew(made), name="renew credentials", done=_seen)
            self._renewals[mark] = flight
            flight.add_done_callback(lambda _: self._renewals.pop(mark, None))
        return await asyncio.shield(flight)

    async def providers_view(self, *, refresh: bool = False) -> tuple[ProviderView, ...]:
        """All providers with their models, and what each of them lacks. Servers are asked what they have."""
        return await (await self._market(self._means.settings(), self._means.stamp())).view(refresh=refresh)

    async def usable_view(self) -> tuple[ProviderView, ...]:
        """The providers that can be used now, with the models that are known without asking."""
        return await (await self._market(self._means.settings(), self._means.stamp())).usable_view()

    async def default_small(self, provider: str) -> Selection:
        """The small model that goes with a provider; the large one's own where nobody knows one."""
        market = await self._market(self._means.settings(), self._means.stamp())
        offer = market.find(provider)
        if offer is not None and offer.default_small:
            return Selection(offer.default_small, offer.id)
        info = (await self.large()).info
        return Selection(info.model, info.provider, max_tokens=info.max_output_tokens)

    def secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The variables that hold keys, and the keys that were used so far: nothing that is run may see them."""
        values = {made.plan.access.api_key for made in self._made.values()}
        return tuple(self._key_variables), tuple(filter(None, values))

    async def check(self, selection: Selection) -> Selection:
        """The same with a provider. Raises `ProviderError` if it could not be used, now or after a server has been
        started.
        """
        market = await self._market(self._means.settings(), self._means.stamp())
        try:
            pick = await self._picked(market, selection)
        except ProviderError as error:
            if error.trouble != "connection":
                raise
            return selection
        if selection.provider or not selection.model:
            return selection
        info = self._tour.info if pick is None else pick.model.info
        return msgspec.structs.replace(selection, provider=info.provider, model=info.model)

    async def can_answer(self, providers: Collection[str]) -> bool:
        """Whether conversations with these providers can go on though no client is there, whose keys they may have been
        held with. The tour, which answers where there is no other model, is no stand-in for one.
        """
        try:
            model = await self.large()
        except ProviderError:
            return False
        return not model.info.fallback_reason or all(provider == model.info.provider for provider in providers)

    async def close(self) -> None:
        self._tasks.cancel_all()
        await self._tasks.drain()

    # Choosing

    async def _of(self, size: Size) -> Model:
        settings, stamp = self._means.settings(), self._means.stamp()
        held = self._held.get(size)
        if held is not None and self._still_holds(held, settings, stamp):
            return held.model
        flight = self._flights.get((size, id(settings)))
        if flight is None:
            key = (size, id(settings))
            flight = self._tasks.start(self._choose(size, settings, stamp), name=f"choose the {size} model", done=_seen)
            self._flights[key] = flight
            flight.add_done_callback(lambda _: self._flights.pop(key, None))
        return await asyncio.shield(flight)

    def _still_holds(self, held: _Held, settings: Settings, stamp: object) -> bool:
        is_same = held.settings is settings or held.settings == settings
        return is_same and held.stamp == stamp and held.found == self._discovery.version and self._clock() < held.until

    async def _choose(self, size: Size, settings: Settings, stamp: object) -> Model:
        large = settings.models.large
        is_open = not (large.model or large.provider)
        if is_open and (doubt := self._means.doubt()):
            # Whom they meant is not known, and not everybody may see their work.
            raise ProviderError(f"{doubt} No model is chosen until that is mended.", trouble="refused")
        model: Model
        # As of now: what is found while this goes on may concern it, then it is looked at again.
        found = self._discovery.version
        market = await self._market(settings, stamp)
        pick = await self._pick(market, size, settings)
        if pick is not None:
            model = await self._model(pick)
        elif size == "small":
            model = self._titles
        else:
            model = DemoModel(await market.fallback_reason()) if is_open else self._tour
        is_stopgap = is_open and (pick is None or pick.provider.origin == "local")
        until = self._clock() + _LOOK_AGAIN if is_stopgap else float("inf")
        self._held[size] = _Held(model, settings, stamp, found, until)
        return model

    async def _pick(self, market: ModelRegistry, size: Size, settings: Settings) -> ModelChoice | None:
        chosen = settings.models.small if size == "small" else settings.models.large
        if size == "large" or chosen.model or chosen.provider:
            return await self._picked(market, chosen)
        large = await self._picked(market, settings.models.large)
        return await market.pick_small(large, chosen)

    async def _picked(self, market: ModelRegistry, selection: Selection) -> ModelChoice | None:
        """What is missing may stand in a file that cannot be read: then that is what is to be mended."""
        try:
            return await market.pick(selection)
        except ProviderError as error:
            if error.trouble == "connection" or not (doubt := self._means.doubt()):
                raise
            text = f"{doubt} What it says does not count until that is mended. {error}"
            raise ProviderError(text, title=error.title, trouble=error.trouble) from None

    async def _market(self, settings: Settings, stamp: object) -> ModelRegistry:
        for known, mark, market in self._markets:
            if (known is settings or known == settings) and mark == stamp:
                return market
        catalog, sources = await asyncio.to_thread(self._sources)
        market = ModelRegistry(catalog, settings, sources, self._discovery, self._tour.info)
        self._markets[:] = [(settings, stamp, market)]
        self._key_variables |= market.key_variables()
        return market

    def _sources(self) -> tuple[Catalog, EndpointSources]:
        means = self._means
        return load_catalog(means.data_dir), EndpointSources(means.expand, means.key_of, means.environment())

    async def _model(self, pick: ModelChoice) -> Model:
        """One for each way of asking, so that what it keeps open is used again."""
        plan = _plan(pick)
        mark = plan.cache_key()
        made = self._made.pop(mark, None) or _Made(await build(plan), plan, pick)
        self._made[mark] = made
        while len(self._made) > _MOST_MODELS:
            del self._made[next(iter(self._made))]
        return made.model

    # Renewing

    async def _renew(self, made: _Made) -> Model | None:
        offer = made.pick.provider
        self._markets.clear()
        if offer.type == "bedrock" and offer.settings.aws_auth_refresh and self._means.sign_in is not None:
            if not await self._means.sign_in(offer.settings.aws_auth_refresh):
                return None
            self._made.pop(made.plan.cache_key(), None)
            return self._taken(made.model, await self._model(made.pick))
        market = await self._market(self._means.settings(), self._means.stamp())
        try:
            pick = await market.pick(Selection(made.pick.model.info.model, offer.id))
        except ProviderError:
            return None
        if pick is None:
            return None
        pick = msgspec.structs.replace(pick, selection=made.pick.selection)
        if pick.endpoint.api_key == made.pick.endpoint.api_key:
            pick = await self._with_new_token(pick)
        if _plan(pick).access == made.plan.access:
            return None
        return self._taken(made.model, await self._model(pick))

    def _taken(self, old: Model, new: Model) -> Model:
        """From now on the new one is meant."""
        for size, held in tuple(self._held.items()):
            if held.model is old:
                self._held[size] = msgspec.structs.replace(held, model=new)
        return new

    async def _with_new_token(self, pick: ModelChoice) -> ModelChoice:
        if self._means.new_token is None:
            return pick
        token = await self._means.new_token(pick.provider.id, pick.endpoint.api_key)
        return (
            pick
            if not token
            else msgspec.structs.replace(pick, endpoint=msgspec.structs.replace(pick.endpoint, api_key=token))
        )


def _plan(pick: ModelChoice) -> ModelConfig:
    return configure_model(pick.provider, pick.endpoint, pick.model, pick.selection)


def _seen(task: asyncio.Task[Any]) -> None:
    """Whoever waited for it has its error; if nobody did, nobody misses it."""
    if not task.cancelled():
        task.exception()
