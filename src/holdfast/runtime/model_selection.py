"""Model selection of a workspace: the models that its settings select, or else the best that can be used.

The order is: the selection in the settings; providers that the settings name; providers of the catalogue with a key; a
local server that responds; the scripted tour. A choice is cached until one of its inputs changes, because every step of
a run requests the model.
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
from holdfast.providers.effective_providers import EndpointSources, Expand
from holdfast.providers.model_discovery import ModelDiscovery
from holdfast.providers.model_factory import ModelConfig, build, configure_model
from holdfast.providers.model_registry import ModelChoice, ModelRegistry, ProviderView
from holdfast.providers.scripted_model import DemoModel, tour_titles
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.config.configuration import Configuration
    from holdfast.config.credentials import Credentials

__all__ = ["ModelSources", "SelectedModels", "Size", "model_sources"]

Size: TypeAlias = Literal["large", "small"]

_MAX_MODELS = 32
_FALLBACK_SECONDS = 20.0
"""Seconds for which a fallback is cached: a local server may be started in the meantime."""


def _no_stamp() -> None:
    return None


class ModelSources(msgspec.Struct, frozen=True):
    """Inputs of model selection. All but `settings` and `stamp` may be slow and are called in a thread.

    `settings` returns the same object until it changes. `stamp` returns a value that changes with the stored keys, the
    keys in the environment and the catalogue. `environment` is that of the client that opened the workspace.
    """

    settings: Callable[[], Settings]
    expand: Expand
    environment: Callable[[], Mapping[str, str]]
    key_of: Callable[[str], str | None] = lambda _: None
    stamp: Callable[[], object] = _no_stamp
    data_dir: Path | None = None
    selection_problem: Callable[[], str] = lambda: ""
    """Returns why the selection in the settings is unknown, such as an unreadable file; empty if it is known."""
    new_token: Callable[[str, str], Awaitable[str | None]] | None = None
    """Exchanges a refused token of a provider for a new one and stores it. Returns None if there is no token."""
    sign_in: Callable[[str], Awaitable[bool]] | None = None
    """Runs the command that renews the credentials of the machine (`aws_auth_refresh`)."""
    on_use: Callable[[], None] = _no_stamp
    """Called when a model other than the scripted tour was selected. Must not block."""


def model_sources(configuration: "Configuration", credentials: "Credentials", data_dir: Path) -> ModelSources:
    """Return the sources of a workspace with settings and keys in files. The caller adds the renewal of credentials."""
    # Every prompt compares the stamp before it is accepted.
    catalog = str(newer_catalog_file(data_dir))
    return ModelSources(
        configuration.current,
        configuration.expand,
        lambda: _fresh_environment(configuration),
        credentials.get,
        lambda: (credentials.signature(), file_signature(catalog), configuration.environment_version),
        data_dir,
        lambda: _unknown_selection(configuration),
    )


def _unknown_selection(configuration: "Configuration") -> str:
    found = (
        problem
        for problem in configuration.unresolved_errors()
        if problem.key.partition(".")[0] in ("", "models", "providers")
    )
    return str(next(found, ""))


def _fresh_environment(configuration: "Configuration") -> Mapping[str, str]:
    """Return the environment without cached output of commands: a key was refused or an input has changed."""
    configuration.forget()
    return configuration.environment()


class _CachedChoice(msgspec.Struct, frozen=True):
    """A cached choice with its inputs."""

    model: Model
    settings: Settings
    stamp: object
    found: int
    until: float


class _BuiltModel(msgspec.Struct, frozen=True):
    """A model with its configuration."""

    model: Model
    plan: ModelConfig
    pick: ModelChoice


class SelectedModels:
    """The models of one workspace."""

    def __init__(
        self,
        inputs: ModelSources,
        discovery: ModelDiscovery | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inputs = inputs
        self._discovery = discovery or ModelDiscovery()
        self._clock = clock
        self._tasks = TaskOwner()
        self._cached: dict[Size, _CachedChoice] = {}
        self._pending: dict[tuple[Size, int], asyncio.Task[Model]] = {}
        self._renewals: dict[bytes, asyncio.Task[Model | None]] = {}
        self._made: dict[bytes, _BuiltModel] = {}
        self._registries: list[tuple[Settings, object, ModelRegistry]] = []
        self._key_variables: set[str] = set()
        self._tour = DemoModel()
        self._titles = tour_titles()

    async def large(self) -> Model:
        """Return the large model. Raises `ProviderError`."""
        return await self._model_of_size("large")

    async def small(self) -> Model:
        """Return the small model. Raises `ProviderError`."""
        return await self._model_of_size("small")

    async def named(self, name: str) -> Model:
        """Return a model by its name, with or without its provider (`provider/model`). Raises `ProviderError`."""
        registry = await self._registry(self._inputs.settings(), self._inputs.stamp())
        pick = await self._pick_or_explain(registry, Selection(name))
        return self._tour if pick is None else await self._model(pick)

    async def renewed(self, model: Model) -> Model | None:
        """Return the same model with new credentials after its own were refused; None if there are no others.

        Concurrent refusals share one attempt, because a token can be exchanged only once.
        """
        made = next((item for item in self._made.values() if item.model is model), None)
        if made is None:
            return None
        mark = made.plan.cache_key()
        task = self._renewals.get(mark)
        if task is None:
            task = self._tasks.start(self._renew(made), name="renew credentials", done=_retrieve_exception)
            self._renewals[mark] = task
            task.add_done_callback(lambda _: self._renewals.pop(mark, None))
        return await asyncio.shield(task)

    async def providers_view(self, *, refresh: bool = False) -> tuple[ProviderView, ...]:
        """Return all providers with their models and missing requirements. Queries servers for their models."""
        return await (await self._registry(self._inputs.settings(), self._inputs.stamp())).view(refresh=refresh)

    async def usable_view(self) -> tuple[ProviderView, ...]:
        """Return the usable providers with the models that are known without a query."""
        return await (await self._registry(self._inputs.settings(), self._inputs.stamp())).usable_view()

    async def default_small(self, provider: str) -> Selection:
        """Return the default small model of a provider, or the large model in use if there is none."""
        registry = await self._registry(self._inputs.settings(), self._inputs.stamp())
        offer = registry.find(provider)
        if offer is not None and offer.default_small:
            return Selection(offer.default_small, offer.id)
        info = (await self.large()).info
        return Selection(info.model, info.provider, max_tokens=info.max_output_tokens)

    def secrets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the variables that hold keys and the keys used so far, which are hidden from commands."""
        values = {made.plan.access.api_key for made in self._made.values()}
        return tuple(self._key_variables), tuple(filter(None, values))

    async def check(self, selection: Selection) -> Selection:
        """Return the selection with its provider. Raises `ProviderError` if it can never be used; a server that is not
        running yet is no error.
        """
        registry = await self._registry(self._inputs.settings(), self._inputs.stamp())
        try:
            pick = await self._pick_or_explain(registry, selection)
        except ProviderError as error:
            if error.trouble != "connection":
                raise
            return selection
        if selection.provider or not selection.model:
            return selection
        info = self._tour.info if pick is None else pick.model.info
        return msgspec.structs.replace(selection, provider=info.provider, model=info.model)

    async def can_answer(self, providers: Collection[str]) -> bool:
        """Return whether conversations with these providers can continue without the keys of a client. The scripted
        tour does not replace a model.
        """
        try:
            model = await self.large()
        except ProviderError:
            return False
        return not model.info.fallback_reason or all(provider == model.info.provider for provider in providers)

    async def close(self) -> None:
        """Cancel pending selections."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    # Selection

    async def _model_of_size(self, size: Size) -> Model:
        settings, stamp = self._inputs.settings(), self._inputs.stamp()
        cached = self._cached.get(size)
        if cached is not None and self._still_holds(cached, settings, stamp):
            return cached.model
        task = self._pending.get((size, id(settings)))
        if task is None:
            key = (size, id(settings))
            task = self._tasks.start(
                self._choose(size, settings, stamp), name=f"choose the {size} model", done=_retrieve_exception
            )
            self._pending[key] = task
            task.add_done_callback(lambda _: self._pending.pop(key, None))
        return await asyncio.shield(task)

    def _still_holds(self, cached: _CachedChoice, settings: Settings, stamp: object) -> bool:
        is_same = cached.settings is settings or cached.settings == settings
        return (
            is_same
            and cached.stamp == stamp
            and cached.found == self._discovery.version
            and self._clock() < cached.until
        )

    async def _choose(self, size: Size, settings: Settings, stamp: object) -> Model:
        large = settings.models.large
        is_open = not (large.model or large.provider)
        if is_open and (selection_problem := self._inputs.selection_problem()):
            # Any default could send the project to a provider that the user did not want.
            raise ProviderError(f"{selection_problem} No model is selected until this is corrected.", trouble="refused")
        model: Model
        # Read before the selection: discoveries during it invalidate the cached choice.
        found = self._discovery.version
        registry = await self._registry(settings, stamp)
        pick = await self._pick(registry, size, settings)
        if pick is not None:
            model = await self._model(pick)
        elif size == "small":
            model = self._titles
        else:
            model = DemoModel(await registry.fallback_reason()) if is_open else self._tour
        is_stopgap = is_open and (pick is None or pick.provider.origin == "local")
        until = self._clock() + _FALLBACK_SECONDS if is_stopgap else float("inf")
        self._cached[size] = _CachedChoice(model, settings, stamp, found, until)
        return model

    async def _pick(self, registry: ModelRegistry, size: Size, settings: Settings) -> ModelChoice | None:
        chosen = settings.models.small if size == "small" else settings.models.large
        if size == "large" or chosen.model or chosen.provider:
            return await self._pick_or_explain(registry, chosen)
        large = await self._pick_or_explain(registry, settings.models.large)
        return await registry.pick_small(large, chosen)

    async def _pick_or_explain(self, registry: ModelRegistry, selection: Selection) -> ModelChoice | None:
        """Pick a model. The error names unreadable settings files, because they may contain the selection."""
        try:
            return await registry.pick(selection)
        except ProviderError as error:
            if error.trouble == "connection" or not (selection_problem := self._inputs.selection_problem()):
                raise
            text = f"{selection_problem} Its settings have no effect until this is corrected. {error}"
            raise ProviderError(text, title=error.title, trouble=error.trouble) from None

    async def _registry(self, settings: Settings, stamp: object) -> ModelRegistry:
        for known, mark, registry in self._registries:
            if (known is settings or known == settings) and mark == stamp:
                return registry
        catalog, sources = await asyncio.to_thread(self._load_sources)
        registry = ModelRegistry(catalog, settings, sources, self._discovery, self._tour.info)
        self._registries[:] = [(settings, stamp, registry)]
        self._key_variables |= registry.key_variables()
        return registry

    def _load_sources(self) -> tuple[Catalog, EndpointSources]:
        inputs = self._inputs
        return load_catalog(inputs.data_dir), EndpointSources(inputs.expand, inputs.key_of, inputs.environment())

    async def _model(self, pick: ModelChoice) -> Model:
        """Return a cached model for each configuration, so that its connections are reused."""
        self._inputs.on_use()
        plan = _plan(pick)
        mark = plan.cache_key()
        made = self._made.pop(mark, None) or _BuiltModel(await build(plan), plan, pick)
        self._made[mark] = made
        while len(self._made) > _MAX_MODELS:
            del self._made[next(iter(self._made))]
        return made.model

    # Renewal of credentials

    async def _renew(self, made: _BuiltModel) -> Model | None:
        offer = made.pick.provider
        self._registries.clear()
        if offer.type == "bedrock" and offer.settings.aws_auth_refresh and self._inputs.sign_in is not None:
            if not await self._inputs.sign_in(offer.settings.aws_auth_refresh):
                return None
            self._made.pop(made.plan.cache_key(), None)
            return self._replace_model(made.model, await self._model(made.pick))
        registry = await self._registry(self._inputs.settings(), self._inputs.stamp())
        try:
            pick = await registry.pick(Selection(made.pick.model.info.model, offer.id))
        except ProviderError:
            return None
        if pick is None:
            return None
        pick = msgspec.structs.replace(pick, selection=made.pick.selection)
        if pick.endpoint.api_key == made.pick.endpoint.api_key:
            pick = await self._with_new_token(pick)
        if _plan(pick).access == made.plan.access:
            return None
        return self._replace_model(made.model, await self._model(pick))

    def _replace_model(self, old: Model, new: Model) -> Model:
        """Replace a model in the cached choices."""
        for size, cached in tuple(self._cached.items()):
            if cached.model is old:
                self._cached[size] = msgspec.structs.replace(cached, model=new)
        return new

    async def _with_new_token(self, pick: ModelChoice) -> ModelChoice:
        if self._inputs.new_token is None:
            return pick
        token = await self._inputs.new_token(pick.provider.id, pick.endpoint.api_key)
        return (
            pick
            if not token
            else msgspec.structs.replace(pick, endpoint=msgspec.structs.replace(pick.endpoint, api_key=token))
        )


def _plan(pick: ModelChoice) -> ModelConfig:
    return configure_model(pick.provider, pick.endpoint, pick.model, pick.selection)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that asyncio does not log it: the waiting callers receive it."""
    if not task.cancelled():
        task.exception()
