"""Connection data of a provider: addresses, keys and options, all of them already expanded."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import msgspec

__all__ = ["BETWEEN", "FIRST_BYTE", "ModelAccess", "is_loopback", "is_secret_name"]

FIRST_BYTE = 300.0
"""Seconds to wait for the first byte of a response. Local servers may load a model of many gigabytes first."""

BETWEEN = 120.0
"""Seconds to wait between two chunks of a response. Some models reason without sending anything meanwhile."""


class ModelAccess(msgspec.Struct, frozen=True):
    """Address, credentials and options that an adapter needs. Contains the key, so its repr shows the address only.

    `headers` and `body` are added to each request, `options` are provider-specific; `extras` holds the values that
    only some providers have: region, project, location, api_version.
    """

    base_url: str = ""
    api_key: str = ""
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    options: dict[str, Any] = {}
    system_prefix: str = ""
    first_byte: float = FIRST_BYTE
    between: float = BETWEEN
    extras: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"ModelAccess(base_url={self.base_url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("base_url", self.base_url)]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values to redact from every message. Shorter ones than 6 characters would redact ordinary text."""
        hidden = (value for name, value in self.headers.items() if is_secret_name(name))
        kept = (value for name, value in self.extras.items() if is_secret_name(name))
        return tuple(value for value in (self.api_key, *hidden, *kept) if len(value) >= 6)


def is_secret_name(name: str) -> bool:
    """Return whether a header or option of this name contains a credential."""
    return any(word in name.lower() for word in ("auth", "key", "token", "secret", "cookie", "credential"))


def is_loopback(url: str) -> bool:
    """Return whether the host of a URL is this machine. Names that merely resemble an address do not count."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
