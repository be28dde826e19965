"""Which servers are asked for their models when providers are listed: never one that nobody named, elsewhere."""

import itertools
from typing import Any

import msgspec
import pytest

from holdfast.domain.models import ModelInfo
from holdfast.domain.settings import Settings
from holdfast.providers.catalog import Catalog, load_catalog
from holdfast.providers.model_discovery import DiscoveredModel, DiscoveryResult, DiscoveryTarget, ModelDiscovery
from holdfast.providers.model_registry import ModelRegistry
from holdfast.providers.provider_config import EndpointSources

HOSTS = {"127.0.0.1": True, "localhost": True, "[::1]": True, "192.0.2.7": False, "localhost.example": False}
"""Hosts, and whether each is this machine."""

FOUND = DiscoveryResult((DiscoveredModel("m"),), has_answered=True)


class _Notes(ModelDiscovery):
    """Asks nobody: notes who would have been asked, and how."""

    def __init__(self, remembers: str) -> None:
        super().__init__()
        self._remembers = remembers
        self.asked: list[tuple[str, str]] = []

    def known(self, place: DiscoveryTarget) -> DiscoveryResult | None:
        return FOUND if self._remembers and self._remembers in place.base_url else None

    async def ask(self, place: DiscoveryTarget) -> DiscoveryResult:
        self.asked.append(("waits", place.base_url))
        return FOUND

    def ask_in_background(self, place: DiscoveryTarget) -> None:
        self.asked.append(("background", place.base_url))


def _market(host: str, named: str, discovery: ModelDiscovery, **more: object) -> ModelRegistry:
    address = f"http://{host}:4321"
    given: dict[str, Any] = {named: {"base_url": f"{address}/v1", **more}} if named else {}
    environment = {} if named else {"OLLAMA_HOST": address}
    sources = EndpointSources(lambda text, _: text, lambda _: None, environment)
    catalog = Catalog(load_catalog().source, ())
    settings = msgspec.convert({"providers": given}, Settings)
    return ModelRegistry(catalog, settings, sources, discovery, ModelInfo("demo", "tour"))


@pytest.mark.parametrize("named", ["", "ollama", "mine"])
async def test_who_is_asked_for_models(named: str) -> None:
    """By whether the settings name it, where it is, who asks, and what is remembered."""
    for (host, is_here), waits, is_known in itertools.product(HOSTS.items(), (True, False), (True, False)):
        case = (host, waits, is_known)
        discovery = _Notes(f"{host}:4321" if is_known else "")
        market = _market(host, named, discovery)
        views = await (market.view() if waits else market.usable_view())
        asked = [how for how, address in discovery.asked if f"{host}:4321" in address]
        is_ours = bool(named) or is_here
        expected = ["waits" if waits else "background"] if is_ours and not is_known else []
        assert asked == expected, case
        # What is known, or was said in time, is shown.
        shown = [[model.id for model in view.models] for view in views if view.id == (named or "ollama")]
        has_models = is_known or asked == ["waits"]
        is_listed = has_models or waits or named == "mine"
        assert shown == ([["m"] if has_models else []] if is_listed else []), case
        await discovery.close()


@pytest.mark.parametrize("more", [{"discover_models": False}, {"disable": True}, {"type": "anthropic", "api_key": "k"}])
async def test_one_that_shall_not_be_asked_is_not(more: dict[str, object]) -> None:
    for waits in (True, False):
        discovery = _Notes("")
        market = _market("127.0.0.1", "mine", discovery, **more)
        await (market.view() if waits else market.usable_view())
        assert discovery.asked, "others are asked"
        assert [address for _, address in discovery.asked if ":4321" in address] == []
