"""The system's keyring, if there is one that works. Whatever it does, it never keeps a key from being stored."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from holdfast.domain.errors import HoldfastError

__all__ = ["Vault", "VaultFailed", "system_vault"]

_SERVICE = "holdfast"


class VaultFailed(HoldfastError):
    """The keyring refused."""


class Vault(Protocol):
    """Keeps keys by the name of their provider."""

    def get(self, provider: str) -> str | None:
        """None if it is not there, or the keyring cannot be asked now."""

    def put(self, provider: str, key: str) -> None:
        """Raises `VaultFailed`."""

    def remove(self, provider: str) -> None:
        """Does not mind if it is not there."""


class _SystemVault:
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
            raise VaultFailed from None
        if not is_kept:
            raise VaultFailed

    def remove(self, provider: str) -> None:
        try:
            self._backend.delete_password(_SERVICE, provider)
        except Exception:
            return


def system_vault(environment: Mapping[str, str]) -> Vault | None:
    """None without the package, without a keyring that works, or with HOLDFAST_KEYRING=0."""
    if environment.get("HOLDFAST_KEYRING") == "0":
        return None
    try:
        backend = import_module("keyring").get_keyring()
        is_usable = backend.priority >= 1 and not type(backend).__module__.startswith("keyring.backends.null")
    except Exception:
        return None
    return _SystemVault(backend) if is_usable else None
