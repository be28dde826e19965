"""Fixtures: settings for model selection, and a server that lists models."""

from collections.abc import AsyncIterator

import pytest

from holdfast.providers import model_discovery
from providers.json_server import JsonServer, json_server
from runtime.model_selection_home import ModelSelectionHome, open_home


@pytest.fixture(autouse=True)
def no_lm_studio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide an LM Studio server of the developer's machine: no process listens at port 9."""
    ollama, (id, name, kind, _) = model_discovery.LOCAL_SERVERS
    monkeypatch.setattr(
        "holdfast.providers.model_registry.LOCAL_SERVERS", (ollama, (id, name, kind, "http://127.0.0.1:9/v1"))
    )


@pytest.fixture
async def server() -> AsyncIterator[JsonServer]:
    async with json_server() as server:
        yield server


@pytest.fixture
async def home(server: JsonServer) -> AsyncIterator[ModelSelectionHome]:
    async with open_home(server.port) as home:
        yield home
