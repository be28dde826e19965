"""The token for one server: kept with the keys of its user, under the server's address, never under a name.

A name may be given to another server tomorrow, in another project even; what was given to one address is sent to no
other.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable

from holdfast.config.credentials import Credentials, Token
from holdfast.config.refresh import Post, Refresher
from holdfast.domain.errors import HoldfastError

__all__ = ["Tokens", "name_for"]

_LONGEST = 96
_EARLY = 30.0
"""A token is renewed so many seconds before it ends."""


def name_for(url: str) -> str:
    """What the token of an address is kept under."""
    plain = f"mcp:{url}"
    is_short = len(plain) <= _LONGEST and plain.isprintable() and " " not in plain
    return plain if is_short else f"mcp:{hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


class Tokens:
    """Of one server, for those who may not ask anybody."""

    def __init__(
        self,
        credentials: Credentials,
        refresher: Refresher,
        url: str,
        post: Post,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._refresher = refresher
        self._name = name_for(url)
        self._post = post
        self._now = now

    async def current(self) -> str:
        """Empty if nobody has logged in. One that is about to end is renewed first, if that can be done."""
        token = await self.stored()
        if token is None:
            return ""
        if token.expires_at and token.expires_at <= self._now() + _EARLY:
            return await self.renewed(token.access_token)
        return token.access_token

    async def renewed(self, used: str) -> str:
        """Another one than that which was refused; empty if there is none."""
        token = await self.stored()
        if token is None or not used:
            return ""
        try:
            return (await self._refresher.refresh(self._name, self._post, used=used)).access_token
        except HoldfastError:
            # Whoever asked is told that a login is needed.
            return ""

    async def stored(self) -> Token | None:
        return await asyncio.to_thread(self._credentials.token, self._name)

    async def keep(self, token: Token) -> None:
        await asyncio.to_thread(self._credentials.put_token, self._name, token)

    async def forget(self) -> bool:
        return await asyncio.to_thread(self._credentials.remove, self._name)
