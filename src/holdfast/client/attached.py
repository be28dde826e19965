"""A client's stay in the workspace of a directory: through streams that break, and servers that go and come back."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from holdfast.client.backoff import Backoff
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.client.items import Item
from holdfast.client.locate import Where, find_or_start
from holdfast.client.stream import EventStream
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.tasks import TaskOwner

__all__ = ["Attached"]

_LOOK = 0.5
_FAREWELL = 1.0


class Attached:
    """Found or started when it is entered; a server that was started for somebody is started again when it is gone."""

    def __init__(self, where: Where, directory: str, environment: Sequence[str] = ()) -> None:
        self._where = where
        self.directory = where.directory or directory
        self._environment = tuple(environment) if where.address.path and where.again is None else ()
        self._tasks = TaskOwner()
        self._client: Client | None = None
        self.workspace = WorkspaceId("")

    @property
    def client(self) -> Client:
        assert self._client is not None, "it was entered"
        return self._client

    async def enter(self) -> WorkspaceBody:
        """Raises `ClientError` if nobody answers, or the directory is refused."""
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

    async def follow(self, since: int, take: Callable[[Item], Awaitable[None]]) -> None:
        """Hand over every event after `since`, for ever. Whoever calls this cancels it."""
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
        """A server that stays away for longer than a blink is started again."""
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
