"""A token that has expired is exchanged for a new one, once: whoever else needs it meanwhile waits for the same one.

A refresh token is often good for a single use. So one task does it in this process, a lock lets one process do it,
and it is carried through even if the run that asked for it is cancelled: what it brought must not be lost.
"""

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from holdfast.config.credentials import Credentials, Token
from holdfast.domain.errors import Conflict, HoldfastError, NotFound, ProviderError
from holdfast.tasks import TaskOwner

__all__ = ["Post", "Refresher", "SignInAgain"]

Post: TypeAlias = Callable[[str, Mapping[str, str]], Awaitable[Mapping[str, Any]]]
"""Sends a form to an address and gives the decoded answer, also when its status is 400."""

_PATIENCE = 45.0
_BETWEEN_TRIES = 0.02
_REVOKED = frozenset({"invalid_grant", "invalid_token", "unauthorized_client", "access_denied"})


class SignInAgain(ProviderError):
    """The sign-in is no longer valid: log in again."""

    def __init__(self, provider: str) -> None:
        super().__init__(
            f"The sign-in at {provider} is no longer valid: holdfast login {provider}.",
            title="Sign in again",
            trouble="credentials",
        )


class Refresher:
    """Of all providers of one user."""

    def __init__(self, credentials: Credentials, now: Callable[[], float] = time.time) -> None:
        self._credentials = credentials
        self._now = now
        self._tasks = TaskOwner()
        self._under_way: dict[str, asyncio.Task[Token]] = {}

    async def refresh(self, provider: str, post: Post, *, used: str = "") -> Token:
        """`used` is the access token that was refused. A newer one that somebody else has stored is taken instead."""
        task = self._under_way.get(provider)
        if task is None:
            task = self._tasks.start(
                self._refreshed(provider, post, used),
                name=f"refresh the token of {provider}",
                done=lambda done: self._forget(provider, done),
            )
            self._under_way[provider] = task
        return await asyncio.shield(task)

    def _forget(self, provider: str, task: asyncio.Task[Token]) -> None:
        self._under_way.pop(provider, None)
        if not task.cancelled():
            # Those who asked have it; if they have all gone, nobody needs to hear of it.
            task.exception()

    async def close(self) -> None:
        """Waits for what is under way."""
        await self._tasks.drain()

    async def _refreshed(self, provider: str, post: Post, used: str) -> Token:
        descriptor = os.open(self._lock_file(provider), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._acquire(descriptor, provider)
            token = self._credentials.token(provider)
            if token is None:
                raise NotFound(f"Nobody has signed in at {provider}: holdfast login {provider}.")
            if self._is_newer(token, used):
                return token
            fresh = await self._exchanged(provider, token, post)
            await asyncio.to_thread(self._credentials.put_token, provider, fresh)
            return fresh
        finally:
            os.close(descriptor)

    def _is_newer(self, token: Token, used: str) -> bool:
        is_fresh = token.expires_at == 0.0 or token.expires_at > self._now()
        return is_fresh and bool(used) and token.access_token != used

    def _lock_file(self, provider: str) -> str:
        directory = os.path.dirname(self._credentials.path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        return os.path.join(directory, f".refresh-{hashlib.sha256(provider.encode()).hexdigest()[:12]}.lock")

    async def _acquire(self, descriptor: int, provider: str) -> None:
        for _ in range(int(_PATIENCE / _BETWEEN_TRIES)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(_BETWEEN_TRIES)
            else:
                return
        raise Conflict(f"Another process has been refreshing the token of {provider} for {_PATIENCE:.0f} seconds.")

    async def _exchanged(self, provider: str, token: Token, post: Post) -> Token:
        if not token.refresh_token or not token.token_url:
            raise SignInAgain(provider)
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token}
        for name in ("client_id", "client_secret", "resource"):
            if value := getattr(token, name):
                form[name] = value
        try:
            answer = await post(token.token_url, form)
        except HoldfastError:
            raise
        except Exception as error:
            # Its text may hold the form.
            kind = type(error).__name__
            message = f"The token of {provider} could not be refreshed ({kind}): try again."
            raise ProviderError(message, trouble="connection") from None
        return self._token(provider, token, answer)

    def _token(self, provider: str, old: Token, answer: Mapping[str, Any]) -> Token:
        access = answer.get("access_token")
        if not isinstance(access, str) or not access:
            if answer.get("error") in _REVOKED:
                raise SignInAgain(provider)
            raise ProviderError(f"{provider} gave no new token: try again, or holdfast login {provider}.")
        renewed, seconds = answer.get("refresh_token"), answer.get("expires_in")
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        return Token(
            access_token=access,
            refresh_token=renewed if isinstance(renewed, str) and renewed else old.refresh_token,
            expires_at=self._now() + float(seconds) if is_number and seconds else 0.0,
            token_url=old.token_url,
            client_id=old.client_id,
            client_secret=old.client_secret,
            resource=old.resource,
        )
