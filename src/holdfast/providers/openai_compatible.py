"""Adapter for the OpenAI chat wire: Ollama, vLLM, LM Studio, llama.cpp, OpenRouter, DeepSeek, Groq …

Each request is attempted once. The engine decides about retries from the `trouble` of the error.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import SessionId
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart
from holdfast.domain.settings import Selection
from holdfast.domain.surrogates import SurrogateReplacer, replace_json_surrogates
from holdfast.http11.client_connection import ClientConnection, ConnectError, ConnectionRefused, RequestWatchdog
from holdfast.http11.client_messages import ConnectionBroken, serialize_request
from holdfast.http11.sse import SseReader
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.chat_request import chat_body
from holdfast.providers.chat_response import ChatResponse, ErrorInStream, NotUnderstood
from holdfast.providers.provider_errors import (
    ErrorContext,
    connection_error,
    error_in_stream,
    incomplete_error,
    refused_error,
    stall_error,
    status_error,
)
from holdfast.providers.shared_http_clients import USER_AGENT, DirectRoute, direct_route, http_client, in_thread

if TYPE_CHECKING:
    import httpx2

__all__ = ["CompatibleModel", "session_headers"]

_CONNECT_SECONDS = 30.0
_MAX_ERROR_BODY = 1_000_000
_MAX_OPENING = 2_000
_BASE_URL_EXAMPLE = "It looks like http://localhost:11434/v1."

_Read = Callable[[], Coroutine[Any, Any, bytes]]


class CompatibleModel:
    """A model on the OpenAI chat wire. Uses the shared client of its event loop unless a client is passed."""

    def __init__(
        self, info: ModelInfo, access: ModelAccess, selection: Selection, *, client: "httpx2.AsyncClient | None" = None
    ) -> None:
        self._info = info
        self._access = access
        self._selection = selection
        self._client = client
        self._context = ErrorContext(info.provider, info.model, access.base_url, access.secrets)

    @property
    def info(self) -> ModelInfo:
        """Facts about the model."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Send a request and yield the parts of the response. Raises `ProviderError`."""
        url = _address(self._access.base_url, self._context)
        body = chat_body(request, self._info, self._access, self._selection)
        watchdog = RequestWatchdog(self._access.first_byte, self._access.between)
        exchange = _Exchange(self._context, watchdog)
        try:
            watchdog.start()
            read = await exchange.open(self._client, url, self._headers(request.session_id), body)
            events, halves, answer = SseReader(), SurrogateReplacer(), ChatResponse()
            while not answer.is_done:
                data = await exchange.next(read, answer)
                received = events.feed(halves.feed(data)) if data else [*events.feed(halves.end()), *events.end()]
                for part in exchange.parse_events(answer, [event.data for event in received]):
                    yield part
                if not data:
                    break
            if not answer.is_finished:
                raise exchange.unfinished_error()
            exchange.finish()
            for part in answer.end():
                yield part
        finally:
            await exchange.close()

    def _headers(self, session: SessionId) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "user-agent": USER_AGENT,
            **session_headers(session),
        }
        if self._access.api_key:
            headers["authorization"] = f"Bearer {self._access.api_key}"
        return headers | {name.lower(): value for name, value in self._access.headers.items()}


def session_headers(session: SessionId) -> dict[str, str]:
    """Headers that let a provider route the requests of a session to the same machine, where the prefix is cached."""
    digest = hashlib.blake2b(session.encode(), digest_size=8).hexdigest()
    return {"x-session-id": digest, "x-session-affinity": digest}


class _Exchange:
    """One request and its response. Every exit path closes the connection or returns it for reuse."""

    def __init__(self, context: ErrorContext, watchdog: RequestWatchdog) -> None:
        self._context = context
        self._watchdog = watchdog
        self._response: httpx2.Response | None = None
        """The response, if httpx2 makes the connection."""
        self._connection: ClientConnection | None = None
        """The connection, if it is one of ours."""
        self._opening = b""
        self._has_events = False

    async def open(self, client: "httpx2.AsyncClient | None", url: str, headers: dict[str, str], body: bytes) -> _Read:
        """Send the request and wait for the headers of a successful response. Raises `ProviderError`.

        Without a `client` the request goes directly to the server where possible, else through httpx2.
        """
        try:
            route = None if client is not None else await direct_route(url)
            async with asyncio.timeout(self._watchdog.timeout + _CONNECT_SECONDS):
                if route is None:
                    client = client or await http_client(url)
                    status, fields, read = await self._send_by_httpx(client, url, headers, body)
                else:
                    status, fields, read = await self._send_directly(route, headers, body)
        except TimeoutError:
            raise self._stall_error() from None
        kind = fields.get("content-type", "")
        if status != 200 or "text/html" in kind:
            raise status_error(self._context, status, fields, await self._read_body(read), now=time.time())
        if "application/json" in kind:
            return self._single_event_reader(await self._read_body(read))
        return read

    async def _send_directly(
        self, route: DirectRoute, headers: dict[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], _Read]:
        fields = {"host": route.authority, "content-length": str(len(body))} | headers
        try:
            head = serialize_request("POST", route.target, fields.items())
            exchange = route.connections.request(
                route.origin, (head, body), self._watchdog, route.tls, _CONNECT_SECONDS
            )
            self._connection, answer = await exchange
        except TimeoutError:
            raise self._connection_error(TimeoutError("no connection was made in time")) from None
        except (ConnectError, ConnectionBroken, ValueError) as error:
            raise self._connection_error(error) from None
        if answer.headers.get("content-encoding", "identity") == "identity":
            return answer.status, answer.headers, self._connection.read
        transport = await in_thread("holdfast.providers.httpx_transport")
        broken = (await in_thread("httpx2")).TransportError
        decoded = _HttpxReader(transport.decoded_body(self._connection, answer), self._watchdog, broken)
        return answer.status, answer.headers, decoded.read

    async def _send_by_httpx(
        self, client: "httpx2.AsyncClient", url: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], _Read]:
        httpx2 = await in_thread("httpx2")
        try:
            request = client.build_request(
                "POST", url, headers=headers, content=body, extensions={"watch": self._watchdog}
            )
            response = self._response = await client.send(request, stream=True)
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise refused_error(self._context, f"its base_url is not valid: {error}", _BASE_URL_EXAMPLE) from None
        except httpx2.TransportError as error:
            raise self._connection_error(error) from None
        self._connection = response.extensions.get("connection")
        if self._connection is None or response.headers.get("content-encoding", "identity") != "identity":
            read = _HttpxReader(response.aiter_bytes(), self._watchdog, httpx2.TransportError).read
        else:
            read = self._connection.read
        return response.status_code, response.headers, read

    async def next(self, read: _Read, answer: ChatResponse) -> bytes:
        """Return the next bytes; empty at the end of the body. A broken connection after a complete
        response is ignored.
        """
        try:
            data = await read()
        except (ConnectionBroken, TimeoutError) as error:
            if answer.is_finished:
                self._watchdog.abort()
                return b""
            raise (
                self._stall_error() if self._watchdog.has_stalled else incomplete_error(self._context, str(error))
            ) from None
        if not self._has_events:
            self._opening = (self._opening + data)[:_MAX_OPENING]
        return data

    def parse_events(self, answer: ChatResponse, events: list[bytes]) -> list[StreamPart]:
        """Convert events to stream parts. Raises `ProviderError`."""
        if events:
            self._has_events = True
        try:
            return answer.feed(events)
        except ErrorInStream as error:
            raise error_in_stream(self._context, error.error) from None
        except NotUnderstood as error:
            raise incomplete_error(self._context, f"it sent data that is not part of a response: {error}") from None

    def unfinished_error(self) -> ProviderError:
        """Return the error for a response that ended without being complete."""
        opening = self._opening.lstrip()
        if opening.startswith(b"<"):
            return status_error(self._context, 200, {}, opening, now=time.time())
        if opening.startswith((b"{", b"[")):
            text = opening[:200].decode("utf-8", "replace")
            return refused_error(self._context, f"this is not a response of a model: {text}", "Check base_url.")
        return incomplete_error(self._context)

    def finish(self) -> None:
        """Return the connection for reuse after a complete response."""
        if self._connection is not None and not self._watchdog.is_over:
            self._connection.release()
            self._watchdog.finish()

    async def close(self) -> None:
        """Abort the exchange unless it has finished."""
        self._watchdog.abort()
        if self._response is not None and self._connection is None:
            await self._response.aclose()

    def _single_event_reader(self, body: bytes) -> _Read:
        """Return a reader for servers that ignore `stream` and send one JSON document: it is wrapped as one event."""
        self._opening = body[:_MAX_OPENING]
        pieces = [b"", b"data: " + b" ".join(body.splitlines()) + b"\n\n"]

        async def read() -> bytes:
            return pieces.pop()

        return read

    async def _read_body(self, read: _Read) -> bytes:
        """Read the body up to `_MAX_ERROR_BODY` bytes. A broken connection ends it early."""
        pieces, size = [], 0
        try:
            while size < _MAX_ERROR_BODY and (data := await read()):
                pieces.append(data)
                size += len(data)
        except (ConnectionBroken, TimeoutError):
            if self._watchdog.has_stalled and not pieces:
                raise self._stall_error() from None
        return replace_json_surrogates(b"".join(pieces))

    def _stall_error(self) -> ProviderError:
        return stall_error(self._context, self._watchdog.timeout, has_begun=self._watchdog.has_begun)

    def _connection_error(self, error: Exception) -> ProviderError:
        if self._watchdog.has_stalled:
            return self._stall_error()
        is_refused = any(isinstance(item, ConnectionRefused) for item in (error, error.__cause__))
        return connection_error(self._context, str(error) or type(error).__name__, is_refused=is_refused)


class _HttpxReader:
    """Reads through httpx2: for compressed responses and for proxied connections."""

    def __init__(self, pieces: AsyncIterator[bytes], watchdog: RequestWatchdog, broken: type[Exception]) -> None:
        self._pieces = pieces
        self._watchdog = watchdog
        self._connection_error = broken

    async def read(self) -> bytes:
        try:
            async with asyncio.timeout(self._watchdog.timeout):
                data = await anext(self._pieces, b"")
        except TimeoutError:
            self._watchdog.has_stalled = True
            raise
        except self._connection_error as error:
            raise ConnectionBroken(str(error)) from error
        self._watchdog.touch()
        return data


def _address(base_url: str, context: ErrorContext) -> str:
    try:
        parts = urlsplit(base_url.strip())
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise refused_error(context, f"its base_url is not valid: {base_url!r}", _BASE_URL_EXAMPLE)
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path += "/chat/completions"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
