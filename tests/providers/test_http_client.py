"""The shared HTTP clients: the proxy decision, and imports of slow modules."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.providers.http_client import close_connections, http_client, in_thread
from holdfast.providers.httpx_transport import Transport

PROXY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("environment", "url", "is_proxied"),
    [
        ({}, "http://host.test/v1", False),
        ({"http_proxy": PROXY}, "http://host.test/v1", True),
        ({"http_proxy": PROXY}, "https://host.test/v1", False),
        ({"HTTPS_PROXY": PROXY}, "https://host.test/v1", True),
        ({"HTTPS_PROXY": PROXY}, "http://host.test/v1", False),
        ({"all_proxy": PROXY}, "http://host.test/v1", True),
        ({"ALL_PROXY": PROXY}, "https://host.test/v1", True),
        ({"all_proxy": PROXY, "no_proxy": "host.test"}, "http://host.test/v1", False),
        ({"http_proxy": PROXY, "NO_PROXY": "other.test,.test"}, "http://host.test/v1", False),
        ({"http_proxy": PROXY, "no_proxy": "other.test"}, "http://host.test/v1", True),
        *(({"http_proxy": PROXY}, f"http://{host}:1/v1", False) for host in ("localhost", "127.0.0.1", "[::1]")),
    ],
)
async def test_the_proxy_of_an_address(
    environment: dict[str, str], url: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = await http_client(url)
    try:
        assert isinstance(client._transport, Transport) != is_proxied
        assert await http_client(url) is client
    finally:
        await close_connections()
    assert client.is_closed
    after = await http_client(url)
    assert after is not client
    await close_connections()


@pytest.fixture
def collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("text", ["", "raise ImportError('broken')"], ids=["loads", "fails"])
async def test_an_import_leaves_the_collector_as_it_was(
    is_enabled: bool, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: None
) -> None:
    (tmp_path / "slow_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_module", raising=False)
    (gc.enable if is_enabled else gc.disable)()
    if text:
        with pytest.raises(ImportError, match="broken"):
            await in_thread("slow_module")
    else:
        assert (await in_thread("slow_module")).__name__ == "slow_module"
    assert gc.isenabled() == is_enabled
