"""OAuth 2.1 login to an MCP server: discovery, client registration, and authorization in a browser, which is redirected
to a loopback HTTP listener that is open for the duration of the login.

This module imports `mcp`, which is slow to import. It is imported in a thread when a login starts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from holdfast import __version__
from holdfast.config.credentials import Token
from holdfast.domain.errors import HoldfastError
from holdfast.extensions.mcp.http_transport import ResponseMonitor, make_client
from holdfast.extensions.mcp.mcp_types import LoginFailed, error_message
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.tasks import TaskOwner

__all__ = ["LOGIN_TIMEOUT", "REDIRECT_PATH", "Callback", "LoginRequest", "log_in", "redirect_listener"]

REDIRECT_PATH = "/callback"
_HOST = "127.0.0.1"
_MAX_REQUEST = 16 * 1024
_REQUEST_TIMEOUT = 10.0
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast</title>
<style>body{{font:18px/1.5 system-ui,sans-serif;max-width:32em;margin:20vh auto;padding:0 1em;color:#223;
background:#f7f6f2}}@media(prefers-color-scheme:dark){{body{{color:#dde;background:#16181d}}}}</style></head>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""
_DONE_PAGE = ("You are logged in", "You can close this page and go back to Holdfast.")
_REFUSED_PAGE = ("The login did not succeed", "Go back to Holdfast: it shows the reason, and you can try again.")
_NOT_FOUND_PAGE = ("There is nothing here", "This page only receives the result of a login.")
LOGIN_TIMEOUT = 300.0
"""Time limit for the authorization in the browser, in seconds."""
_PROTOCOL_VERSION = "2025-11-25"


class Callback:
    """The parameters of the first redirect."""

    def __init__(self, port: int) -> None:
        self.uri = f"http://{_HOST}:{port}{REDIRECT_PATH}"
        self._redirect: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def values(self) -> dict[str, str]:
        """Wait for the redirect and return its parameters. Raises `LoginFailed` if the login was refused."""
        values = await asyncio.shield(self._redirect)
        if error := values.get("error"):
            reason = values.get("error_description") or error
            raise LoginFailed(f"The login was refused: {' '.join(reason.split())[:200]}")
        return values

    def handle(self, target: str) -> tuple[int, tuple[str, str]]:
        """Handle a request target and return the status and the page. Only the first redirect counts."""
        parts = urlsplit(target)
        values = {name: given[0] for name, given in parse_qs(parts.query).items()}
        if parts.path != REDIRECT_PATH or not ({"code", "error"} & values.keys()):
            return 404, _NOT_FOUND_PAGE
        if not self._redirect.done():
            self._redirect.set_result(values)
        return 200, _REFUSED_PAGE if "error" in values else _DONE_PAGE


@asynccontextmanager
async def redirect_listener(port: int) -> AsyncIterator[Callback]:
    """Listen for the redirect during the block. Port 0 selects a free port. Raises `LoginFailed` if
    the port is in use.
    """
    callback: Callback
    handlers = TaskOwner()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                async with asyncio.timeout(_REQUEST_TIMEOUT):
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, target, *_ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
                    status, (title, text) = callback.handle(target) if method == "GET" else (405, _NOT_FOUND_PAGE)
                    page = _PAGE.format(title=title, text=text).encode()
                    lines = (
                        f"HTTP/1.1 {status} {'OK' if status == 200 else 'No'}",
                        "Content-Type: text/html; charset=utf-8",
                        f"Content-Length: {len(page)}",
                        "Cache-Control: no-store",
                        "Referrer-Policy: no-referrer",
                        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",
                        "Connection: close",
                    )
                    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + page)
                    await writer.drain()
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.start(serve(reader, writer), name="login redirect")

    try:
        server = await asyncio.start_server(accept, _HOST, port, limit=_MAX_REQUEST)
    except OSError as error:
        raise LoginFailed(
            f"Port {port} of this machine is taken ({error.strerror}): set another oauth_callback_port."
        ) from None
    callback = Callback(server.sockets[0].getsockname()[1])
    try:
        yield callback
    finally:
        server.close()
        # Let the page of the redirect be sent. A browser that keeps a connection open must not delay the end of the
        # login, and its connection does not outlive the login.
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await handlers.drain()
        handlers.cancel_all()


class LoginRequest(msgspec.Struct, frozen=True):
    """Parameters of a login. Without a client id, a client is registered dynamically."""

    url: str
    headers: Mapping[str, str] = {}
    client_id: str = ""
    client_secret: str = ""
    port: int = 0
    is_sse: bool = False

    def __repr__(self) -> str:
        return f"LoginRequest({self.url!r}, …)"


class _MemoryStorage:
    """In-memory token storage for the OAuth library. The result is stored only once the login is complete."""

    def __init__(self, request: LoginRequest, redirect: str) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        if request.client_id:
            method = "client_secret_post" if request.client_secret else "none"
            self.client = OAuthClientInformationFull.model_validate(
                {
                    "client_id": request.client_id,
                    "client_secret": request.client_secret or None,
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


async def log_in(request: LoginRequest, tokens: OAuthTokens, on_url: Callable[[str], None]) -> None:
    """Log in and store the token. `on_url` receives the authorization URL. Raises `LoginFailed`."""
    try:
        async with asyncio.timeout(LOGIN_TIMEOUT), redirect_listener(request.port) as callback:
            await tokens.store(await _obtain_token(request, callback, on_url))
    except TimeoutError:
        raise LoginFailed(f"The login was not confirmed within {LOGIN_TIMEOUT / 60:.0f} minutes: try again.") from None
    except HoldfastError:
        raise
    except Exception as error:
        # The library's error texts may contain data that the server sent, but never data that we sent.
        raise LoginFailed(f"The login did not succeed: {error_message(error)}") from None


async def _obtain_token(request: LoginRequest, callback: Callback, on_url: Callable[[str], None]) -> Token:
    async def wait_for_code() -> AuthorizationCodeResult:
        values = await callback.values()
        return AuthorizationCodeResult(code=values.get("code", ""), state=values.get("state"), iss=values.get("iss"))

    async def open_browser(url: str) -> None:
        on_url(url)

    storage = _MemoryStorage(request, callback.uri)
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "Holdfast",
            "redirect_uris": [callback.uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
    )
    provider = OAuthClientProvider(request.url, metadata, storage, open_browser, wait_for_code)
    async with await make_client(request.url, request.headers, ResponseMonitor(), provider) as client:
        await _trigger_login(client, request)
    if storage.tokens is None or storage.client is None:
        raise LoginFailed("The server does not require a login.")
    return _to_token(provider, storage.tokens, storage.client)


async def _trigger_login(client: httpx2.AsyncClient, request: LoginRequest) -> None:
    """Send an `initialize` request. The OAuth provider handles a 401 response to it; the response itself is ignored."""
    initialize: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": _PROTOCOL_VERSION,
            "capabilities": {},
            "clientInfo": {"name": "holdfast", "version": __version__},
        },
    }
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": _PROTOCOL_VERSION}
    method, body = ("GET", None) if request.is_sse else ("POST", initialize)
    async with client.stream(method, request.url, json=body, headers=headers):
        pass


def _to_token(provider: OAuthClientProvider, tokens: OAuthToken, client: OAuthClientInformationFull) -> Token:
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
