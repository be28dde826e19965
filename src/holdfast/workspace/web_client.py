"""Web requests for tools: http and https only, and every redirect is checked before it is followed.

The checked network address is the one that is connected to, so a second DNS response cannot bypass the check. Leaving
the block closes the connection.
"""

import asyncio
import importlib
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from holdfast import __version__
from holdfast.domain.errors import ToolError
from holdfast.domain.url_patterns import BadAddress, parse_address

if TYPE_CHECKING:
    import httpx2

__all__ = ["Consent", "WebClient", "WebResponse", "WebTarget", "address_note", "parse_target"]

_MAX_REDIRECTS = 10
_ENCODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_ANY_HEADER = 32
"""Makes zlib detect whether the data are gzip or zlib."""
_CHUNK = 256 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".home", ".corp", ".intranet")


class WebTarget(msgspec.Struct, frozen=True):
    """A parsed web address. `note` describes the kind of private address, if it is one; `is_agreed` is whether an
    approved address of the same host redirected here.
    """

    url: str
    scheme: str
    host: str
    port: int
    note: str = ""
    is_agreed: bool = False


Consent: TypeAlias = Callable[[WebTarget], Awaitable[None]]
"""Called before a private address without approval is contacted, and for every redirect, because rules may forbid it.
Raises to refuse.
"""

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]


class WebResponse:
    """A response: status, headers, and a body that is read incrementally."""

    def __init__(self, response: "httpx2.Response", url: str) -> None:
        self._response = response
        self.url = url
        self.status = response.status_code
        self.content_type = response.headers.get("content-type", "").split(";")[0].strip().lower()
        self.charset = response.charset_encoding
        length = response.headers.get("content-length", "")
        self.length = int(length) if length.isdigit() else None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body, decompressed if the server ignores `Accept-Encoding: identity`. A small body may expand
        enormously, so it is decompressed in bounded pieces and only once.
        """
        encoding = self._response.headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            async for chunk in self._response.aiter_raw():
                yield chunk
            return
        if encoding not in _ENCODINGS:
            raise ToolError("The response has an unsupported content encoding. Try another address.")
        decompressor = zlib.decompressobj(zlib.MAX_WBITS | _ANY_HEADER)
        try:
            async for chunk in self._response.aiter_raw():
                rest = chunk
                while rest and not decompressor.eof:
                    yield decompressor.decompress(rest, _CHUNK)
                    rest = decompressor.unconsumed_tail
            yield decompressor.flush()
        except zlib.error:
            raise ToolError("The response is damaged: it does not match its content encoding.") from None
        if not decompressor.eof:
            raise ToolError("The response ended before it was complete.")

    async def read(self, limit: int) -> tuple[bytes, bool]:
        """Read at most `limit` bytes; the second value is whether there were more."""
        data = bytearray()
        async for chunk in self.chunks():
            data += chunk
            if len(data) > limit:
                return bytes(data[:limit]), True
        return bytes(data), False


def parse_target(url: str) -> WebTarget:
    """Parse an address. Raises `ToolError` if it is not a web address."""
    try:
        address = parse_address(url)
    except BadAddress as error:
        raise ToolError(str(error)) from None
    return WebTarget(address.url, address.scheme, address.host, address.port, _host_note(address.host))


def address_note(address: str) -> str:
    """Describe a special network address; empty for a public one."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(ip, ipaddress.IPv6Address):
        embedded = ip.ipv4_mapped or ip.sixtofour or (ip in _NAT64 and ipaddress.IPv4Address(ip.packed[-4:]))
        ip = embedded or ip
    if ip.is_loopback or ip.is_unspecified:
        return f"this computer ({address})"
    if ip.is_link_local:
        return f"a link-local address ({address}), where cloud machines keep their credentials"
    is_private = not ip.is_global or ip.is_multicast or any(ip in network for network in _PRIVATE)
    return f"a private network ({address})" if is_private else ""


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_PRIVATE = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "64:ff9b:1::/48", "fec0::/10", "::/96")))
"""Private networks that older Python versions consider public."""


def _host_note(host: str) -> str:
    """Classify a host by its name alone, without a DNS query, which would disclose it."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(_LOCAL_SUFFIXES):
        return f"this computer or a private network ({name})"
    try:
        # 127.1 and 2130706433 are addresses too.
        return address_note(socket.inet_ntoa(socket.inet_aton(name)))
    except OSError:
        return address_note(host)


async def _resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class WebClient:
    """HTTP client of all tools. `trusted` returns the TLS context. The library is loaded on first use, in a thread."""

    def __init__(self, resolve: Resolve = _resolve, trusted: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._resolve = resolve
        self._trusted = trusted
        self._http_library: Any = None
        self._context: ssl.SSLContext | None = None

    @asynccontextmanager
    async def get(
        self, target: WebTarget, consent: Consent, environment: Mapping[str, str]
    ) -> AsyncIterator[WebResponse]:
        """Follow redirects and yield the final response. `target` has been approved as shown."""
        if self._http_library is None:
            self._http_library, self._context = await asyncio.to_thread(_load, self._trusted)
        # Approval of one private address does not include others.
        approved = {(target.host, target.port, target.note)}
        start = target
        for hop in range(_MAX_REDIRECTS):
            if hop:
                # The approval covers one host; another one is checked like a new address.
                stays = _is_same_host(start, target)
                await consent(msgspec.structs.replace(target, is_agreed=stays))
                if not stays:
                    approved.add((target.host, target.port, target.note))
            proxy = _proxy(target, environment)
            addresses = [] if proxy else await self._addresses(target)
            note = target.note or next((note for note in map(address_note, addresses) if note), "")
            if note and (target.host, target.port, note) not in approved:
                await consent(msgspec.structs.replace(target, note=note))
                approved.add((target.host, target.port, note))
            async with self._open(target, addresses, proxy) as response:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or not location:
                    yield WebResponse(response, target.url)
                    return
            target = parse_target(urljoin(target.url, location))
        raise ToolError(f"The address redirects more than {_MAX_REDIRECTS} times.")

    async def _addresses(self, target: WebTarget) -> Sequence[str]:
        try:
            return await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            raise ToolError(f"There is no host {target.host}, or the network cannot be reached.") from None

    @asynccontextmanager
    async def _open(self, target: WebTarget, addresses: Sequence[str], proxy: str) -> AsyncIterator["httpx2.Response"]:
        library = self._http_library
        options = {"trust_env": False, "follow_redirects": False, "verify": self._context, "timeout": None}
        async with library.AsyncClient(**options, proxy=proxy or None) as client:
            try:
                response = await self._send_to_first(client, target, addresses)
            except library.HTTPError as error:
                raise ToolError(f"{target.host} could not be reached: {_reason(error)}.") from None
            try:
                yield response
            except library.HTTPError as error:
                raise ToolError(f"The response of {target.host} was cut off: {_reason(error)}.") from None
            finally:
                await response.aclose()

    async def _send_to_first(
        self, client: "httpx2.AsyncClient", target: WebTarget, addresses: Sequence[str]
    ) -> "httpx2.Response":
        """Return the response of the first address of a host that accepts the connection."""
        urls = [_with_address(target, address) for address in addresses] or [target.url]
        headers = {
            "Host": urlsplit(target.url).netloc,
            "User-Agent": f"Holdfast/{__version__}",
            "Accept": "text/html, text/markdown, text/plain, application/json, */*;q=0.5",
            "Accept-Encoding": "identity",
        }
        extensions = {"sni_hostname": target.host} if target.scheme == "https" and addresses else {}
        for url in urls[:-1]:
            try:
                request = client.build_request("GET", url, headers=headers, extensions=extensions)
                return await client.send(request, stream=True)
            except self._http_library.ConnectError:
                continue
        request = client.build_request("GET", urls[-1], headers=headers, extensions=extensions)
        return await client.send(request, stream=True)


def _is_same_host(start: WebTarget, target: WebTarget) -> bool:
    """Return whether a redirect stays at the host, with the same port or an upgrade from http to https."""
    if start.host != target.host:
        return False
    is_upgrade = (start.scheme, start.port, target.scheme, target.port) == ("http", 80, "https", 443)
    return is_upgrade or (start.scheme, start.port) == (target.scheme, target.port)


def _load(trusted: Callable[[], ssl.SSLContext] | None) -> tuple[Any, ssl.SSLContext]:
    library = importlib.import_module("httpx2")
    return library, (trusted or library.create_ssl_context)()


def _with_address(target: WebTarget, address: str) -> str:
    """Return the URL with the host replaced by a network address."""
    parts: SplitResult = urlsplit(target.url)
    host = f"[{address}]" if ":" in address else address
    return parts._replace(netloc=f"{host}:{target.port}").geturl()


def _proxy(target: WebTarget, environment: Mapping[str, str]) -> str:
    """Return the proxy from the user's environment; empty for private addresses."""
    known = {name.lower(): value for name, value in environment.items() if name.lower().endswith("_proxy")}
    exceptions = [item.strip().lstrip(".").lower() for item in known.get("no_proxy", "").split(",") if item.strip()]
    host = target.host.lower()
    if target.note or any(item in ("*", host) or host.endswith(f".{item}") for item in exceptions):
        return ""
    return known.get(f"{target.scheme}_proxy") or known.get("all_proxy", "")


def _reason(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return text[:200] if text else type(error).__name__
