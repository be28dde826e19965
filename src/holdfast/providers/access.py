"""How a provider is reached: addresses, keys and options, all of them already expanded."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import msgspec

__all__ = ["BETWEEN", "FIRST_BYTE", "Access", "is_loopback", "is_secret_name"]

FIRST_BYTE = 300.0
"""Seconds until something has to come. Local servers load a model of many gigabytes first."""

BETWEEN = 120.0
"""Seconds between two pieces of an answer. Some models think behind the scenes and say nothing meanwhile."""


class Access(msgspec.Struct, frozen=True):
    """What an adapter needs to reach its provider. Never printed: it holds the key.

    `headers` and `body` are added to each request, `options` are the provider's own; `extras` holds what only
    some know: region, project, location, api_version.
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
        return f"Access(base_url={self.base_url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("base_url", self.base_url)]

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not appear in any message."""
        hidden = (value for name, value in self.headers.items() if is_secret_name(name))
        kept = (value for name, value in self.extras.items() if is_secret_name(name))
        return tuple(value for value in (self.api_key, *hidden, *kept) if len(value) >= 6)


def is_secret_name(name: str) -> bool:
    """Whether a header of this name holds something to be kept."""
    return any(word in name.lower() for word in ("auth", "key", "token", "secret", "cookie", "credential"))


def is_loopback(url: str) -> bool:
    """Return whether an address is one of this machine. A name that only resembles one is not."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
