"""Reads the log of one workspace as it grows: after each wake-up, and at least once a second.

A wake-up may be lost, and the connection that carries it may be down, so no event depends on one. A node that was
suspended or cut off continues after the last number that it delivered. On a node with many workspaces one statement a
second reads the newest numbers of all of them and wakes the readers that are behind; they do not poll themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from holdfast.bus.bus import EventLog
from holdfast.domain.errors import StorageError
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import Entry
from holdfast.engine.recorder import decode_entries
from holdfast.tasks import TaskOwner

__all__ = ["POLL_SECONDS", "LogReader"]

POLL_SECONDS = 1.0
_PAGE_SIZE = 500


class LogReader:
    """Delivers the events after `cursor` in number order, each once.

    `deliver` raises `StorageError` only before it has done anything: its entries are then delivered again later.
    """

    def __init__(
        self,
        log: EventLog,
        workspace: WorkspaceId,
        cursor: int,
        deliver: Callable[[Sequence[Entry]], Awaitable[None]],
    ) -> None:
        self.cursor = cursor
        """The last number that was delivered."""
        self._log = log
        self._workspace = workspace
        self._deliver = deliver
        self._wakened = asyncio.Event()
        self._on_found: Callable[[], None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._tasks = TaskOwner()
        self._is_closed = False

    def start(self, poll_seconds: float | None = POLL_SECONDS) -> None:
        """Start reading. With `poll_seconds` None the caller polls, and calls `wake`."""
        self._tasks.start(self._read_on(poll_seconds), name=f"log of {self._workspace}")

    def close(self) -> None:
        """Stop reading. Callers of `catch_up` return."""
        self._is_closed = True
        self._tasks.cancel_all()
        self._resolve(self._take_waiting())

    def wake(self, on_found: Callable[[], None] | None = None) -> None:
        """Read again soon: the log may have grown. `on_found` is called after a read that has delivered events; of
        several wake-ups before a read, that of the first one.
        """
        self._on_found = self._on_found or on_found
        self._wakened.set()

    async def catch_up(self) -> None:
        """Return when every event that is stored by now is delivered, or when reading failed or has stopped."""
        if self._is_closed:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self.wake()
        await waiter

    async def _read_on(self, poll_seconds: float | None) -> None:
        while True:
            self._wakened.clear()
            # A caller that comes during the read may ask for events that it does not see.
            waiting = self._take_waiting()
            on_found, self._on_found = self._on_found, None
            cursor = self.cursor
            try:
                await self._read_to_end()
                if on_found is not None and self.cursor > cursor:
                    on_found()
            except StorageError:
                # A failed read is repeated after the next wake-up or poll.
                self._on_found = on_found or self._on_found
            except Exception as error:
                # The reader must not end: the clients of this node would never receive another event.
                context = {"message": f"the log of {self._workspace} could not be read", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            finally:
                self._resolve(waiting)
            with suppress(TimeoutError):
                async with asyncio.timeout(poll_seconds):
                    await self._wakened.wait()

    async def _read_to_end(self) -> None:
        while True:
            page = await self._log.events_after(self._workspace, self.cursor, _PAGE_SIZE)
            if page:
                await self._deliver(decode_entries(page))
                self.cursor = page[-1][0]
            if len(page) < _PAGE_SIZE:
                return

    def _take_waiting(self) -> list[asyncio.Future[None]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _resolve(self, waiting: Sequence[asyncio.Future[None]]) -> None:
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
