"""The shared HTTP clients: the proxy decision, imports of slow modules, and the transport on our own connections."""

import asyncio
import gc
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from holdfast.http11.client_connection import ClientConnection, ConnectionPool, Origin, RequestWatchdog
from holdfast.http11.client_messages import ConnectionBroken, ResponseHead
from holdfast.providers.httpx_transport import Transport, replace_surrogates
from holdfast.providers.shared_http_clients import close_connections, http_client, in_thread
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse, in_virtual_time

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


# Transport


class FakeConnection:
    """Stands for a connection of `http11`. `failure` is raised instead of a head; `is_stuck` never responds."""

    has_unread = False

    def __init__(self, failure: Exception | None = None, *, received: bool = False, is_stuck: bool = False) -> None:
        self.failure, self.has_received, self.is_stuck = failure, received, is_stuck
        self.is_aborted = self.is_released = False

    def send(self, message: tuple[bytes, bytes], watchdog: RequestWatchdog) -> None:
        watchdog.register(self)
        self.watchdog = watchdog

    async def head(self) -> ResponseHead:
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return ResponseHead(200, {})

    async def read(self) -> bytes:
        return b""

    def release(self) -> None:
        self.is_released = True

    def abort(self) -> None:
        self.is_aborted = True


class Pool(ConnectionPool):
    """A pool that returns these connections."""

    def __init__(self, idle: FakeConnection | None = None, fresh: FakeConnection | None = None) -> None:
        super().__init__()
        self.idle, self.fresh = idle, fresh or FakeConnection()
        self.origins: list[Origin] = []

    def pop_idle(self, origin: Origin) -> ClientConnection | None:
        self.origins.append(origin)
        return cast("ClientConnection | None", self.idle)

    async def connect(self, origin: Origin, tls: object, seconds: float | None) -> ClientConnection:
        return cast("ClientConnection", self.fresh)


def exchange(
    pool: Pool,
    url: str = "http://x",
    *,
    watchdog: RequestWatchdog | None = None,
    timeout: dict[str, Any] | None = None,
) -> Coroutine[Any, Any, httpx2.Response]:
    transport = Transport(pool)
    extensions = {"timeout": timeout or {}, **({"watch": watchdog} if watchdog else {})}
    return transport.handle_async_request(httpx2.Request("POST", url, extensions=extensions))


@pytest.mark.parametrize(
    ("received", "is_over", "is_repeated"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_request_is_repeated_only_if_nothing_was_received_and_nothing_aborted_it(
    received: bool, is_over: bool, is_repeated: bool
) -> None:
    async def main() -> None:
        watchdog = RequestWatchdog(10, 10)
        if is_over:
            watchdog.abort()
        pool = Pool(FakeConnection(ConnectionBroken("broken"), received=received))
        assert pool.idle is not None
        if is_repeated:
            response = await exchange(pool, watchdog=watchdog)
            assert response.extensions["connection"] is pool.fresh
        else:
            with pytest.raises(httpx2.RemoteProtocolError, match="broken"):
                await exchange(pool, watchdog=watchdog)
        assert pool.idle.is_aborted

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://x/v1", Origin("x", 80, False)),
        ("https://x/v1", Origin("x", 443, True)),
        ("http://x:81/v1", Origin("x", 81, False)),
        ("https://x:444/v1", Origin("x", 444, True)),
    ],
)
def test_the_origin_of_a_request(url: str, origin: Origin) -> None:
    pool = Pool(FakeConnection())
    in_virtual_time(lambda: exchange(pool, url))
    assert pool.origins == [origin]


@pytest.mark.parametrize("has_watchdog", [True, False])
def test_a_cancelled_request_closes_its_connection(has_watchdog: bool) -> None:
    async def main() -> None:
        pool = Pool(fresh=FakeConnection(is_stuck=True))
        task = start(exchange(pool, watchdog=RequestWatchdog(10, 10) if has_watchdog else None))
        await elapse(1)
        task.cancel()
        await asyncio.wait({task})
        assert pool.fresh.is_aborted

    in_virtual_time(main)


@pytest.mark.parametrize(("timeout", "seconds"), [({}, 300.0), ({"read": 30.0}, 30.0), ({"read": None}, 300.0)])
def test_a_request_without_a_watchdog_gets_one_with_its_read_timeout(timeout: dict[str, Any], seconds: float) -> None:
    async def main() -> None:
        pool = Pool(fresh=FakeConnection(is_stuck=True))
        task = start(exchange(pool, timeout=timeout))
        await elapse(seconds - 1)
        before = pool.fresh.is_aborted
        await elapse(2)
        assert (before, pool.fresh.is_aborted) == (False, True)
        task.cancel()

    in_virtual_time(main)


def test_the_watchdog_of_a_finished_response_does_not_close_the_reused_connection() -> None:
    async def main() -> None:
        pool = Pool()
        response = await exchange(pool)
        await response.aread()
        await response.aclose()
        assert pool.fresh.is_released
        await elapse(1_000)
        assert not pool.fresh.is_aborted

    in_virtual_time(main)


@pytest.mark.parametrize(
    ("pieces", "headers", "expected"),
    [
        ([b'"\\ud8', b'3d"'], {"content-type": "application/json"}, b'"\\ufffd"'),
        ([b"\\ud83d"], {"content-type": "text/event-stream"}, b"\\ufffd"),
        ([b"\\ud83d", b"\\ude00"], {"content-type": "text/event-stream"}, b"\\ud83d\\ude00"),
        ([b"\\ud83d"], {"content-type": "text/plain"}, b"\\ud83d"),
        ([b"\\ud83d"], {"content-type": "application/json", "content-encoding": "odd"}, b"\\ud83d"),
    ],
)
async def test_lone_surrogates_of_a_body(pieces: list[bytes], headers: dict[str, str], expected: bytes) -> None:
    async def body() -> Any:  # noqa: ANN401
        for piece in pieces:
            yield piece

    response = httpx2.Response(200, headers=headers, content=body())
    await replace_surrogates(response)
    assert b"".join([piece async for piece in response.aiter_raw()]) == expected


@pytest.mark.parametrize("environment", [{}, {"http_proxy": PROXY}], ids=["direct", "proxied"])
async def test_both_clients_replace_surrogates_and_refuse_compression(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = await http_client("http://host.test")
    assert client.event_hooks["response"] == [replace_surrogates]
    assert client.headers["accept-encoding"] == "identity"
    await close_connections()
