"""Servers of tests, which close each connection that they have accepted.

`asyncio.Server.close` closes the listening socket only. A connection whose end the server has not read yet remains open
when the event loop of the test closes, and the garbage collector reports it during a later test.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ssl import SSLContext

__all__ = ["Handler", "reserve_port", "stream_server"]

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Connections:
    """Runs the handler of each connection, and ends handlers and connections together."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.errors: list[Exception] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start the handler of a connection. One that arrives at the end is aborted."""
        if self._is_closed:
            writer.transport.abort()
            return
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Each client of a test may end its connection at any time.
        try:
            await self._handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()
        except Exception as error:
            self.errors.append(error)
            writer.transport.abort()

    async def close(self) -> None:
        """Cancel all handlers, abort all connections, and wait until their transports are closed."""
        self._is_closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        for writer in self._writers:
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def stream_server(
    handle: Handler, *, path: str | None = None, tls: SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve connections on a free port of this machine, or on a socket at a path, and yield the port (0 for a path).

    A handler that still runs at the end is cancelled. An error of a handler is raised at the end.
    """
    connections = _Connections(handle)
    if path is None:
        server = await asyncio.start_server(connections.accept, "127.0.0.1", 0, ssl=tls)
    else:
        server = await asyncio.start_unix_server(connections.accept, path)
    try:
        yield server.sockets[0].getsockname()[1] if path is None else 0
    finally:
        server.close()
        await connections.close()
    if connections.errors:
        raise ExceptionGroup("A handler of the server failed.", connections.errors)


@contextmanager
def reserve_port() -> Iterator[int]:
    """Yield a port that refuses connections until a server of the test listens at it.

    It is bound during the block, so that the system assigns it to no other socket. Linux lets a second socket bind a
    port if both set `SO_REUSEADDR`, as servers do, and none listens yet.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
