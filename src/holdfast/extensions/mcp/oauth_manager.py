"""Logins to the MCP servers of a workspace, and access to their tokens."""

import asyncio

from holdfast.config.configuration import Configuration
from holdfast.config.credentials import TokenRefresher
from holdfast.domain.errors import BadRequest
from holdfast.domain.settings import McpSettings
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.mcp.detached_wait import seen
from holdfast.extensions.mcp.mcp_server import McpServer, way_of
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.providers.http_client import in_thread, post_form
from holdfast.tasks import TaskOwner

__all__ = ["OAuthManager"]

_LOGIN = "holdfast.extensions.mcp.oauth_login"


class _Login:
    """A login in progress, shared by all its waiters."""

    def __init__(self) -> None:
        self.address = ""
        """The authorization URL; empty until it is known."""
        self.task: asyncio.Task[None]


class OAuthManager:
    """Logins of one workspace, at most one at a time for each server."""

    def __init__(self, ground: ExtensionContext, tasks: TaskOwner) -> None:
        self._ground = ground
        self._tasks = tasks
        self._refresher = TokenRefresher(ground.credentials)
        self._under_way: dict[str, _Login] = {}

    def tokens_for(self, url: str) -> OAuthTokens:
        """Return the token store for a server URL."""
        return OAuthTokens(self._ground.credentials, self._refresher, url, post_form)

    def address(self, name: str) -> str:
        """Return the authorization URL of a login in progress, or an empty string."""
        login = self._under_way.get(name)
        return login.address if login is not None else ""

    async def log_in(self, server: McpServer) -> None:
        """Log in, or join the login in progress, and wait for its end. Raises `LoginFailed`, `BadRequest`."""
        if way_of(server.settings) == "stdio":
            raise BadRequest(f"The MCP server {server.name} is a program of this machine: nobody logs in to it.")
        login = self._under_way.get(server.name)
        if login is None:
            login = self._under_way[server.name] = _Login()
            login.task = self._tasks.start(
                self._work(server, login),
                name=f"log in to {server.name}",
                done=lambda task: self._over(server.name, task),
            )
        await asyncio.shield(login.task)

    async def close(self) -> None:
        """Wait for token refreshes in progress: a rotated refresh token must not be lost."""
        await self._refresher.close()

    async def _work(self, server: McpServer, login: _Login) -> None:
        await in_thread(_LOGIN)
        # The import below only looks the loaded module up. It is an import statement so that types are checked.
        from holdfast.extensions.mcp.oauth_login import LoginRequest, log_in  # noqa: PLC0415

        settings = server.settings
        if not server.is_lent:
            settings = await asyncio.to_thread(_expanded, self._ground.configuration, server.name)

        def show(address: str) -> None:
            login.address = address

        wanted = LoginRequest(
            settings.url,
            settings.headers,
            settings.oauth_client_id,
            settings.oauth_client_secret,
            settings.oauth_callback_port,
            way_of(settings) == "sse",
        )
        await log_in(wanted, self.tokens_for(settings.url), show)
        server.wake()

    def _over(self, name: str, task: "asyncio.Task[None]") -> None:
        self._under_way.pop(name, None)
        seen(task)


def _expanded(configuration: Configuration, name: str) -> McpSettings:
    settings, problems = configuration.mcp(name)
    if problems:
        raise BadRequest(str(problems[0]))
    return settings
