"""A home for settings, and a server beside it."""

from collections.abc import AsyncIterator

import pytest

from holdfast.providers import model_discovery
from providers.json_server import JsonServer, json_server
from runtime.settings_home import Home, home


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
async def place(server: JsonServer) -> AsyncIterator[Home]:
    async with home(server.port) as place:
        yield place
