"""A client's connection to the workspace of a directory. It survives broken streams and server restarts."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from holdfast.client.backoff import Backoff
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.client.events import StreamEvent
from holdfast.client.locate import ServerLocation, find_or_start
from holdfast.client.stream import EventStream
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.tasks import TaskOwner

__all__ = ["WorkspaceConnection"]

_LOOK = 0.5
_FAREWELL = 1.0


class WorkspaceConnection:
    """Finds or starts the server on entry. A server that may be started by clients is started again when it is gone."""

    def __init__(self, where: ServerLocation, directory: str, environment: Sequence[str] = ()) -> None:
        self._where = where
        self.directory = where.directory or directory
        self._environment = tuple(environment) if where.address.path and where.again is None else ()
        self._tasks = TaskOwner()
        self._client: Client | None = None
        self.workspace = WorkspaceId("")

    @property
    def client(self) -> Client:
        """The client of the server, available after `enter`."""
        assert self._client is not None, "it was entered"
        return self._client

    async def enter(self) -> WorkspaceBody:
        """Find or start the server and open the workspace. Raises `ClientError`."""
        thin = await asyncio.to_thread(find_or_start, self._where)
        address = thin.address
        thin.close()
        if self._client is None:
            self._client = Client(address, via="editor")
        else:
            self._client.address = address
        body = await self._client.create_workspace(self.directory, env=self._environment)
        self.workspace = body.id
        return body

    async def follow(self, since: int, take: Callable[[StreamEvent], Awaitable[None]]) -> None:
        """Pass every event after `since` to `take`, until cancelled."""
        backoff = Backoff(random.random)
        while True:
            try:
                async with self.client.events(self.workspace, since=since) as events:
                    watching = self._tasks.start(self._watch(events), name="connection")
                    try:
                        async for item in events:
                            since = events.cursor
                            backoff.reset()
                            await take(item)
                    finally:
                        watching.cancel()
                await self.enter()
            except ClientError:
                await asyncio.sleep(backoff.wait())

    async def _watch(self, events: EventStream) -> None:
        """Start the server again if the stream stays disconnected."""
        missed = 0
        while True:
            await asyncio.sleep(_LOOK)
            missed = 0 if events.is_connected else missed + 1
            if missed and missed % 2 == 0 and self._where.can_come_back:
                try:
                    await self.enter()
                except ClientError:
                    continue

    async def leave(self) -> None:
        """Leave the workspace and close the client."""
        self._tasks.cancel_all()
        await self._tasks.drain()
        if self._client is None:
            return
        if self.workspace:
            try:
                async with asyncio.timeout(_FAREWELL):
                    await self._client.leave_workspace(self.workspace)
            except (ClientError, TimeoutError):
                pass
        await self._client.close()
