"""OAuth login to a server: discovery, registration, consent, storage, renewal, revocation."""

import asyncio
import stat
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from e2e.tool_client import ToolClient, tool_client
from extensions.mcp.authorization_server import AuthorizationServer, authorization_server, browse
from extensions.mcp.servers import add, state, wait_for_state
from holdfast.client.errors import ServerProblem
from holdfast.domain.messages import ToolResult
from holdfast.extensions.mcp.oauth_tokens import credentials_key
from holdfast.testing.gates import start

GREET = ("mcp_office_greet", {"name": "Ada"})


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in a temporary home instead of that of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_KEYRING", "0")


async def _address(one: ToolClient) -> str:
    async with asyncio.timeout(20):
        while not (url := (await one.client.mcp_auth_url(one.workspace, "office")).auth_url):
            pass
    return url


async def _log_in(one: ToolClient) -> str:
    login = start(one.client.mcp_auth(one.workspace, "office"))
    page = await browse(await _address(one))
    await login
    return page


async def _call_greet(one: ToolClient) -> ToolResult:
    (result,) = await one.call_tools_and_wait(GREET)
    return result


async def test_login_is_stored_renewed_and_requested_again(tmp_path: Path) -> None:
    async with authorization_server() as there, tool_client() as one:
        assert (await add(one, office={"url": there.url}))["office"].state == "needs auth"
        (waiting,) = await one.client.mcp_pending_auth(one.workspace)
        assert (waiting.name, waiting.url) == ("office", there.url)
        assert there.clients == {}, "nobody is registered before somebody wants to log in"
        assert "You are logged in" in await _log_in(one)
        await wait_for_state(one, "office", "connected")
        assert (await _call_greet(one)).content == "Hello, Ada."
        assert await one.client.mcp_pending_auth(one.workspace) == ()
        await _check_token_storage(one, there, tmp_path)
        # The token was revoked: a new one is fetched without interaction.
        there.forget_access()
        assert (await _call_greet(one)).content == "Hello, Ada."
        assert [form["grant_type"] for form in there.grants] == ["authorization_code", "refresh_token"]
        assert len(there.clients) == 1
        # The refresh token was revoked too.
        there.forget_all()
        lost = await _call_greet(one)
        assert lost.is_error
        info = await wait_for_state(one, "office", "needs auth")
        assert info.error == "It requires a login: holdfast mcp login office"
        again = await _call_greet(one)
        assert again.is_error
        assert "holdfast mcp login office" in again.content
        await _log_in(one)
        await wait_for_state(one, "office", "connected")
        assert (await _call_greet(one)).content == "Hello, Ada."


async def _check_token_storage(one: ToolClient, there: AuthorizationServer, home: Path) -> None:
    """Check that the token is only in the private credentials file, and in no response."""
    (token,) = there.access
    keys = home / "holdfast/credentials.toml"
    assert token in keys.read_text()
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert credentials_key(there.url) in keys.read_text()
    answers = [await one.client.get_config(one.workspace), await one.client.mcp_states(one.workspace)]
    assert token not in str(msgspec.to_builtins(answers))
    held = [path.read_bytes() for path in one.server.directory.root.rglob("*") if path.is_file()]
    assert not any(token.encode() in data for data in held)


async def test_expiring_token_is_renewed_first() -> None:
    async with authorization_server() as there, tool_client() as one:
        there.lasts = 5
        await add(one, office={"url": there.url})
        await _log_in(one)
        await wait_for_state(one, "office", "connected")
        assert len(there.grants) > 1
        assert {form["resource"] for form in there.grants} == {there.url}


async def test_refused_or_forged_login_is_explained() -> None:
    async with authorization_server() as there, tool_client() as one:
        await add(one, office={"url": there.url}, local={"command": "true"})
        there.denies = True
        login = start(one.client.mcp_auth(one.workspace, "office"))
        assert "did not succeed" in await browse(await _address(one))
        with pytest.raises(ServerProblem, match="Not today") as refused:
            await login
        assert refused.value.status == 400
        there.denies = False
        login = start(one.client.mcp_auth(one.workspace, "office"))
        second = start(one.client.mcp_auth(one.workspace, "office"))
        callback = parse_qs(urlsplit(await _address(one)).query)["redirect_uri"][0]
        assert "nothing here" in await browse(callback)
        assert "nothing here" in await browse(callback.replace("/callback", "/"))
        await browse(f"{callback}?code=stolen&state=guessed")
        for one_of_them in (login, second):
            with pytest.raises(ServerProblem, match="did not succeed"):
                await one_of_them
        assert there.grants == []
        assert (await state(one, "office")).state == "needs auth"
        for name in ("local", "unknown"):
            with pytest.raises(ServerProblem) as refused:
                await one.client.mcp_auth(one.workspace, name)
            assert refused.value.status == 400


async def test_r12_token_is_sent_to_its_own_url_only() -> None:
    """R12: a server that takes the name of another does not get its token."""
    async with authorization_server() as there, authorization_server() as elsewhere, tool_client() as one:
        await add(one, office={"url": there.url})
        await _log_in(one)
        await wait_for_state(one, "office", "connected")
        await one.client.config_set(one.workspace, "mcp.office.url", elsewhere.url, scope=1)
        await wait_for_state(one, "office", "needs auth")
        assert credentials_key(there.url) != credentials_key(elsewhere.url)


async def test_configured_key_needs_no_login() -> None:
    async with authorization_server() as there, tool_client(env=("OFFICE_KEY=a-key-of-mine",)) as one:
        there.access.add("a-key-of-mine")
        headers = {"Authorization": "Bearer $OFFICE_KEY"}
        assert (await add(one, office={"url": there.url, "headers": headers}))["office"].state == "connected"
        there.forget_all()
        refused = (await add(one, other={"url": there.url, "headers": headers}))["other"]
        assert refused.state == "error"
        assert "401" in refused.error
