"""An MCP server that requires a login, and its authorization server: small and strict."""

import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import httpx2
import uvicorn
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.testing.gates import start, until

__all__ = ["AuthorizationServer", "authorization_server", "browse"]


class AuthorizationServer:
    """State of the authorization server: registered clients, requests and tokens. Tokens are valid until revoked."""

    def __init__(self) -> None:
        self.base = ""
        self.clients: dict[str, dict[str, Any]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.access: set[str] = set()
        self.renewals: set[str] = set()
        self.denies = False
        self.lasts: int | None = None
        """Reported lifetime of a token in seconds."""
        self.grants: list[dict[str, str]] = []
        """The forms of all token requests."""

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    def forget_access(self) -> None:
        self.access.clear()

    def forget_all(self) -> None:
        self.access.clear()
        self.renewals.clear()

    # Authorization server

    async def resource(self, _: Request) -> Response:
        return JSONResponse({"resource": self.url, "authorization_servers": [self.base]})

    async def metadata(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.base,
                "authorization_endpoint": f"{self.base}/authorize",
                "token_endpoint": f"{self.base}/token",
                "registration_endpoint": f"{self.base}/register",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            }
        )

    async def register(self, request: Request) -> Response:
        body = await request.json()
        client = f"client-{len(self.clients)}"
        self.clients[client] = body
        return JSONResponse({**body, "client_id": client}, 201)

    async def authorize(self, request: Request) -> Response:
        """Approve the request at once, or never, depending on the settings of the test."""
        asked = dict(request.query_params)
        assert asked["redirect_uri"] in self.clients[asked["client_id"]]["redirect_uris"]
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert asked["resource"] == self.url
        if self.denies:
            answer = {"error": "access_denied", "error_description": "Not today.", "state": asked["state"]}
        else:
            code = secrets.token_urlsafe(8)
            self.codes[code] = asked
            answer = {"code": code, "state": asked["state"]}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}")

    async def token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.grants.append(form)
        if form["grant_type"] == "authorization_code":
            asked = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            is_good = base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
            is_good = is_good and form["redirect_uri"] == asked["redirect_uri"]
        else:
            is_good = form["refresh_token"] in self.renewals
            self.renewals.discard(form["refresh_token"])
        if not is_good or form["client_id"] not in self.clients or form["resource"] != self.url:
            return JSONResponse({"error": "invalid_grant"}, 400)
        access, renewal = (f"{kind}-{secrets.token_urlsafe(16)}" for kind in ("access", "renewal"))
        self.access.add(access)
        self.renewals.add(renewal)
        answer = {"access_token": access, "refresh_token": renewal, "token_type": "Bearer"}
        return JSONResponse(answer if self.lasts is None else {**answer, "expires_in": self.lasts})

    # MCP server

    def guarded(self, app: ASGIApp) -> ASGIApp:
        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == "/mcp":
                given = dict(scope["headers"]).get(b"authorization", b"").decode()
                if given.removeprefix("Bearer ") not in self.access:
                    where = f'Bearer resource_metadata="{self.base}/.well-known/oauth-protected-resource/mcp"'
                    await Response(status_code=401, headers={"WWW-Authenticate": where})(scope, receive, send)
                    return
            await app(scope, receive, send)

        return guard


def _tools() -> MCPServer[Any]:
    tools: MCPServer[Any] = MCPServer("office", instructions="Be polite to the office.")

    @tools.tool()
    def greet(name: str) -> str:
        """Greet a person."""
        return f"Hello, {name}."

    @tools.tool()
    def recite() -> str:
        """Return more text than the limit."""
        return "a" * (17 << 20)

    return tools


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def authorization_server(*, streams: bool = True) -> AsyncIterator[AuthorizationServer]:
    """Run both servers. With `streams` responses are event streams; otherwise plain bodies."""
    made = AuthorizationServer()
    inner = _tools().streamable_http_app(json_response=not streams)
    routes = [
        Route("/.well-known/oauth-protected-resource/mcp", made.resource),
        Route("/.well-known/oauth-authorization-server", made.metadata),
        Route("/register", made.register, methods=["POST"]),
        Route("/authorize", made.authorize),
        Route("/token", made.token, methods=["POST"]),
        Mount("/", inner),
    ]

    @asynccontextmanager
    async def open_for(_: Starlette) -> AsyncIterator[None]:
        async with inner.router.lifespan_context(inner):
            yield

    app = Starlette(routes=routes, lifespan=open_for)
    config = uvicorn.Config(made.guarded(app), port=0, log_level="error", timeout_graceful_shutdown=1)
    server = _Quiet(config)
    serving = start(server.serve())
    await until(lambda: server.started)
    made.base = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.should_exit = True
        server.force_exit = True
        await serving
        # A forced exit does not wait for connections with a response in progress.
        for connection in tuple(server.server_state.connections):
            connection.transport.abort()


async def browse(url: str) -> str:
    """Follow a URL and its redirects as a browser does."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        return (await browser.get(url)).text
