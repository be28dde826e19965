"""HTTP/1.1 on connections of our own. httptools takes requests apart; what is behind is an ASGI application.

One request of a connection is answered at a time, in the order in which they came. A body that nobody wants is
passed over; a reader that does not read makes its writer wait, and nobody else. Who has shut its own side gets the
answers to what it asked, and then the end of the connection.

`limits.py` keeps the number of connections below that of descriptors.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import chain
from typing import cast

import httptools

from holdfast.server.exchange import Asgi, Exchange, Message, Receive, Scope, Send, exchange_of
from holdfast.server.heads import NOT_HTTP
from holdfast.server.limits import ConnectionLimits
from holdfast.server.listen import is_hung_up, is_our_own
from holdfast.tasks import TaskOwner

__all__ = ["Asgi", "Exchange", "HttpServer", "Message", "Receive", "Scope", "Send", "exchange_of"]

_KEEP_ALIVE_SECONDS = 90.0
_LOOK_SECONDS = 0.5
"""How often somebody looks whether a reader that has shut its own side is still there."""
_LARGEST_HEAD = 64 * 1024
_MOST_BODY_AT_ONCE = 64 * 1024


class Connection(asyncio.Protocol):
    """Over the unix socket only our own user is let in.

    Whether a request came over the unix socket is told by the family of its own socket, never by who its peer is
    said to be: the peer of a connection that was reset has no name any more.
    """

    transport: asyncio.Transport

    def __init__(self, server: "HttpServer", application: Asgi) -> None:
        self.loop = server.loop
        self.application = application
        self.is_full = False
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._exchanges: deque[Exchange] = deque()
        self._client: tuple[str, int] | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._size = 0
        self._silent = 0
        self._has_moved = False
        self._is_nearer = False
        self._is_paused = False
        self._is_leaving = False
        self._has_ended = False
        self._watch: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        self.is_local = connection is not None and connection.family == socket.AF_UNIX
        if not self.is_local:
            name = transport.get_extra_info("peername")
            self._client = (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)
        elif not is_our_own(connection):
            self.transport.abort()
        self._server.welcome(self)
        self._grow_tired()

    def connection_lost(self, _: Exception | None) -> None:
        self._server.forget(self)
        self._rest()
        if self._watch is not None:
            self._watch.cancel()
        self.resume_writing()
        for exchange in self._exchanges:
            exchange.is_over = True
            exchange.wake()

    def data_received(self, data: bytes) -> None:
        self._server.connections.touch(self)
        self._has_moved = self._is_nearer = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # What follows is meant for a protocol that is not spoken here.
            self._pause(is_wanted=True)
        except httptools.HttpParserError:
            self._refuse()
        # The parser keeps half a header to itself, however long it grows.
        self._silent = 0 if self._has_moved else self._silent + len(data)
        if self._silent > _LARGEST_HEAD:
            self.abort()
        elif not self.is_unasked and self._exchanges[-1].is_whole:
            self._rest()
        elif self._is_nearer or self._idle is None:
            self._grow_tired()

    @property
    def is_unasked(self) -> bool:
        """Whether nobody here has anything to do for it."""
        return not self._exchanges or self._exchanges[0].is_over

    @property
    def is_incomplete(self) -> bool:
        """Whether a part of its request has not arrived."""
        return bool(self._exchanges) and not self._exchanges[0].is_whole

    def hold(self) -> AbstractContextManager[None]:
        """Use the connection for a long request. Raises `TooManyStreams`."""
        return self._server.connections.hold(self)

    def eof_received(self) -> bool:
        """Says whether the connection stays: for the answers to what was asked whole. Nobody else can ask here."""
        if self._exchanges and not self._exchanges[-1].is_whole:
            if len(self._exchanges) == 1:
                return False
            self._exchanges.pop()
        if self.is_unasked:
            return False
        self._rest()
        self._exchanges[-1].keeps = False
        self._has_ended = True
        self._look_for_reader()
        return not self.transport.is_closing()

    def _look_for_reader(self) -> None:
        """Who has left altogether has shut its own side, too, and often the system cannot tell the one from the other.

        Then a stream is written to: if nobody is there, that fails. Work that goes on only while its caller is there,
        and says nothing until it is done, is given up.
        """
        hung_up = is_hung_up(self.transport.get_extra_info("socket"))
        head = self._exchanges[0] if self._exchanges else None
        if hung_up is None and head is not None and head.sign:
            head.give_sign()
        elif hung_up or (hung_up is None and head is not None and head.is_watched):
            self.abort()
        if not self.transport.is_closing():
            self._watch = self.loop.call_later(_LOOK_SECONDS, self._look_for_reader)

    # The parser calls these.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._size = b"", [], 0
        self._has_moved = self._is_nearer = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        self._count(len(name) + len(value))

    def _count(self, size: int) -> None:
        self._has_moved = True
        self._size += size
        if self._size > _LARGEST_HEAD:
            self.abort()

    def on_headers_complete(self) -> None:
        url = httptools.parse_url(self._url)
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        path = url.path or b""
        scope: Scope = {
            "type": "http",
            "http_version": version,
            "method": method,
            "target": self._url,
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "client": self._client,
        }
        waits = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        keeps = self._parser.should_keep_alive() and not self._parser.should_upgrade() and not self._is_leaving
        exchange = Exchange(self, scope, keeps=keeps, waits=waits)
        self._is_nearer = True
        # What may follow the body is of no interest, and no header of the request.
        self._headers = []
        self._exchanges.append(exchange)
        if self._exchanges[0] is exchange:
            self._server.answer(exchange)
        self.look()

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        exchange = self._exchanges[-1] if self._exchanges else None
        if exchange is not None and not exchange.is_over:
            exchange.pieces.append(body)
            exchange.size += len(body)
            exchange.wake()
            self._is_nearer = True
            self.look()

    def on_message_complete(self) -> None:
        self._has_moved = self._is_nearer = True
        if self._exchanges:
            self._exchanges[-1].is_whole = True
            self._exchanges[-1].wake()
            if self._exchanges[0].is_over:
                self._next()

    # The exchange calls these.

    def write(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def room(self) -> None:
        """Until the reader has read."""
        if self.is_full:
            if self._room is None:
                self._room = self.loop.create_future()
            await asyncio.shield(self._room)

    def look(self) -> None:
        """Take no more from who sends faster than it is served, or asks on without reading the answers."""
        last = self._exchanges[-1] if self._exchanges else None
        is_ahead = self.is_full or len(self._exchanges) > 1 or (last is not None and last.size > _MOST_BODY_AT_ONCE)
        self._pause(is_wanted=is_ahead)

    def finish(self, exchange: Exchange) -> None:
        """The answer is complete. A request that is not, is read to its end and passed over."""
        exchange.pieces.clear()
        exchange.size = 0
        exchange.wake()
        if not exchange.keeps or self._is_leaving:
            self._grow_tired()
            self.transport.close()
        elif exchange.is_whole:
            self._next()
        else:
            self._grow_tired()
            self.look()

    def _next(self) -> None:
        self._exchanges.popleft()
        if self._exchanges:
            self._server.answer(self._exchanges[0])
        else:
            self._grow_tired()
        self.look()

    def abort(self) -> None:
        """What waits to be sent is dropped."""
        self.transport.abort()

    def leave(self) -> None:
        """Close now, or with the end of the answer that is on its way."""
        self._is_leaving = True
        if not self._exchanges:
            self.transport.close()
        for exchange in self._exchanges:
            exchange.keeps = False

    # The transport calls these.

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        if self._is_paused:
            self.look()

    def _pause(self, *, is_wanted: bool) -> None:
        if is_wanted != self._is_paused and not self._has_ended and not self.transport.is_closing():
            self._is_paused = is_wanted
            if is_wanted:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _grow_tired(self) -> None:
        """Of a connection on which nothing is asked, or half of something, or whose last answer nobody reads.

        Half a head may grow, that gains no time; half a body does.
        """
        self._rest()
        unread = self.transport.get_write_buffer_size()
        self._idle = self.loop.call_later(_KEEP_ALIVE_SECONDS, self._leave_alone, unread)

    def _leave_alone(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        is_our_turn = self._is_paused and not self.is_unasked
        if not unread and not is_our_turn:
            self.transport.close()
        elif unread < before or is_our_turn:
            self._grow_tired()
        else:
            self.abort()

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _refuse(self) -> None:
        """Nothing that follows can be understood. An answer that is on its way must not be mixed with another."""
        if not self._exchanges:
            self.write(NOT_HTTP)
            self.transport.close()
        elif self._exchanges[-1].is_whole:
            self._pause(is_wanted=True)
            self._exchanges[-1].keeps = False
        elif len(self._exchanges) == 1 and self._exchanges[0].break_off():
            self.write(NOT_HTTP)
            self.transport.close()
        else:
            self.transport.abort()


class HttpServer:
    """Serves an application on sockets that others have bound."""

    def __init__(self, application: Asgi) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: ConnectionLimits[Connection] = ConnectionLimits()
        self._application = application
        self._tasks = TaskOwner()
        self._servers: dict[Asgi, list[asyncio.Server]] = {}
        self._empty: asyncio.Future[None] | None = None

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        for listener in sockets:
            await self.listen(listener, self._application)

    async def listen(self, listener: socket.socket, application: Asgi) -> None:
        """Serve also here, with an application of its own."""
        server = await self.loop.create_server(lambda: Connection(self, application), sock=listener, backlog=2048)
        self._servers[application] = [*self._servers.get(application, ()), server]

    def leave(self, application: Asgi) -> None:
        """Serve this application no more: whoever is connected to it is cut off."""
        for server in self._servers.pop(application, ()):
            server.close()
        for connection in self.connections:
            if connection.application is application:
                connection.abort()

    def answer(self, exchange: Exchange) -> None:
        self._tasks.start(exchange.run(exchange.connection.application), name="request")

    def welcome(self, connection: Connection) -> None:
        last = self.connections.add(connection)
        if last is not None:
            last.abort()

    def forget(self, connection: Connection) -> None:
        self.connections.remove(connection)
        if self._empty is not None and not self._empty.done() and not self.connections:
            self._empty.set_result(None)

    async def stop(self, last_words: float) -> None:
        """Let nobody in, let answers end; whoever has not read its own after so many seconds is not waited for."""
        for server in chain.from_iterable(self._servers.values()):
            server.close()
        for connection in self.connections:
            connection.leave()
        self._empty = self.loop.create_future()
        if self.connections:
            hang_up = self.loop.call_later(last_words, self._hang_up)
            await self._empty
            hang_up.cancel()
        # Nobody is there any more who could be answered, and what a request waits for may never come.
        self._tasks.cancel_all()
        await self._tasks.drain()
        # A request may have opened the page's port meanwhile.
        for server in chain.from_iterable(self._servers.values()):
            server.close()

    def _hang_up(self) -> None:
        for connection in self.connections:
            connection.abort()
