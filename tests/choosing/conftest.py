"""A home for settings, and a server beside it."""

from collections.abc import AsyncIterator

import pytest

from choosing.home import Home, home
from holdfast.providers import model_discovery as places
from providers.json_server import JsonServer, json_server, silent_port


@pytest.fixture(autouse=True)
async def no_lm_studio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests may have one."""
    ollama, (id, name, kind, _) = places.LOCAL_SERVERS
    port = await silent_port()
    monkeypatch.setattr(
        "holdfast.providers.model_registry.LOCAL_SERVERS", (ollama, (id, name, kind, f"http://127.0.0.1:{port}/v1"))
    )


@pytest.fixture
async def server() -> AsyncIterator[JsonServer]:
    async with json_server() as server:
        yield server


@pytest.fixture
async def place(server: JsonServer) -> AsyncIterator[Home]:
    async with home(server.port) as place:
        yield place
