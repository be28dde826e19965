"""Addresses at which nodes answer requests of other nodes, and the options that set them. Pure.

`http://HOST:PORT`, `https://HOST:PORT`, or `unix:///PATH` for nodes on one machine.
"""

import re
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from holdfast.domain.errors import StoreMisconfigured

__all__ = ["RelayAddress", "RelayOptions", "parse_address"]

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
_PORTS = {"http": 80, "https": 443}
_FORM = "write it as http://HOST:PORT or https://HOST:PORT"


class RelayAddress(NamedTuple):
    """An address: host and port, or the path of a unix socket."""

    host: str
    port: int
    is_secure: bool = False
    path: str = ""

    @property
    def netloc(self) -> str:
        """The value of the Host header."""
        if self.path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self._scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as other nodes read it."""
        return f"unix://{self.path}" if self.path else f"{self._scheme}://{self.netloc}"

    @property
    def is_exposed(self) -> bool:
        """True if a request to it leaves the machine unencrypted."""
        if self.path or self.is_secure or self.host == "localhost":
            return False
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:
            return True

    @property
    def is_wildcard(self) -> bool:
        """True for a wildcard address, which cannot be connected to."""
        try:
            return not self.path and ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def _scheme(self) -> str:
        return "https" if self.is_secure else "http"


def parse_address(text: str) -> RelayAddress | None:
    """Return the address in a text, or None if it is invalid.

    Only scheme, host and port are allowed: an address in the database must not change the path, add a login, or
    select another protocol.
    """
    if text.startswith("unix:///"):
        path = text.removeprefix("unix://")
        return RelayAddress("", 0, path=path) if path.isprintable() and len(path.encode()) <= 104 else None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    host, _, _ = parts.netloc.partition("]")
    host = f"{host}]" if host.startswith("[") else parts.netloc.rpartition(":")[0] or parts.netloc
    if parts.scheme not in _PORTS or not _HOST.fullmatch(host):
        return None
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or "?" in text or "#" in text
    if has_more or not text.isprintable() or " " in text:
        return None
    return RelayAddress(host.strip("[]"), _PORTS[parts.scheme] if port is None else port, parts.scheme == "https")


class RelayOptions(msgspec.Struct, frozen=True):
    """Options of `holdfast serve`: where the node accepts requests of other nodes, and how it is reached there.

    Without `listen` it accepts them at a unix socket, from nodes of the same user on the same machine.
    """

    listen: str = ""
    advertise: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""

    @property
    def is_empty(self) -> bool:
        """True if no option was given."""
        return self == RelayOptions()

    def addresses(self) -> tuple[RelayAddress | None, RelayAddress | None]:
        """Return where to listen and what to advertise, None for the default of either. Raises `StoreMisconfigured`."""
        listen, advertise = _parsed("--relay", self.listen), _parsed("--advertise", self.advertise)
        if listen is None:
            for option, value in (("advertise", self.advertise), ("relay-cert", self.cert), ("relay-key", self.key)):
                if value:
                    raise StoreMisconfigured(f"--{option} needs --relay: also give --relay http://HOST:PORT.")
            return None, None
        if listen.is_secure != bool(self.cert):
            raise StoreMisconfigured(
                "--relay https://... needs --relay-cert FILE, with the certificate of this server."
                if listen.is_secure
                else "--relay-cert needs --relay https://..., because --relay http://... is not encrypted."
            )
        if self.key and not self.cert:
            raise StoreMisconfigured("--relay-key needs --relay-cert FILE, with its certificate.")
        if advertise is None:
            if listen.is_wildcard:
                raise StoreMisconfigured(
                    f"Other servers cannot connect to {self.listen}: also give --advertise "
                    f"{'https' if listen.is_secure else 'http'}://NAME:PORT, with the name of this machine."
                )
            return listen, None
        if advertise.is_wildcard or not advertise.port:
            raise StoreMisconfigured(
                f"Other servers cannot connect to --advertise {self.advertise}: give the name and port of this machine."
            )
        if listen.is_secure and not advertise.is_secure:
            raise StoreMisconfigured("--relay is encrypted: also write --advertise as https://NAME:PORT.")
        return listen, advertise


def _parsed(option: str, text: str) -> RelayAddress | None:
    if not text:
        return None
    address = parse_address(text)
    if address is None or address.path:
        raise StoreMisconfigured(f"{option} {text!r} is not an address of a server: {_FORM}.")
    return address
