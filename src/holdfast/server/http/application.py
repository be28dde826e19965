"""The ASGI application: finds the route of a request, calls its handler and sends the response.

Contains everything that is common to all routes: routing, the limit of a body, decoding, encoding and error responses.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec

from holdfast.domain.errors import BadRequest, StorageDetached, StorageUnavailable
from holdfast.protocol.error_status import OtherDataDirectory, TooLarge, problem_of, status_of
from holdfast.protocol.openapi import policy
from holdfast.protocol.routes import ROUTES, Route
from holdfast.server.http.connection import HttpServer, Receive, Scope, Send
from holdfast.server.http.request import Handler, Request
from holdfast.server.telemetry.observers import Observers
from holdfast.server.web.listener import WebListener
from holdfast.server.workspace_manager import ServerStopping, WorkspaceManager
from holdfast.tasks import TaskOwner, is_cancelled

if TYPE_CHECKING:
    from holdfast.server.relay.relay import Relay

__all__ = ["Application", "Streamer", "accepts_gzip", "read_body"]

Streamer: TypeAlias = Callable[[Request, Receive, Send], Awaitable[None]]

_MAX_BODY_BYTES = 32 * 1024 * 1024
_MIN_COMPRESSED = 16 * 1024
"""Smaller responses are not compressed, nor are those over the unix socket, where bytes cost less than their
compression. Event streams never are: each event has to arrive at once.
"""
_COMPRESSION = 4
"""Level of gzip: half the time of level 6 (17 instead of 33 ms for 1 MiB of messages) for 4 % more bytes."""
_NO_WEIGHT = re.compile(r"q\s*=\s*0(\.0*)?")
_VARY = (b"vary", b"accept-encoding")
_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_PAGE = (b"content-type", b"text/html; charset=utf-8")
_RETRY_AFTER = (b"retry-after", b"1")
_ALWAYS = frozenset({"health", "version"})

_encoder = msgspec.json.Encoder()
_log = logging.getLogger("holdfast.server")


class _ClientGone(Exception):
    """The client disconnected before the request was complete or its work was done; no response can be sent."""


class _Found(msgspec.Struct, frozen=True):
    route: Route
    params: Mapping[str, str]


class Application:
    """Dispatches requests to the handlers of the route table."""

    def __init__(
        self,
        manager: WorkspaceManager,
        observers: Observers,
        server: HttpServer,
        handlers: Mapping[str, Handler],
        streamer: Streamer,
        relay: "Relay | None" = None,
    ) -> None:
        """`relay` sends requests to the owner of a workspace; None without a cluster."""
        self.server = server
        self.web = WebListener(manager.data_dir, server, self, manager.services.shared)
        self._manager = manager
        self._observers = observers
        self._handlers = handlers
        self._streamer = streamer
        self._relay = relay
        self._routes: dict[tuple[str | None, ...], dict[str, Route]] = {}
        """Routes by their segments, with None for each parameter, then by method."""
        self._shapes: dict[int, list[tuple[int, ...]]] = {}
        """Positions of the parameters, by number of segments; routes with the fewest parameters first."""
        for route in ROUTES:
            segments = tuple(route.full_path.removeprefix("/").split("/"))
            shape = tuple(place for place, part in enumerate(segments) if part.startswith("{"))
            self._routes.setdefault(_mask_parameters(segments, shape), {})[route.method] = route
            shapes = self._shapes.setdefault(len(segments), [])
            if shape not in shapes:
                shapes.append(shape)
                shapes.sort(key=len)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; errors become problem responses."""
        found, others = self._find(_segments(scope), scope["method"])
        if found is None:
            if others:
                # RFC 9110, 15.5.6: the response lists the methods that the path has.
                allow = (b"allow", ", ".join(sorted(others)).encode())
                await _respond(send, 405, b"Method Not Allowed\n", _TEXT, allow)
            else:
                await _respond(send, 404, b"404 page not found\n", _TEXT)
            return
        try:
            await self._answer(found, scope, receive, send)
        except _ClientGone:
            return
        except (Exception, asyncio.CancelledError) as raised:
            error: BaseException = raised
            if isinstance(raised, asyncio.CancelledError):
                if is_cancelled():
                    raise
                # What the handler used was closed: the workspace has moved to another server.
                error = StorageUnavailable("The workspace is moving between servers: try again in a moment.")
            # Report errors during shutdown as 503.
            if self._manager.is_closed and status_of(error) == 500:
                error = ServerStopping()
            status = status_of(error)
            if isinstance(error, StorageDetached):
                await self._manager.check_storage()
            if status == 500:
                _log.exception("%s %s failed", scope["method"], found.route.path)
            # The error refers to the frames it passed through, and some of them refer to it. Without the traceback they
            # and the request body are freed at once; as a cycle they would wait for the garbage collector, which counts
            # a huge body as one object.
            raised.__traceback__ = None
            # In a cluster a 503 ends with a takeover or with the outage of the database.
            more = (_RETRY_AFTER,) if status == 503 and self._manager.host is not None else ()
            await _respond(send, status, _encoder.encode(problem_of(error)) + b"\n", _JSON, *more)

    def _find(self, segments: tuple[str, ...], method: str) -> tuple[_Found | None, set[str]]:
        """Return the route, or the methods of other routes of the path. Literal segments take precedence over
        parameters.
        """
        others: set[str] = set()
        for shape in self._shapes.get(len(segments), ()):
            routes = self._routes.get(_mask_parameters(segments, shape))
            if routes is None:
                continue
            route = routes.get(method)
            if route is not None:
                names = route.full_path.removeprefix("/").split("/")
                return _Found(route, {names[place][1:-1]: segments[place] for place in shape}), others
            others |= routes.keys()
        return None, others

    def _check_data_directory(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"holdfast-data" and value.decode("latin-1") != self._manager.data_id:
                raise OtherDataDirectory

    async def _answer(self, found: _Found, scope: Scope, receive: Receive, send: Send) -> None:
        route = found.route
        self._check_data_directory(scope)
        if route.name not in _ALWAYS:
            await self._manager.ready.wait()
            if self._manager.is_closed:
                raise ServerStopping
        query = _query(scope, route)
        if self._relay is not None:
            remaining = await self._relay.dispatch(route, found.params, query, (scope, receive, send))
            if remaining is None:
                return
            # The body may have been read.
            receive = remaining
        request = Request(
            manager=self._manager,
            web=self.web,
            observers=self._observers,
            route=route,
            params=found.params,
            query=query,
            body=_decoded(route, await read_body(scope, receive)),
            over_socket=scope.get("client") is None and "relayed_by" not in scope,
            open_handle=await self._manager.find(found.params["id"])
            if 404 in route.errors and "id" in found.params
            else None,
            page=scope.get("page"),
            exchange=scope.get("exchange"),
            relay=self._relay,
            relayed_by=scope.get("relayed_by"),
        )
        if route.streams:
            with _count_connection(request):
                await self._streamer(request, receive, send)
            return
        handler = self._handlers[route.name]
        if route.ends_with_caller:
            with _count_connection(request):
                answer = await _run_while_connected(handler, request, receive)
        else:
            answer = await handler(request)
        if route.is_page:
            await _respond(send, route.status, answer.encode(), _PAGE, (b"content-security-policy", policy().encode()))
        elif route.media:
            await _respond(send, route.status, answer.encode(), (b"content-type", route.media.encode()))
        else:
            await _respond_json(send, request, answer, scope["headers"])


def accepts_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a client accepts a compressed response: gzip, or else any coding, with a weight above 0."""
    weights: dict[str, bool] = {}
    for name, value in headers:
        if name == b"accept-encoding":
            for item in value.decode("latin-1").lower().split(","):
                coding, *parameters = (word.strip() for word in item.split(";"))
                weights[coding] = not any(_NO_WEIGHT.fullmatch(parameter) for parameter in parameters)
    return weights.get("gzip", weights.get("*", False))


def _count_connection(request: Request) -> AbstractContextManager[None]:
    """Count a connection that is used for an unlimited time."""
    return nullcontext() if request.exchange is None else request.exchange.connection.hold()


def _mask_parameters(segments: tuple[str, ...], shape: tuple[int, ...]) -> tuple[str | None, ...]:
    masked: list[str | None] = list(segments)
    for place in shape:
        masked[place] = None
    return tuple(masked)


def _segments(scope: Scope) -> tuple[str, ...]:
    raw = scope.get("raw_path") or scope["path"].encode()
    path = raw.split(b"?", 1)[0].decode("ascii", "replace")
    parts = path.removeprefix("/").split("/")
    return tuple([unquote(part) for part in parts] if "%" in path else parts)


def _query(scope: Scope, route: Route) -> dict[str, str]:
    asked = scope["query_string"]
    query = dict(parse_qsl(asked.decode("ascii", "replace"), keep_blank_values=True)) if asked else {}
    if route.streams and "since" not in query:
        # Browsers' EventSource sends the last event it received in this header.
        for name, value in scope["headers"]:
            if name == b"last-event-id":
                query["since"] = value.decode("ascii", "replace")
    for item in route.query:
        if item.is_required and not query.get(item.name):
            raise BadRequest(f"{item.name} is required")
    # Handlers receive only parameters that the route table declares, so that the table is complete.
    return {item.name: query[item.name] for item in route.query if item.name in query}


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request. Raises `TooLarge`."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > _MAX_BODY_BYTES:
            # Refuse before the body is received.
            raise TooLarge
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > _MAX_BODY_BYTES:
            raise TooLarge
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


async def _run_while_connected(handler: Handler, request: Request, receive: Receive) -> Any:  # noqa: ANN401 - whatever the handler answers
    """Run the handler until it returns or the client disconnects. The handler has ended when this returns."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def work() -> Any:  # noqa: ANN401
        return await handler(request)

    tasks = TaskOwner()
    working = tasks.start(work(), name=request.route.name, done=lambda task: task.cancelled() or task.exception())
    leaving = tasks.start(until_gone(), name="caller")
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise _ClientGone
    finally:
        tasks.cancel_all()
        await tasks.drain()


def _decoded(route: Route, body: bytes) -> Any:  # noqa: ANN401 - the type is the route's
    if route.request is None:
        return None
    if not body.strip() and route.request_is_optional:
        return route.request()
    try:
        # msgspec skips unknown fields without validating them; decoding the whole body rejects invalid UTF-8 in those,
        # too.
        return _read(str(body, "utf-8"), route.request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"failed to decode request: {_objection(error)}") from None


def _read(text: str, kind: type[Any]) -> Any:  # noqa: ANN401
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        if "null" not in text:
            raise
        # Crush clients send null for an empty list or object; treat it as an absent key.
        return msgspec.json.decode(msgspec.json.encode(_without_nulls(msgspec.json.decode(text))), type=kind)


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _objection(error: Exception) -> str:
    """Describe the expected type and its place. The received value is not repeated in the message."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return "the body is not the JSON that this route accepts"
    if text.startswith(("Expected ", "Object missing ")):
        return f"{text[0].lower()}{text[1:]}"
    # The place is at the end, in backquotes, after the value.
    where = text.rpartition(" - at ")[2] if text.endswith("`") else "the top"
    return f"found a value that is not known - at {where}"


async def _respond(send: Send, status: int, body: bytes, kind: tuple[bytes, bytes], *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store"), *more]
    if body:
        headers.append(kind)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _respond_json(
    send: Send,
    request: Request,
    answer: Any,  # noqa: ANN401 - the type is the route's
    headers: Iterable[tuple[bytes, bytes]],
) -> None:
    body = b"" if request.route.answer is None else _encoder.encode(answer) + b"\n"
    if len(body) < _MIN_COMPRESSED or request.over_socket:
        await _respond(send, request.route.status, body, _JSON)
    else:
        await _respond_large(send, request.route.status, body, headers)


async def _respond_large(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Send JSON over TCP, compressed if the client accepts it."""
    if not accepts_gzip(headers):
        await _respond(send, status, body, _JSON, _VARY)
        return
    # zlib releases the interpreter: other requests are served meanwhile.
    packed = await asyncio.to_thread(_compressed, body)
    await _respond(send, status, packed, _JSON, (b"content-encoding", b"gzip"), _VARY)


def _compressed(body: bytes) -> bytes:
    import gzip  # noqa: PLC0415 - late: most servers never need it

    return gzip.compress(body, _COMPRESSION, mtime=0)
