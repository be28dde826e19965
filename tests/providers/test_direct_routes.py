"""Requests of the lean adapter go directly to the server unless only httpx2 can make them."""

import subprocess
import sys

import pytest

from holdfast.http11.client_connection import Origin
from holdfast.providers.shared_http_clients import close_connections, direct_route

DIRECT = {
    "http://localhost:11434/v1/chat/completions": (Origin("localhost", 11434), "/v1/chat/completions"),
    "http://127.0.0.1/v1": (Origin("127.0.0.1", 80), "/v1"),
    "http://[::1]:8080/v1": (Origin("::1", 8080), "/v1"),
    "http://Models.Example/v1?api-version=2024-10-21": (Origin("models.example", 80), "/v1?api-version=2024-10-21"),
    "http://models.example": (Origin("models.example", 80), "/"),
}
THROUGH_HTTPX = {
    "a password": "http://user:secret@models.example/v1",
    "a host that needs IDNA": "http://modèle.example/v1",
    "a path that needs quoting": "http://models.example/a model/v1",
    "a quoted path": "http://models.example/a%20model/v1",
    "a port that is no number": "http://models.example:eighty/v1",
    "a port out of range": "http://models.example:99999/v1",
    "a line break": "http://models.example/v1\r\nx: y",
}


@pytest.mark.parametrize("url", DIRECT)
async def test_plain_urls_are_requested_directly(url: str) -> None:
    route = await direct_route(url)
    assert route is not None
    assert (route.origin, route.target) == DIRECT[url]
    assert route.authority == url.split("/")[2].lower()
    assert route.tls is None
    await close_connections()


@pytest.mark.parametrize("reason", THROUGH_HTTPX)
async def test_other_urls_are_left_to_httpx(reason: str) -> None:
    assert await direct_route(THROUGH_HTTPX[reason]) is None


async def test_https_uses_the_certificates_of_the_system() -> None:
    route = await direct_route("https://models.example/v1")
    assert route is not None
    assert route.origin == Origin("models.example", 443, is_secure=True)
    assert route.tls is not None
    assert route.tls.check_hostname
    await close_connections()


@pytest.mark.parametrize(
    ("variables", "url", "is_direct"),
    [
        ({"http_proxy": "http://127.0.0.1:9"}, "http://models.example/v1", False),
        ({"HTTP_PROXY": "http://127.0.0.1:9"}, "http://models.example/v1", False),
        ({"all_proxy": "http://127.0.0.1:9"}, "http://models.example/v1", False),
        ({"https_proxy": "http://127.0.0.1:9"}, "http://models.example/v1", True),
        ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "models.example"}, "http://models.example/v1", True),
        ({"http_proxy": "http://127.0.0.1:9"}, "http://localhost:1/v1", True),
    ],
)
async def test_proxies_are_left_to_httpx(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, is_direct: bool
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (await direct_route(url) is not None) is is_direct
    await close_connections()


def test_a_request_without_tls_does_not_import_httpx() -> None:
    """Its import takes longer than the rest of the first turn."""
    script = """
import asyncio, sys
from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import SessionId
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.settings import Selection
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.openai_compatible import CompatibleModel

async def main():
    model = CompatibleModel(ModelInfo("p", "m"), ModelAccess("http://127.0.0.1:1/v1", "k"), Selection())
    try:
        async for _ in model.stream(ModelRequest(SessionId("s"), "", ())):
            pass
    except ProviderError as error:
        print(error.trouble)

asyncio.run(main())
print("httpx2" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split()[1:] == ["False"], done.stdout + done.stderr
