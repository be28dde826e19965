"""OAuth tokens of MCP servers, stored in the user's credentials under the server URL, not under the server name.

A name can be reassigned to another server, even by another project. A token is sent only to the URL that it was issued
for.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable

from holdfast.config.credentials import Credentials, Post, Token, TokenRefresher
from holdfast.domain.errors import HoldfastError

__all__ = ["OAuthTokens", "credentials_key"]

_MAX_KEY = 96
_REFRESH_MARGIN = 30.0
"""Seconds before its expiry at which a token is refreshed."""


def credentials_key(url: str) -> str:
    """Return the credentials key for the token of a URL."""
    plain = f"mcp:{url}"
    is_short = len(plain) <= _MAX_KEY and plain.isprintable() and " " not in plain
    return plain if is_short else f"mcp:{hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


class OAuthTokens:
    """The token of one server, without user interaction."""

    def __init__(
        self,
        credentials: Credentials,
        refresher: TokenRefresher,
        url: str,
        post: Post,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._refresher = refresher
        self._key = credentials_key(url)
        self._post = post
        self._now = now

    async def current(self) -> str:
        """Return the access token, or an empty string if there is none. A token close to its expiry
        is refreshed first.
        """
        token = await self.load()
        if token is None:
            return ""
        if token.expires_at and token.expires_at <= self._now() + _REFRESH_MARGIN:
            return await self.refresh(token.access_token)
        return token.access_token

    async def refresh(self, used: str) -> str:
        """Refresh the token after `used` was rejected. Returns an empty string if that fails."""
        token = await self.load()
        if token is None or not used:
            return ""
        try:
            return (await self._refresher.refresh(self._key, self._post, used=used)).access_token
        except HoldfastError:
            # The caller then requests a login.
            return ""

    async def load(self) -> Token | None:
        """Return the stored token."""
        return await asyncio.to_thread(self._credentials.token, self._key)

    async def store(self, token: Token) -> None:
        """Store a token."""
        await asyncio.to_thread(self._credentials.put_token, self._key, token)

    async def delete(self) -> bool:
        """Delete the token. Returns whether there was one."""
        return await asyncio.to_thread(self._credentials.remove, self._key)
