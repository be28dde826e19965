"""Keys and tokens of providers, apart from the settings: in the system's keyring, else in a file that is its owner's.

A key goes in and comes out whole; nothing here shows, logs or repeats one. A keyring cannot be asked what it holds,
so the file also lists the names that are in it.
"""

import importlib
import os
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, TypeAlias

import msgspec

from holdfast.config.files import Signature, contents, locked, replace, signature
from holdfast.config.vault import Vault, VaultFailed, system_vault
from holdfast.domain.errors import BadRequest, HoldfastError

__all__ = ["BadKeyText", "Credentials", "Held", "Token"]

Held: TypeAlias = Literal["keyring", "file", "token"]

_LONGEST_KEY = 16 * 1024
_LONGEST_NAME = 100


class BadKeyText(BadRequest):
    """A key is one word without spaces: copy it again, whole."""


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """What signing in gave: good until `expires_at` (seconds since 1970; 0 if nobody said), then refreshed."""

    access_token: str
    refresh_token: str = ""
    expires_at: float = 0.0
    token_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    """Of a client that the server has given one."""
    resource: str = ""
    """What it is good for, where a server wants to be told."""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at}, …)"


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    keyring: tuple[str, ...] = ()
    keys: dict[str, str] = {}
    tokens: dict[str, Token] = {}

    def __repr__(self) -> str:
        return f"_Stored({len(self.keys)} keys, {len(self.tokens)} tokens)"


class Credentials:
    """Of one user, in `path`. Reading a key from a keyring may take a while: a server asks in a thread."""

    def __init__(self, path: str, environment: Mapping[str, str] | None = None, *, vault: Vault | None = None) -> None:
        self._path = path
        self._environment = environment or {}
        self._vault = vault
        self._seen: Signature = None
        self._known = _Stored()

    @property
    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"Credentials({self._path!r})"

    def get(self, provider: str) -> str | None:
        """The key, or the access token if one signed in."""
        stored = self._stored()
        if provider in stored.keyring:
            vault = self._keyring()
            kept = vault.get(provider) if vault is not None else None
            if kept is not None:
                return kept
        if provider in stored.keys:
            return stored.keys[provider]
        token = stored.tokens.get(provider)
        return token.access_token if token is not None else None

    def put(self, provider: str, key: str) -> Held:
        """Where it went."""
        _check(provider, key)
        self._fresh()
        # Before the lock: a keyring may ask its owner to open it, and nobody else has to wait for that.
        is_in_keyring = self._to_keyring(provider, key)
        with self._locked():
            stored = self._fresh()
            rest = {name: kept for name, kept in stored.keys.items() if name != provider}
            names = tuple(name for name in stored.keyring if name != provider)
            if is_in_keyring:
                self._write(msgspec.structs.replace(stored, keyring=(*names, provider), keys=rest))
                return "keyring"
            self._write(msgspec.structs.replace(stored, keyring=names, keys={**rest, provider: key}))
            return "file"

    def remove(self, provider: str) -> bool:
        """Key and token. Whether there was anything."""
        if provider in self._fresh().keyring and (vault := self._keyring()) is not None:
            vault.remove(provider)
        with self._locked():
            stored = self._fresh()
            if provider not in {*stored.keyring, *stored.keys, *stored.tokens}:
                return False
            self._write(
                _Stored(
                    keyring=tuple(name for name in stored.keyring if name != provider),
                    keys={name: key for name, key in stored.keys.items() if name != provider},
                    tokens={name: token for name, token in stored.tokens.items() if name != provider},
                )
            )
            return True

    def providers(self) -> dict[str, Held]:
        """Who has something here, and what."""
        stored = self._stored()
        found: dict[str, Held] = dict.fromkeys(stored.tokens, "token")
        found |= dict.fromkeys(stored.keys, "file")
        found |= dict.fromkeys(stored.keyring, "keyring")
        return dict(sorted(found.items()))

    def token(self, provider: str) -> Token | None:
        return self._stored().tokens.get(provider)

    def put_token(self, provider: str, token: Token) -> None:
        _check(provider, token.access_token)
        with self._locked():
            stored = self._fresh()
            self._write(msgspec.structs.replace(stored, tokens={**stored.tokens, provider: token}))

    def _keyring(self) -> Vault | None:
        if self._vault is None:
            self._vault = system_vault(self._environment)
        return self._vault

    def _to_keyring(self, provider: str, key: str) -> bool:
        vault = self._keyring()
        if vault is None:
            return False
        try:
            vault.put(provider, key)
        except VaultFailed:
            return False
        return True

    def _locked(self) -> AbstractContextManager[None]:
        return locked(os.path.dirname(self._path))

    def _stored(self) -> _Stored:
        seen = signature(self._path)
        if seen != self._seen:
            self._known = self._fresh()
        return self._known

    def _fresh(self) -> _Stored:
        try:
            data, self._seen = contents(self._path)
            self._known = msgspec.convert(tomllib.loads(data.decode("utf-8-sig")), _Stored)
        except FileNotFoundError:
            self._known, self._seen = _Stored(), None
        except (ValueError, RecursionError):
            # Without the cause: a parser's message may repeat what it read.
            self._seen = None
            raise HoldfastError(f"{self._path} is not valid: mend it, or move it away and log in again.") from None
        return self._known

    def _write(self, stored: _Stored) -> None:
        # Keys are written seldom; whoever only reads one need not load the writer.
        toml = importlib.import_module("tomlkit")
        replace(self._path, toml.dumps(msgspec.to_builtins(stored)).encode(), mode=0o600)


def _check(provider: str, key: str) -> None:
    if not provider.isprintable() or not 0 < len(provider) <= _LONGEST_NAME or " " in provider:
        raise BadRequest("A provider's name is one word, such as openai.")
    if not 0 < len(key) <= _LONGEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise BadKeyText
