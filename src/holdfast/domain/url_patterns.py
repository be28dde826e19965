"""Web addresses, parsed and normalised once, and the patterns that rules have for them. Pure.

The address that is judged is the address that is requested: `normalised` replaces every spelling that a client or a
server would treat alike (case and IDNA form of the host, a trailing dot, an IPv4 address in decimal, octal or hex, an
IPv4 address mapped into IPv6, default ports, dot segments, percent-encoded letters) by one form, and refuses the rest.
A server may decode a path more often than it should, so a pattern that forbids is compared with every decoding, and a
pattern that allows must match all of them.
"""

import ipaddress
import re
import socket
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

import msgspec

__all__ = ["AddressPattern", "BadAddress", "WebAddress", "parse_address", "parse_pattern"]

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_HOST_PATTERN = re.compile(r"[a-z0-9_*-]+(?:\.[a-z0-9_*-]+)*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_UNESCAPED_CHARACTERS = "/%:@!$&'()*+,;=-._~"
_OLD_ESCAPE = re.compile(r"\[([*?\[])\]")
_DECODINGS = 5
_COMPLETE_URL_HINT = "give the complete address, such as https://example.org/page."


class BadAddress(Exception):
    """Not an address of the web. The message contains the remedy."""


class WebAddress(msgspec.Struct, frozen=True):
    """A normalised address. The port is always explicit here, and left out of `url` where it is the scheme's own."""

    scheme: str
    host: str
    port: int
    path: str = "/"
    query: str | None = None

    @property
    def netloc(self) -> str:
        """The host, in brackets if it is IPv6, and the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a string."""
        query = "" if self.query is None else f"?{self.query}"
        return f"{self.scheme}://{self.netloc}{self.path}{query}"

    def paths(self) -> frozenset[str]:
        """Return the decodings of the path, and what servers make of `//` and `;parameters` in them."""
        found = _decodings(self.path)
        found |= {_without_dots(re.sub(r";[^/]*", "", path)) for path in found}
        found |= {re.sub(r"/{2,}", "/", path) for path in found}
        return frozenset(found)


def parse_address(text: str) -> WebAddress:
    """Parse and normalise an address. Raises `BadAddress`."""
    given = text.strip()
    if any(ord(character) <= 32 or ord(character) == 127 for character in given):
        raise BadAddress(f"The url has no host, or contains spaces: {_COMPLETE_URL_HINT}")
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError:
        raise BadAddress(f"The url is not valid: {_COMPLETE_URL_HINT}") from None
    if parts.scheme not in _PORTS:
        raise BadAddress("Only http:// and https:// addresses can be requested.")
    if "@" in parts.netloc:
        raise BadAddress("The url contains a user name or password: remove it.")
    if not parts.hostname or port == 0:
        raise BadAddress(f"The url has no host, or contains spaces: {_COMPLETE_URL_HINT}")
    host = _normal_host(parts.hostname)
    path = _normal_path(parts.path)
    query = _normal_escapes(parts.query) if "?" in given.partition("#")[0] else None
    return WebAddress(parts.scheme, host, port or _PORTS[parts.scheme], path, query)


def _normal_host(host: str) -> str:
    """Return the one form of a host's name. Raises `BadAddress`."""
    if ":" in host:
        return _normal_ipv6(host)
    try:
        name = unquote(host, errors="strict").encode("idna").decode().lower()
    except (UnicodeError, ValueError):
        raise BadAddress(f"The url's host is not a valid name: {_COMPLETE_URL_HINT}") from None
    name = name.removesuffix(".")
    if re.fullmatch(r"(?:0x[0-9a-f]*|[0-9]+)", name.rpartition(".")[2]):
        # A last label that is a number makes it an IPv4 address for every client, however it is written.
        try:
            return socket.inet_ntoa(socket.inet_aton(name))
        except OSError:
            raise BadAddress(f"The url's host is not a valid address: {_COMPLETE_URL_HINT}") from None
    if not _HOST.fullmatch(name) or len(name) > 253:
        raise BadAddress(f"The url's host is not a valid name: {_COMPLETE_URL_HINT}")
    return name


def _normal_ipv6(host: str) -> str:
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        raise BadAddress(f"The url's host is not a valid address: {_COMPLETE_URL_HINT}") from None
    if address.scope_id:
        raise BadAddress("The url's host names a network interface: leave it out.")
    return str(address.ipv4_mapped or address)


def _normal_path(path: str) -> str:
    return _without_dots(_normal_escapes(path.replace("\\", "/"))) or "/"


def _normal_escapes(text: str) -> str:
    """Decode what never needs an escape, write the others in capitals, and escape what must be."""

    def escape(found: re.Match[str]) -> str:
        letter = chr(int(found[1], 16))
        return letter if letter in _UNRESERVED else found[0].upper()

    return quote(
        _ESCAPE.sub(escape, _LONE_PERCENT.sub("%25", text)), safe=_UNESCAPED_CHARACTERS + "?", errors="replace"
    )


def _without_dots(path: str) -> str:
    """Remove dot segments (RFC 3986, 5.2.4)."""
    kept: list[str] = []
    segments = path.split("/")
    for at, segment in enumerate(segments):
        if segment == ".." and len(kept) > 1:
            kept.pop()
        elif segment not in (".", ".."):
            kept.append(segment)
        if segment in (".", "..") and at == len(segments) - 1:
            kept.append("")
    joined = "/".join(kept)
    return joined if joined.startswith("/") else f"/{joined}"


def _decodings(text: str) -> set[str]:
    found: set[str] = set()
    for _ in range(_DECODINGS):
        decoded = unquote(text)
        found.add(_without_dots(decoded.replace("\\", "/")))
        if decoded == text:
            break
        text = decoded
    return found


class AddressPattern(msgspec.Struct, frozen=True):
    """A pattern of a rule: `*` in the scheme's place is http and https, `*` elsewhere any characters of that part.

    The host is compared as a whole, the port is the scheme's own unless one is written (`:*` is any). A path without
    a query covers addresses without one; a path that ends with `*` covers any query. In a rule that forbids, a path
    covers everything below it, and any query.
    """

    scheme: str
    host: str
    port: str = ""
    path: str = ""
    query: str | None = None

    def matches(self, address: WebAddress, *, leniently: bool) -> bool:
        """Return True if the address matches: any decoding of its path if `leniently`, otherwise all of them."""
        if self.scheme not in ("*", address.scheme) or not _glob(self.host, "[^/]*").fullmatch(address.host):
            return False
        port = self.port or str(_PORTS[address.scheme])
        if port not in ("*", str(address.port)):
            return False
        if self._equals(address):
            return True
        fitting = (self._covers_path(path, leniently) for path in address.paths())
        return (any(fitting) if leniently else all(fitting)) and self._covers_query(address, leniently)

    def _equals(self, address: WebAddress) -> bool:
        return "*" not in self.path and (_normal_path(self.path), self.query) == (address.path, address.query)

    def _covers_path(self, path: str, leniently: bool) -> bool:
        if _glob(self.path or "/", ".*").fullmatch(path):
            return True
        here = self.path.removesuffix("/*").rstrip("/")
        return leniently and any(_glob(text, ".*").fullmatch(path) for text in (here or "/", f"{here}/*"))

    def _covers_query(self, address: WebAddress, leniently: bool) -> bool:
        if self.query is None:
            return leniently or address.query is None or self.path.endswith("*")
        written = address.query or ""
        fitting = [bool(_glob(self.query, ".*").fullmatch(text)) for text in {written, unquote(written)}]
        return any(fitting) if leniently else all(fitting)


@lru_cache(maxsize=512)
def _glob(pattern: str, star: str) -> re.Pattern[str]:
    return re.compile(star.join(re.escape(unquote(piece)) for piece in pattern.split("*")), re.S)


def parse_pattern(text: str) -> AddressPattern:
    """Parse a pattern. Raises `BadAddress`. Earlier versions wrote a literal `?`, `*` or `[` in brackets."""
    plain = _OLD_ESCAPE.sub(lambda found: "%2A" if found[1] == "*" else found[1], text.strip())
    scheme, _, rest = plain.partition("://")
    netloc, path, query = _split(rest)
    if scheme.lower() not in (*_PORTS, "*"):
        raise BadAddress("expected http://, https:// or *:// before the host.")
    if "@" in netloc or "#" in plain:
        raise BadAddress("omit user names and fragments (#).")
    if "[" in path or any(not character.isprintable() or character == " " for character in plain):
        raise BadAddress("a * is the only wildcard of an address, and spaces are written %20.")
    host, port = _host_and_port(netloc)
    return AddressPattern(scheme.lower(), host, port, _pattern_path(path), query)


def _split(rest: str) -> tuple[str, str, str | None]:
    end = next((at for at, character in enumerate(rest) if character in "/?"), len(rest))
    netloc, behind = rest[:end], rest[end:]
    path, mark, query = behind.partition("?")
    return netloc, path, query if mark else None


def _pattern_path(path: str) -> str:
    """Remove dot segments from a pattern, as from an address."""
    return _without_dots(path.replace("\\", "/")) if path else ""


def _host_and_port(netloc: str) -> tuple[str, str]:
    host, colon, port = netloc.rpartition(":")
    if not colon or netloc.endswith("]"):
        host, port = netloc, ""
    if colon and port and port != "*" and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise BadAddress("the port is a number, or * for any.")
    if host.startswith("[") and host.endswith("]"):
        return _normal_ipv6(host[1:-1]), port.lstrip("0")
    if "*" not in host:
        return _normal_host(host), port.lstrip("0")
    name = host.lower().removesuffix(".")
    if not _HOST_PATTERN.fullmatch(name):
        raise BadAddress("the host is not a valid name.")
    return name, port.lstrip("0")
