"""HTTP transport: the client for an MCP server at a URL, with size limits, custom headers and a bearer token.

This module imports `mcp`, which is slow to import. It is imported in a thread when a server is configured.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from holdfast import __version__
from holdfast.extensions.mcp.mcp_types import MAX_MESSAGE_BYTES, ConnectionClosed, LoginNeeded
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.providers.httpx_transport import certificates, replace_surrogates

__all__ = ["ResponseMonitor", "make_client", "open_http_streams"]

_CONNECT_TIMEOUT = 30.0
_TERMINATE_TIMEOUT = 0.5
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_UNAUTHORIZED = 401
_UNKNOWN_SESSION = (400, 404)


class ResponseMonitor:
    """Response hook that records the last status. `on_disruption` is called when the server closes the notification
    stream: the server may have exited, which would otherwise remain unnoticed until the next call.
    """

    def __init__(self, on_disruption: Callable[[], None] = lambda: None) -> None:
        self.status = 0
        self._on_disruption = on_disruption

    def is_session_unknown(self, message: str) -> bool:
        """Return whether a request failed because the session is unknown to the server, for example after a restart."""
        is_generic = message in ("Session terminated", "Server returned an error response")
        return self.status in _UNKNOWN_SESSION and (is_generic or "session" in message.lower())

    async def on_response(self, response: httpx2.Response) -> None:
        """Record the status of a response and wrap its body. Called before the body is read."""
        self.status = response.status_code
        await replace_surrogates(response)
        if isinstance(stream := response.stream, httpx2.AsyncByteStream):
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                response.stream = _BoundedBody(stream)
            elif response.request.method == "GET":
                response.stream = _NotificationStream(stream, self._on_disruption)


class _BoundedBody(httpx2.AsyncByteStream):
    """A response body with a size limit."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise ConnectionClosed(f"It sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB.")
            yield piece

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await self._stream.aclose()


class _NotificationStream(httpx2.AsyncByteStream):
    """The body of an event stream. Calls `on_end` when the stream ends or fails."""

    def __init__(self, stream: httpx2.AsyncByteStream, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                yield piece
        except httpx2.TransportError:
            self._on_end()
            raise
        self._on_end()

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await self._stream.aclose()


class _Bearer(httpx2.Auth):
    """Sends the stored token and refreshes it once after a 401 response. Raises `LoginNeeded` instead of prompting the
    user.
    """

    def __init__(self, tokens: OAuthTokens) -> None:
        self._tokens = tokens

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with the token, and again with a refreshed token after a 401 response."""
        token = await self._tokens.current()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code != _UNAUTHORIZED:
            return
        token = await self._tokens.refresh(token)
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
        if response.status_code == _UNAUTHORIZED:
            raise LoginNeeded


async def make_client(
    url: str, headers: Mapping[str, str], monitor: ResponseMonitor, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Create an HTTP client. Proxy variables are ignored for servers of this machine."""
    parts = urlsplit(url)
    # Loading certificates is slow, so it runs in a thread.
    tls = await asyncio.to_thread(certificates) if parts.scheme == "https" else False
    return httpx2.AsyncClient(
        verify=tls,
        event_hooks={"response": [monitor.on_response]},
        headers={"User-Agent": f"Holdfast/{__version__}", **headers},
        auth=auth,
        timeout=httpx2.Timeout(_CONNECT_TIMEOUT, read=None),
        trust_env=parts.hostname not in _LOCAL,
    )


@asynccontextmanager
async def open_http_streams(
    transport: str, url: str, headers: Mapping[str, str], tokens: OAuthTokens | None, monitor: ResponseMonitor
) -> AsyncIterator[TransportStreams]:
    """Open the read and write streams to a server. Raises `LoginNeeded`."""
    client = await make_client(url, headers, monitor, _Bearer(tokens) if tokens is not None else None)
    if transport == "sse":

        def client_factory(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            return client

        async with sse_client(url, httpx_client_factory=client_factory) as streams:
            yield streams
    else:
        async with (
            client,
            streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
        ):
            try:
                yield streams
            finally:
                # The session is terminated with a DELETE request on exit; limit the wait for its response.
                client.timeout = httpx2.Timeout(_TERMINATE_TIMEOUT)
