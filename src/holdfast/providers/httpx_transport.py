"""httpx2 transport on top of `holdfast.http11`, and the shared clients.

Only `holdfast.providers.shared_http_clients` imports this module, in a thread, because importing httpx2 is slow.
"""

import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from holdfast.domain.surrogates import SurrogateReplacer
from holdfast.http11.client_connection import ClientConnection, ConnectError, ConnectionPool, Origin, RequestWatchdog
from holdfast.http11.client_messages import ConnectionBroken, ResponseHead, serialize_request
from holdfast.providers.shared_http_clients import CURRENT_WATCHDOG

__all__ = [
    "CONNECT_SECONDS",
    "Transport",
    "certificates",
    "decoded_body",
    "has_certificates",
    "make_client",
    "replace_surrogates",
]

CONNECT_SECONDS = 30.0
_READ_SECONDS = 300.0
_MAX_PAGE = 4_000
_tls: list[ssl.SSLContext] = []


def certificates() -> ssl.SSLContext:
    """Load the system's certificates, once. Slow."""
    if not _tls:
        _tls.append(httpx2.create_ssl_context())
    return _tls[0]


def has_certificates() -> bool:
    """Return whether the certificates are loaded."""
    return bool(_tls)


def decoded_body(connection: ClientConnection, head: ResponseHead) -> AsyncIterator[bytes]:
    """Return the body of a response decompressed, as httpx2 does it."""
    return httpx2.Response(head.status, headers=list(head.fields), stream=_Body(connection, None, None)).aiter_bytes()


def make_client(connections: ConnectionPool | None = None, *, is_direct: bool) -> httpx2.AsyncClient:
    """Create a client with our own connections, or with those of httpx2, which support proxies."""
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    # SDKs reject responses with lone surrogates. They can be replaced only in uncompressed text.
    hooks: dict[str, list[Any]] = {"response": [replace_surrogates]}
    headers = {"accept-encoding": "identity"}
    if is_direct:
        return httpx2.AsyncClient(
            transport=Transport(connections), timeout=timeout, headers=headers, event_hooks=hooks, trust_env=False
        )
    return httpx2.AsyncClient(verify=certificates(), timeout=timeout, headers=headers, event_hooks=hooks)


async def replace_surrogates(response: httpx2.Response) -> None:
    """Response hook: replace lone surrogates in a JSON or SSE body before it is read."""
    kind = response.headers.get("content-type", "")
    is_plain = response.headers.get("content-encoding", "identity") == "identity"
    if is_plain and ("json" in kind or "event-stream" in kind) and "amazon" not in kind:
        response.stream = _SanitizedBody(response.stream)


class _SanitizedBody(httpx2.AsyncByteStream):
    """A body with lone surrogates replaced."""

    def __init__(self, body: Any) -> None:  # noqa: ANN401
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        decoder = SurrogateReplacer()
        async for data in self._body:
            if whole := decoder.feed(data):
                yield whole
        if rest := decoder.end():
            yield rest

    async def aclose(self) -> None:
        await self._body.aclose()


class _Body(httpx2.AsyncByteStream):
    """Response body read from a connection. The beginning of a body that is no stream is recorded in `page`."""

    def __init__(
        self, connection: ClientConnection, page: RequestWatchdog | None, default: RequestWatchdog | None
    ) -> None:
        self._connection = connection
        self._page = page
        self._default = default
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while body := await self._connection.read():
                if self._page is not None and self._page.page is not None:
                    status, beginning = self._page.page
                    self._page.page = status, (beginning + body)[:_MAX_PAGE]
                yield body
        except ConnectionBroken as error:
            raise httpx2.ReadError(str(error)) from error

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._connection.release()
            if self._default is not None:
                self._default.finish()


class Transport(httpx2.AsyncBaseTransport):
    """HTTP/1.1 transport. A request is supervised by the watch in its extensions, else by the current one."""

    def __init__(self, connections: ConnectionPool | None = None) -> None:
        self.connections = ConnectionPool() if connections is None else connections

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and return the response, whose body is read later."""
        timeouts: dict[str, Any] = request.extensions.get("timeout", {})
        passed = request.extensions.get("watch") or CURRENT_WATCHDOG.get()
        watchdog = passed or _default_watchdog(timeouts)
        seconds = timeouts.get("connect") or CONNECT_SECONDS
        try:
            connection, head = await self._exchange_supervised(request, watchdog, seconds, is_default=passed is None)
        except ConnectError as error:
            raise httpx2.ConnectError(str(error)) from error
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("no connection was made in time") from error
        except ConnectionBroken as error:
            raise httpx2.RemoteProtocolError(str(error)) from error
        is_page = _is_page(head)
        if is_page:
            watchdog.page = head.status, b""
        stream = _Body(connection, watchdog if is_page else None, watchdog if passed is None else None)
        extensions = {"http_version": b"HTTP/1.1", "connection": connection}
        return httpx2.Response(head.status, headers=list(head.fields), stream=stream, extensions=extensions)

    async def _exchange_supervised(
        self, request: httpx2.Request, watchdog: RequestWatchdog, seconds: float, *, is_default: bool
    ) -> tuple[ClientConnection, ResponseHead]:
        try:
            return await self._exchange(request, await request.aread(), watchdog, seconds)
        except BaseException:
            if is_default:
                watchdog.abort()
            raise

    async def _exchange(
        self, request: httpx2.Request, body: bytes, watchdog: RequestWatchdog, seconds: float
    ) -> tuple[ClientConnection, ResponseHead]:
        url = request.url
        is_secure = url.scheme == "https"
        origin = Origin(url.host, url.port or (443 if is_secure else 80), is_secure)
        tls = certificates() if is_secure else None
        return await self.connections.request(origin, (_serialize_head(request), body), watchdog, tls, seconds)

    async def aclose(self) -> None:
        """Close all connections."""
        self.connections.close()


def _default_watchdog(timeouts: dict[str, Any]) -> RequestWatchdog:
    """Create a watch for a request without one."""
    seconds = timeouts.get("read") or _READ_SECONDS
    watchdog = RequestWatchdog(seconds, seconds)
    watchdog.start()
    return watchdog


def _is_page(head: ResponseHead) -> bool:
    """Return whether this cannot be a model's stream: a web page, or a JSON error with status 200."""
    kind = head.headers.get("content-type", "")
    return "text/html" in kind or (head.status == 200 and "application/json" in kind)


def _serialize_head(request: httpx2.Request) -> bytes:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
    try:
        return serialize_request(request.method, request.url.raw_path.decode("ascii"), headers)
    except ValueError as error:
        raise httpx2.LocalProtocolError(str(error)) from error
