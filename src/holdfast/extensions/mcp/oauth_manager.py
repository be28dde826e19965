"""Logins to the MCP servers of a workspace, and access to their tokens."""

import asyncio

from holdfast.config.configuration import Configuration
from holdfast.config.credentials import TokenRefresher
from holdfast.domain.errors import BadRequest
from holdfast.domain.settings import McpSettings
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.mcp.bounded_waits import retrieve_exception
from holdfast.extensions.mcp.mcp_server import McpServer, transport_type
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.providers.shared_http_clients import in_thread, post_form
from holdfast.tasks import TaskOwner

__all__ = ["OAuthManager"]

_LOGIN = "holdfast.extensions.mcp.oauth_login"


class _Login:
    """A login in progress, shared by all its waiters."""

    def __init__(self) -> None:
        self.authorization_url = ""
        """The authorization URL; empty until it is known."""
        self.task: asyncio.Task[None]


class OAuthManager:
    """Logins of one workspace, at most one at a time for each server."""

    def __init__(self, context: ExtensionContext, tasks: TaskOwner) -> None:
        self._context = context
        self._tasks = tasks
        self._refresher = TokenRefresher(context.credentials)
        self._active: dict[str, _Login] = {}

    def tokens_for(self, url: str) -> OAuthTokens:
        """Return the token store for a server URL."""
        return OAuthTokens(self._context.credentials, self._refresher, url, post_form)

    def authorization_url(self, name: str) -> str:
        """Return the authorization URL of a login in progress, or an empty string."""
        login = self._active.get(name)
        return login.authorization_url if login is not None else ""

    async def log_in(self, server: McpServer) -> None:
        """Log in, or join the login in progress, and wait for its end. Raises `LoginFailed`, `BadRequest`."""
        if transport_type(server.settings) == "stdio":
            raise BadRequest(f"The MCP server {server.name} is a program of this machine and has no login.")
        login = self._active.get(server.name)
        if login is None:
            login = self._active[server.name] = _Login()
            login.task = self._tasks.start(
                self._run_login(server, login),
                name=f"log in to {server.name}",
                done=lambda task: self._on_done(server.name, task),
            )
        await asyncio.shield(login.task)

    async def close(self) -> None:
        """Wait for token refreshes in progress: a rotated refresh token must not be lost."""
        await self._refresher.close()

    async def _run_login(self, server: McpServer, login: _Login) -> None:
        await in_thread(_LOGIN)
        # The module is loaded by now. An import statement, not a look-up by name, so that types are checked.
        from holdfast.extensions.mcp.oauth_login import LoginRequest, log_in  # noqa: PLC0415

        settings = server.settings
        if not server.is_client_owned:
            settings = await asyncio.to_thread(_expand_settings, self._context.configuration, server.name)

        def on_url(authorization_url: str) -> None:
            login.authorization_url = authorization_url

        request = LoginRequest(
            settings.url,
            settings.headers,
            settings.oauth_client_id,
            settings.oauth_client_secret,
            settings.oauth_callback_port,
            transport_type(settings) == "sse",
        )
        await log_in(request, self.tokens_for(settings.url), on_url)
        server.retry_now()

    def _on_done(self, name: str, task: "asyncio.Task[None]") -> None:
        self._active.pop(name, None)
        retrieve_exception(task)


def _expand_settings(configuration: Configuration, name: str) -> McpSettings:
    settings, problems = configuration.mcp(name)
    if problems:
        raise BadRequest(str(problems[0]))
    return settings
