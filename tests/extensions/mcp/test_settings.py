"""Effect of the settings of a remote server: transport, headers and token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from config.settings_files import SettingsFiles
from extensions.mcp.in_memory_mcp import McpFixture, in_virtual_time
from holdfast.config.credentials import Credentials, Token, TokenRefresher
from holdfast.domain.errors import BadRequest
from holdfast.domain.extensions import McpInfo
from holdfast.extensions.mcp.mcp_types import ConnectionClosed, ConnectionParams
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens, credentials_key
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)
URL = "https://host.example/mcp"


def reach(top: Path, settings: Json, patch: pytest.MonkeyPatch) -> tuple[ConnectionParams | None, McpInfo]:
    """Return the connection plan of the server, and its state after the connection failed."""
    plans: list[ConnectionParams] = []

    @asynccontextmanager
    async def opened(plan: ConnectionParams, seconds: float) -> AsyncIterator[None]:
        plans.append(plan)
        if seconds:
            raise ConnectionClosed("It is away.")
        yield

    async def main() -> McpInfo:
        fixture = McpFixture(top, s=settings)
        fixture.mcp.start()
        try:
            await fixture.wait_for_state("error")
            return fixture.state()
        finally:
            await fixture.mcp.close()

    patch.setattr("holdfast.extensions.mcp.mcp_connection.open_connection", opened)
    found = in_virtual_time(main)
    return (plans[0] if plans else None), found


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"url": URL}, "http"),
        ({"url": URL, "type": "http"}, "http"),
        ({"url": URL, "type": "sse"}, "sse"),
        ({"url": URL, "command": "x"}, "stdio"),
        ({"command": "x"}, "stdio"),
    ],
)
def test_transport_of_settings(settings: Json, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = reach(tmp_path, settings, monkeypatch)
    assert plan is not None
    assert (plan.type, found.type) == (way, way)
    assert plan.url == ("" if way == "stdio" else URL)
    assert plan.command == (("x",) if way == "stdio" else ())


@pytest.mark.parametrize(
    ("url", "is_good"),
    [
        ("http://host/x", True),
        ("HTTPS://host", True),
        ("https://[::1]:8/", True),
        ("ftp://host/x", False),
        ("host/x", False),
        ("https://", False),
        ("http:///x", False),
        ("file:///x", False),
    ],
)
def test_url_needs_scheme_and_host(url: str, is_good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = reach(tmp_path, {"url": url, "type": "http"}, monkeypatch)
    assert (plan is not None) == is_good
    assert found.error == (
        "It is away." if is_good else "Its address is not valid: mcp.s.url begins with http:// or https://."
    )


@pytest.mark.parametrize(
    ("more", "has_tokens"),
    [
        ({}, True),
        ({"oauth": True}, True),
        ({"oauth": False}, False),
        ({"headers": {"X-Key": "k"}}, True),
        ({"headers": {"Authorization": "k"}}, False),
        ({"headers": {"authorization": "k"}}, False),
        ({"headers": {"AUTHORIZATION": "k"}}, False),
        ({"headers": {"X-Key": "k", "Authorization": "k"}}, False),
        ({"headers": {"X-Authorization": "k"}}, True),
        ({"oauth": True, "headers": {"Authorization": "k"}}, False),
    ],
)
def test_token_is_sent_unless_header_is_configured(
    more: Json, has_tokens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = reach(tmp_path, {"url": URL, **more}, monkeypatch)
    assert plan is not None
    assert (plan.tokens is not None) == has_tokens
    assert plan.headers == more.get("headers", {})


def test_missing_template_variable_is_reported_without_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = reach(tmp_path, {"url": URL, "headers": {"X": "$NOT_SET_ANYWHERE"}}, monkeypatch)
    assert plan is None
    assert "NOT_SET_ANYWHERE is not set" in found.error


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, {}),
        ({"headers": {"X": "1"}}, {"headers": {"X": "1"}}),
        ({"oauth_client_id": "i"}, {"client_id": "i"}),
        ({"oauth_client_secret": "$HOME"}, {"client_secret": "{home}"}),
        ({"oauth_callback_port": 7}, {"port": 7}),
        ({"type": "sse"}, {"is_sse": True}),
    ],
)
def test_login_receives_settings(more: Json, wanted: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[Json, str]:
        fixture = McpFixture(tmp_path, s={"url": URL, **more})
        seen: list[Json] = []
        shown = asyncio.Event()
        allowed = asyncio.Event()

        async def log_in(wanted: Any, _: OAuthTokens, show: Any) -> None:  # noqa: ANN401
            seen.append(msgspec.structs.asdict(wanted))
            show("https://login.example/")
            shown.set()
            await allowed.wait()

        monkeypatch.setattr("holdfast.extensions.mcp.oauth_login.log_in", log_in)
        fixture.mcp.start()
        try:
            servers = await fixture.mcp.manager()
            assert servers.login_url("s") == ""
            first, second = start(servers.log_in("s")), start(servers.log_in("s"))
            await shown.wait()
            await elapse(1)
            address = servers.login_url("s")
            allowed.set()
            await asyncio.gather(first, second)
            assert len(seen) == 1, "who comes second waits for the first"
            assert servers.login_url("s") == ""
            return seen[0], address
        finally:
            await fixture.mcp.close()

    @asynccontextmanager
    async def opened(plan: object, _: float) -> AsyncIterator[None]:
        if plan is not None:
            raise ConnectionClosed("It is away.")
        yield

    monkeypatch.setattr("holdfast.extensions.mcp.mcp_connection.open_connection", opened)
    found, address = in_virtual_time(main)
    plain: Json = {"headers": {}, "client_id": "", "client_secret": "", "port": 0, "is_sse": False}
    if "client_secret" in wanted:
        wanted = {"client_secret": str(tmp_path / "home")}
    assert found == {"url": URL, **plain, **wanted}
    assert address == "https://login.example/"


def test_local_program_has_no_login(tmp_path: Path) -> None:
    async def main() -> None:
        fixture = McpFixture(tmp_path, s={"command": "x"})
        fixture.mcp.start()
        try:
            with pytest.raises(BadRequest, match="is a program of this machine"):
                await (await fixture.mcp.manager()).log_in("s")
        finally:
            await fixture.mcp.close()

    in_virtual_time(main)


# The client and its token


@pytest.mark.parametrize(
    ("url", "uses_proxies"),
    [("http://localhost:1/", False), ("http://127.0.0.1/", False), ("http://[::1]/", False), ("http://host/", True)],
)
async def test_local_server_bypasses_proxy(url: str, uses_proxies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.extensions.mcp.http_transport import ResponseMonitor, make_client  # noqa: PLC0415 - it takes long

    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    async with await make_client(url, {"X": "1"}, ResponseMonitor()) as client:
        assert client.trust_env == uses_proxies
        assert client.headers["X"] == "1"
        assert client.headers["User-Agent"].startswith("Holdfast/")
        assert client.timeout.read is None


@pytest.mark.parametrize(
    ("status", "message", "is_forgotten"),
    [
        (404, "Session terminated", True),
        (400, "Server returned an error response", True),
        (404, "no such SESSION", True),
        (404, "no such tool", False),
        (200, "Session terminated", False),
        (500, "session lost", False),
    ],
)
def test_responses_that_mean_expired_session(status: int, message: str, is_forgotten: bool) -> None:
    from holdfast.extensions.mcp.http_transport import ResponseMonitor  # noqa: PLC0415 - it takes long

    seen = ResponseMonitor()
    seen.status = status
    assert seen.is_session_unknown(message) == is_forgotten


async def never(*_: object) -> Any:  # noqa: ANN401
    raise AssertionError("nothing is sent in these tests")


@pytest.mark.parametrize(
    ("expires_at", "is_renewed"), [(0.0, False), (1000.0, True), (1029.9, True), (1030.0, True), (1031.0, False)]
)
async def test_expiring_token_is_renewed_first(expires_at: float, is_renewed: bool, tmp_path: Path) -> None:
    place = SettingsFiles(tmp_path)
    credentials = Credentials(str(place.home / "c.toml"), {"HOLDFAST_KEYRING": "0"})
    refresher = TokenRefresher(credentials)
    asked: list[str] = []

    async def refresh(name: str, post: Any, *, used: str) -> Token:  # noqa: ANN401
        asked.append(used)
        return Token("new", "r", 0.0, "https://t", "c", "", "")

    refresher.refresh = refresh  # type: ignore[method-assign, assignment]
    tokens = OAuthTokens(credentials, refresher, URL, never, now=lambda: 1000.0)
    assert await tokens.current() == ""
    assert await tokens.refresh("old") == "", "nobody has logged in"
    await tokens.store(Token("old", "r", expires_at, "https://t", "c", "", ""))
    assert await tokens.current() == ("new" if is_renewed else "old")
    assert asked == (["old"] if is_renewed else [])
    assert await tokens.refresh("") == "", "none was used"
    assert await tokens.delete()
    assert await tokens.current() == ""
    await refresher.close()


async def test_unrenewable_token_is_dropped(tmp_path: Path) -> None:
    credentials = Credentials(str(tmp_path / "c.toml"), {"HOLDFAST_KEYRING": "0"})
    refresher = TokenRefresher(credentials)

    async def refuse(name: str, post: Any, *, used: str) -> Token:  # noqa: ANN401
        raise BadRequest("no")

    refresher.refresh = refuse  # type: ignore[method-assign, assignment]
    tokens = OAuthTokens(credentials, refresher, URL, never)
    await tokens.store(Token("old", "r", 0.0, "https://t", "c", "", ""))
    assert await tokens.refresh("old") == ""
    await refresher.close()


@pytest.mark.parametrize(
    ("url", "is_plain"),
    [("https://h/", True), ("https://h/" + "x" * 82, True), ("https://h/" + "x" * 83, False), ("https://h/ x", False)],
)
def test_token_is_stored_under_its_url(url: str, is_plain: bool) -> None:
    name = credentials_key(url)
    assert (name == f"mcp:{url}") == is_plain
    assert len(name) <= 96
    assert credentials_key(url + "y") != name


@pytest.mark.parametrize(("pieces", "is_accepted"), [((8, 8), True), ((16,), True), ((8, 9), False), ((17,), False)])
async def test_a_response_body_is_bounded(
    pieces: tuple[int, ...], is_accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.extensions.mcp import http_transport  # noqa: PLC0415 - it takes long

    monkeypatch.setattr(http_transport, "MAX_MESSAGE_BYTES", 16)

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for size in pieces:
                yield b"x" * size

    async def read() -> int:
        return sum([len(piece) async for piece in http_transport._BoundedBody(Body())])

    if is_accepted:
        assert await read() == sum(pieces)
        return
    with pytest.raises(ConnectionClosed):
        await read()
    monkeypatch.setattr(http_transport, "MAX_MESSAGE_BYTES", 3 << 20)
    pieces = ((3 << 20) + 1,)
    with pytest.raises(ConnectionClosed, match=r"of more than 3 MiB\."):
        await read()
