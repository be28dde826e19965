"""Servers that are queried for their models when providers are listed: only local and configured ones."""

import itertools
from typing import Any

import msgspec
import pytest

from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.settings import Settings
from holdfast.providers.catalog import Catalog, load_catalog
from holdfast.providers.effective_providers import EndpointSources
from holdfast.providers.model_discovery import DiscoveredModel, DiscoveryResult, DiscoveryTarget, ModelDiscovery
from holdfast.providers.model_registry import ModelRegistry

HOSTS = {"127.0.0.1": True, "localhost": True, "[::1]": True, "192.0.2.7": False, "localhost.example": False}
"""Hosts, and whether each is this machine."""

FOUND = DiscoveryResult((DiscoveredModel("m"),), has_answered=True)


class _RecordingDiscovery(ModelDiscovery):
    """Sends no requests and records the queries."""

    def __init__(self, cached_address: str) -> None:
        super().__init__()
        self._cached_address = cached_address
        self.queries: list[tuple[str, str]] = []

    def cached(self, target: DiscoveryTarget) -> DiscoveryResult | None:
        return FOUND if self._cached_address and self._cached_address in target.base_url else None

    async def query(self, target: DiscoveryTarget) -> DiscoveryResult:
        self.queries.append(("waits", target.base_url))
        return FOUND

    def query_in_background(self, target: DiscoveryTarget) -> None:
        self.queries.append(("background", target.base_url))


def _registry(host: str, named: str, discovery: ModelDiscovery, **more: object) -> ModelRegistry:
    address = f"http://{host}:4321"
    given: dict[str, Any] = {named: {"base_url": f"{address}/v1", **more}} if named else {}
    environment = {} if named else {"OLLAMA_HOST": address}
    sources = EndpointSources(lambda text, _: text, lambda _: None, environment)
    catalog = Catalog(load_catalog().source, ())
    settings = msgspec.convert({"providers": given}, Settings)
    return ModelRegistry(catalog, settings, sources, discovery, ModelInfo("demo", "tour"))


@pytest.mark.parametrize("named", ["", "ollama", "mine"])
async def test_which_servers_are_queried_for_models(named: str) -> None:
    """It depends on the settings, the address, the requested view, and the cache."""
    for (host, is_here), waits, is_known in itertools.product(HOSTS.items(), (True, False), (True, False)):
        case = (host, waits, is_known)
        discovery = _RecordingDiscovery(f"{host}:4321" if is_known else "")
        registry = _registry(host, named, discovery)
        views = await (registry.view() if waits else registry.usable_view())
        queried = [how for how, address in discovery.queries if f"{host}:4321" in address]
        is_ours = bool(named) or is_here
        expected = ["waits" if waits else "background"] if is_ours and not is_known else []
        assert queried == expected, case
        # Cached models and those of a finished query are listed.
        shown = [[model.id for model in view.models] for view in views if view.id == (named or "ollama")]
        has_models = is_known or queried == ["waits"]
        is_listed = has_models or waits or named == "mine"
        assert shown == ([["m"] if has_models else []] if is_listed else []), case
        await discovery.close()


@pytest.mark.parametrize("more", [{"discover_models": False}, {"disable": True}, {"type": "anthropic", "api_key": "k"}])
async def test_server_with_discovery_disabled_is_not_queried(more: dict[str, object]) -> None:
    for waits in (True, False):
        discovery = _RecordingDiscovery("")
        registry = _registry("127.0.0.1", "mine", discovery, **more)
        await (registry.view() if waits else registry.usable_view())
        assert discovery.queries, "others are queried"
        assert [address for _, address in discovery.queries if ":4321" in address] == []
