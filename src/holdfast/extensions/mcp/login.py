"""OAuth 2.1 login to an MCP server: discovery, client registration, and authorization in a browser.

This module imports `mcp`, which is slow to import. It is imported in a thread when a login starts.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from holdfast import __version__
from holdfast.config.credentials import Token
from holdfast.domain.errors import HoldfastError
from holdfast.extensions.mcp.callback import Callback, waiting_room
from holdfast.extensions.mcp.http import Seen, make_client
from holdfast.extensions.mcp.tokens import Tokens
from holdfast.extensions.mcp.troubles import LoginFailed, sentence

__all__ = ["SECONDS", "Wanted", "log_in"]

SECONDS = 300.0
"""Time limit for the authorization in the browser, in seconds."""
_VERSION = "2025-11-25"


class Wanted(msgspec.Struct, frozen=True):
    """Parameters of a login. Without a client id, a client is registered dynamically."""

    url: str
    headers: Mapping[str, str] = {}
    client_id: str = ""
    client_secret: str = ""
    port: int = 0
    is_sse: bool = False

    def __repr__(self) -> str:
        return f"Wanted({self.url!r}, …)"


class _Held:
    """In-memory token storage for the OAuth library. The result is stored only once the login is complete."""

    def __init__(self, wanted: Wanted, redirect: str) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        if wanted.client_id:
            method = "client_secret_post" if wanted.client_secret else "none"
            self.client = OAuthClientInformationFull.model_validate(
                {
                    "client_id": wanted.client_id,
                    "client_secret": wanted.client_secret or None,
                    "redirect_uris": [redirect],
                    "token_endpoint_auth_method": method,
                }
            )

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens, if there are any yet."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client registration, if there is one yet."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the client registration."""
        self.client = client_info


async def log_in(wanted: Wanted, tokens: Tokens, show: Callable[[str], None]) -> None:
    """Log in and store the token. `show` receives the authorization URL. Raises `LoginFailed`."""
    try:
        async with asyncio.timeout(SECONDS), waiting_room(wanted.port) as room:
            await tokens.keep(await _token(wanted, room, show))
    except TimeoutError:
        raise LoginFailed(f"Nobody allowed it within {SECONDS / 60:.0f} minutes: try again.") from None
    except HoldfastError:
        raise
    except Exception as error:
        # The library's error texts may contain data that the server sent, but never data that we sent.
        raise LoginFailed(f"The login did not succeed: {sentence(error)}") from None


async def _token(wanted: Wanted, room: Callback, show: Callable[[str], None]) -> Token:
    async def come_back() -> AuthorizationCodeResult:
        values = await room.values()
        return AuthorizationCodeResult(code=values.get("code", ""), state=values.get("state"), iss=values.get("iss"))

    async def open_browser(url: str) -> None:
        show(url)

    held = _Held(wanted, room.uri)
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "Holdfast",
            "redirect_uris": [room.uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
    )
    provider = OAuthClientProvider(wanted.url, metadata, held, open_browser, come_back)
    async with await make_client(wanted.url, wanted.headers, Seen(), provider) as client:
        await _knock(client, wanted)
    if held.tokens is None or held.client is None:
        raise LoginFailed("The server did not ask for a login: there is nothing to log in to.")
    return _kept(provider, held.tokens, held.client)


async def _knock(client: httpx2.AsyncClient, wanted: Wanted) -> None:
    """Send an `initialize` request. The OAuth provider handles a 401 response to it; the response itself is ignored."""
    greeting: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": _VERSION,
            "capabilities": {},
            "clientInfo": {"name": "holdfast", "version": __version__},
        },
    }
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": _VERSION}
    method, body = ("GET", None) if wanted.is_sse else ("POST", greeting)
    async with client.stream(method, wanted.url, json=body, headers=headers):
        pass


def _kept(provider: OAuthClientProvider, tokens: OAuthToken, client: OAuthClientInformationFull) -> Token:
    context = provider.context
    found = context.oauth_metadata
    url = (
        str(found.token_endpoint)
        if found
        else urljoin(context.get_authorization_base_url(context.server_url), "/token")
    )
    return Token(
        tokens.access_token,
        tokens.refresh_token or "",
        time.time() + tokens.expires_in if tokens.expires_in else 0.0,
        url,
        client.client_id or "",
        client.client_secret or "",
        context.get_resource_url() if context.should_include_resource_param(context.protocol_version) else "",
    )
