"""API keys and OAuth tokens of providers, in the system keyring or in a file that only its owner can read.

They are stored apart from the settings and never logged or repeated in messages. A keyring cannot list its entries, so
the file also contains the names of the keys that are in the keyring. `TokenRefresher` renews expired tokens. In a
cluster the tokens are in its store (`TokenStore`), and keys stay on their node.
"""

import asyncio
import fcntl
import hashlib
import importlib
import logging
import os
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.atomic_files import Signature, directory_lock, file_signature, read_file, replace_file
from holdfast.domain.errors import BadRequest, Conflict, HoldfastError, NotFound, ProviderError, StorageError
from holdfast.tasks import TaskOwner

__all__ = [
    "CredentialStorage",
    "Credentials",
    "InvalidKey",
    "Keyring",
    "KeyringFailed",
    "Post",
    "SignInRequired",
    "Token",
    "TokenRefresher",
    "TokenStore",
    "system_keyring",
]


_SERVICE = "holdfast"
_log = logging.getLogger("holdfast.config")


class KeyringFailed(HoldfastError):
    """The keyring did not store the key."""


class Keyring(Protocol):
    """Stores keys by the name of their provider."""

    def get(self, provider: str) -> str | None:
        """Return the key; None if it is missing or the keyring is not available."""

    def put(self, provider: str, key: str) -> None:
        """Store the key. Raises `KeyringFailed`."""

    def remove(self, provider: str) -> None:
        """Delete the key, if it is there."""


class _SystemKeyring:
    def __init__(self, backend: Any) -> None:  # noqa: ANN401 - the package is optional
        self._backend = backend

    def get(self, provider: str) -> str | None:
        try:
            key = self._backend.get_password(_SERVICE, provider)
        except Exception:
            return None
        return key if isinstance(key, str) else None

    def put(self, provider: str, key: str) -> None:
        try:
            self._backend.set_password(_SERVICE, provider, key)
            is_kept = self._backend.get_password(_SERVICE, provider) == key
        except Exception:
            raise KeyringFailed from None
        if not is_kept:
            raise KeyringFailed

    def remove(self, provider: str) -> None:
        try:
            self._backend.delete_password(_SERVICE, provider)
        except Exception:
            return


def system_keyring(environment: Mapping[str, str]) -> Keyring | None:
    """Return the system keyring. None without the package `keyring`, without a usable backend, or with
    HOLDFAST_KEYRING=0.
    """
    if environment.get("HOLDFAST_KEYRING") == "0":
        return None
    try:
        backend = import_module("keyring").get_keyring()
        is_usable = backend.priority >= 1 and not type(backend).__module__.startswith("keyring.backends.null")
    except Exception:
        return None
    return _SystemKeyring(backend) if is_usable else None


CredentialStorage: TypeAlias = Literal["keyring", "file", "token"]
"""Storage of a credential: a key in the keyring, a key in the file, or a token in the file."""

_MAX_KEY_LENGTH = 16 * 1024
_MAX_NAME_LENGTH = 100


class InvalidKey(BadRequest):
    """A key is one word without spaces: copy it again completely."""


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """An OAuth token. It is valid until `expires_at` (Unix time; 0 if unknown) and then refreshed."""

    access_token: str
    refresh_token: str = ""
    expires_at: float = 0.0
    token_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    """Only of a client to which the server has issued a secret."""
    resource: str = ""
    """The resource indicator (RFC 8707), for servers that require one."""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at}, …)"


class TokenStore(Protocol):
    """The tokens of a cluster, by provider. Reading does not block; `update` may."""

    def signature(self) -> Signature:
        """Return a value that changes with the tokens."""

    def read(self) -> dict[str, Token]:
        """Return all tokens. Raises a `HoldfastError` if they cannot be decrypted."""

    def update(self, edit: Callable[[dict[str, Token]], dict[str, Token]]) -> None:
        """Change the tokens, so that no change of another node is lost. `edit` may be called more than once."""

    def problem(self) -> str:
        """Return why the tokens cannot be used, or an empty string."""

    def exclusive(self, provider: str) -> AbstractAsyncContextManager[None]:
        """Exclude all other nodes from renewing a token. The block sees the newest one."""


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    keyring: tuple[str, ...] = ()
    keys: dict[str, str] = {}
    tokens: dict[str, Token] = {}

    def __repr__(self) -> str:
        return f"_Stored({len(self.keys)} keys, {len(self.tokens)} tokens)"


class Credentials:
    """The credentials of one user, in the file `path`. A keyring may be slow, so a server calls this in a thread."""

    def __init__(
        self,
        path: str,
        environment: Mapping[str, str] | None = None,
        *,
        keyring: Keyring | None = None,
        tokens: TokenStore | None = None,
    ) -> None:
        """`tokens` is the store of the cluster. Tokens that the file contains already stay valid on this node."""
        self._path = path
        self.shared_tokens = tokens
        self._logged_problem = ""
        self._environment = environment or {}
        self._keyring_backend = keyring
        self._signature: Signature = None
        self._cached = _Stored()

    @property
    def path(self) -> str:
        """The path of the credentials file."""
        return self._path

    def __repr__(self) -> str:
        return f"Credentials({self._path!r})"

    def signature(self) -> object:
        """Return a value that changes with the credentials. Does not block."""
        shared = self.shared_tokens
        return file_signature(self._path), None if shared is None else shared.signature()

    def problem(self) -> str:
        """Return why the tokens of the cluster cannot be used, or an empty string."""
        return "" if self.shared_tokens is None else self.shared_tokens.problem()

    def get(self, provider: str) -> str | None:
        """Return the key of a provider, or its access token, or None."""
        stored = self._current()
        if provider in stored.keyring:
            keyring = self._keyring()
            kept = keyring.get(provider) if keyring is not None else None
            if kept is not None:
                return kept
        if provider in stored.keys:
            return stored.keys[provider]
        token = self.token(provider)
        return token.access_token if token is not None else None

    def put(self, provider: str, key: str) -> CredentialStorage:
        """Store a key, preferably in the keyring. Return its storage."""
        _check(provider, key)
        self._read()
        # Before the lock: the keyring may ask its user for a password, and other processes must not wait for that.
        is_in_keyring = self._put_in_keyring(provider, key)
        with self._lock():
            stored = self._read()
            rest = {name: kept for name, kept in stored.keys.items() if name != provider}
            names = tuple(name for name in stored.keyring if name != provider)
            if is_in_keyring:
                self._write(msgspec.structs.replace(stored, keyring=(*names, provider), keys=rest))
                return "keyring"
            self._write(msgspec.structs.replace(stored, keyring=names, keys={**rest, provider: key}))
            return "file"

    def remove(self, provider: str) -> bool:
        """Delete key and token of a provider. Return True if there was one."""
        if provider in self._read().keyring and (keyring := self._keyring()) is not None:
            keyring.remove(provider)
        with self._lock():
            stored = self._read()
            is_shared = self._remove_shared(provider)
            if provider not in {*stored.keyring, *stored.keys, *stored.tokens}:
                return is_shared
            self._write(
                _Stored(
                    keyring=tuple(name for name in stored.keyring if name != provider),
                    keys={name: key for name, key in stored.keys.items() if name != provider},
                    tokens={name: token for name, token in stored.tokens.items() if name != provider},
                )
            )
            return True

    def providers(self) -> dict[str, CredentialStorage]:
        """Return the providers that have a credential, and its storage."""
        stored = self._current()
        found: dict[str, CredentialStorage] = dict.fromkeys({**stored.tokens, **self._shared()}, "token")
        found |= dict.fromkeys(stored.keys, "file")
        found |= dict.fromkeys(stored.keyring, "keyring")
        return dict(sorted(found.items()))

    def is_shared(self, provider: str) -> bool:
        """Return True if the token in use is in the store of the cluster."""
        token = self._shared().get(provider)
        return token is not None and self.token(provider) == token

    def token(self, provider: str) -> Token | None:
        """Return the token of a provider, or None."""
        own, shared = self._current().tokens.get(provider), self._shared().get(provider)
        # Its own file has a newer one if the store could not be reached after a refresh.
        return own if shared is None or (own is not None and own.expires_at > shared.expires_at) else shared

    def put_token(self, provider: str, token: Token) -> None:
        """Store a token."""
        _check(provider, token.access_token)
        if self.shared_tokens is None:
            self._put_own_token(provider, token)
        else:
            self.shared_tokens.update(lambda tokens: {**tokens, provider: token})
            self._put_own_token(provider, None)

    def renew_token(self, provider: str, old: Token, fresh: Token) -> None:
        """Store the token that `old` was exchanged for. If there is another one by now, the one that lasts longer is
        kept: it is from a sign-in, or from a server that could not be excluded.
        """
        if self.shared_tokens is None:
            self.put_token(provider, fresh)
            return

        def edit(tokens: dict[str, Token]) -> dict[str, Token]:
            present = tokens.get(provider, old)
            is_newest = present == old or present.expires_at < fresh.expires_at
            return {**tokens, provider: fresh} if is_newest else tokens

        try:
            self.shared_tokens.update(edit)
        except StorageError:
            # `old` is used up, so the new one must not be lost.
            self._put_own_token(provider, fresh)
            _log.warning("the new token of %s is only stored on this server: the store cannot be reached", provider)
        else:
            self._put_own_token(provider, None)

    def _put_own_token(self, provider: str, token: Token | None) -> None:
        """Store a token in the file, or remove it."""
        if token is None and provider not in self._current().tokens:
            return
        with self._lock():
            stored = self._read()
            tokens = {name: kept for name, kept in stored.tokens.items() if name != provider}
            self._write(msgspec.structs.replace(stored, tokens=tokens | ({provider: token} if token else {})))

    def _shared(self) -> Mapping[str, Token]:
        """Return the tokens of the cluster; none if they cannot be decrypted, which is logged once."""
        if self.shared_tokens is None:
            return {}
        try:
            return self.shared_tokens.read()
        except HoldfastError as error:
            if str(error) != self._logged_problem:
                self._logged_problem = str(error)
                _log.warning("%s", error)
            return {}

    def _remove_shared(self, provider: str) -> bool:
        if self.shared_tokens is None or provider not in self._shared():
            return False
        self.shared_tokens.update(lambda tokens: {name: kept for name, kept in tokens.items() if name != provider})
        return True

    def _keyring(self) -> Keyring | None:
        if self._keyring_backend is None:
            self._keyring_backend = system_keyring(self._environment)
        return self._keyring_backend

    def _put_in_keyring(self, provider: str, key: str) -> bool:
        keyring = self._keyring()
        if keyring is None:
            return False
        try:
            keyring.put(provider, key)
        except KeyringFailed:
            return False
        return True

    def _lock(self) -> AbstractContextManager[None]:
        return directory_lock(os.path.dirname(self._path))

    def _current(self) -> _Stored:
        seen = file_signature(self._path)
        if seen != self._signature:
            self._cached = self._read()
        return self._cached

    def _read(self) -> _Stored:
        try:
            data, self._signature = read_file(self._path)
            self._cached = msgspec.convert(tomllib.loads(data.decode("utf-8-sig")), _Stored)
        except FileNotFoundError:
            self._cached, self._signature = _Stored(), None
        except (ValueError, RecursionError):
            # Without the cause: the message of a parser may quote a key.
            self._signature = None
            raise HoldfastError(f"{self._path} is not valid: correct it, or move it away and log in again.") from None
        return self._cached

    def _write(self, stored: _Stored) -> None:
        # Imported on use: keys are rarely written, and reading them must not load the TOML writer.
        toml = importlib.import_module("tomlkit")
        replace_file(self._path, toml.dumps(msgspec.to_builtins(stored)).encode(), mode=0o600)


def _check(provider: str, key: str) -> None:
    if not provider.isprintable() or not 0 < len(provider) <= _MAX_NAME_LENGTH or " " in provider:
        raise BadRequest("A provider's name is one word, such as openai.")
    if not 0 < len(key) <= _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidKey


Post: TypeAlias = Callable[[str, Mapping[str, str]], Awaitable[Mapping[str, Any]]]
"""Sends a form to an address and returns the decoded response, also for an error status."""

_LOCK_TIMEOUT = 45.0
_RETRY_INTERVAL = 0.02
_REVOKED = frozenset({"invalid_grant", "invalid_token", "unauthorized_client", "access_denied"})


class SignInRequired(ProviderError):
    """The sign-in is no longer valid: log in again."""

    def __init__(self, provider: str) -> None:
        super().__init__(
            f"The sign-in at {provider} is no longer valid: holdfast login {provider}.",
            title="Sign in again",
            trouble="credentials",
        )


class TokenRefresher:
    """Refreshes the tokens of one user.

    A refresh token may be valid only once, so concurrent refreshes of a provider share one request: within the process
    by a task, between processes by a lock file, between the servers of a cluster by a lock of its store.
    """

    def __init__(self, credentials: Credentials, now: Callable[[], float] = time.time) -> None:
        self._credentials = credentials
        self._now = now
        self._tasks = TaskOwner()
        self._refreshing: dict[str, asyncio.Task[Token]] = {}

    async def refresh(self, provider: str, post: Post, *, used: str = "") -> Token:
        """Return a new token. `used` is the access token that was refused; if another process has stored a newer one,
        that is returned. Raises `SignInRequired`, `ProviderError`, `NotFound` or `Conflict`.
        """
        task = self._refreshing.get(provider)
        if task is None:
            task = self._tasks.start(
                self._refresh(provider, post, used),
                name=f"refresh the token of {provider}",
                done=lambda done: self._finish_refresh(provider, done),
            )
            self._refreshing[provider] = task
        return await asyncio.shield(task)

    def _finish_refresh(self, provider: str, task: asyncio.Task[Token]) -> None:
        self._refreshing.pop(provider, None)
        if not task.cancelled():
            # Mark the exception as retrieved: the callers have received it, or have been cancelled.
            task.exception()

    async def close(self) -> None:
        """Wait for refreshes in progress."""
        await self._tasks.drain()

    async def _refresh(self, provider: str, post: Post, used: str) -> Token:
        if problem := self._credentials.problem():
            # Before the exchange: the new token could not be stored.
            raise Conflict(problem)
        async with self._exclusive(provider):
            token = self._credentials.token(provider)
            if token is None:
                raise NotFound(f"Not signed in at {provider}: holdfast login {provider}.")
            if self._is_newer(token, used):
                return token
            fresh = await self._exchange(provider, token, post)
            await asyncio.to_thread(self._credentials.renew_token, provider, token, fresh)
            return fresh

    @asynccontextmanager
    async def _exclusive(self, provider: str) -> AsyncIterator[None]:
        """Exclude other processes, or other servers, from renewing the token."""
        if self._credentials.shared_tokens is not None:
            async with self._credentials.shared_tokens.exclusive(provider):
                yield
            return
        descriptor = os.open(self._lock_file(provider), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._acquire(descriptor, provider)
            yield
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
        for _ in range(int(_LOCK_TIMEOUT / _RETRY_INTERVAL)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(_RETRY_INTERVAL)
            else:
                return
        raise Conflict(f"Another process has been refreshing the token of {provider} for {_LOCK_TIMEOUT:.0f} seconds.")

    async def _exchange(self, provider: str, token: Token, post: Post) -> Token:
        if not token.refresh_token or not token.token_url:
            raise SignInRequired(provider)
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token}
        for name in ("client_id", "client_secret", "resource"):
            if value := getattr(token, name):
                form[name] = value
        try:
            answer = await post(token.token_url, form)
        except HoldfastError:
            raise
        except Exception as error:
            # Without the cause: its message may contain the form.
            kind = type(error).__name__
            message = f"The token of {provider} could not be refreshed ({kind}): try again."
            raise ProviderError(message, trouble="connection") from None
        return self._token(provider, token, answer)

    def _token(self, provider: str, old: Token, answer: Mapping[str, Any]) -> Token:
        access = answer.get("access_token")
        if not isinstance(access, str) or not access:
            if answer.get("error") in _REVOKED:
                raise SignInRequired(provider)
            raise ProviderError(f"{provider} returned no new token: try again, or holdfast login {provider}.")
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
