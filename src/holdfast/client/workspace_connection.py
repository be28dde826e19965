"""Connection of a long-running client to the workspace of a directory. Used by the terminal app and by editors.

It never gives up. A broken stream resumes after the last number received (`EventStream`). If the stream stays
disconnected, the server is located again, and started if clients may start it. If the server no longer knows the
workspace, it is created again and followed from the same position. With several hosts the client continues at the next
one by itself (`Client`). Commands do the same synchronously and stop at a deadline (`cli/server_connection.py`); both
share `Backoff`, `CursorFilter` and `Round`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from holdfast.client.backoff import Backoff
from holdfast.client.client import Client
from holdfast.client.errors import ClientError, ServerProblem
from holdfast.client.events import StreamEvent
from holdfast.client.server_launcher import ServerLocation, find_or_start
from holdfast.client.stream import EventStream
from holdfast.domain.approvals import Via
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.tasks import TaskOwner

__all__ = ["WorkspaceConnection"]

_CHECK_SECONDS = 0.5
_MAX_DELAY = 1.0
_LEAVE_TIMEOUT = 1.0
_UNKNOWN = 404


class WorkspaceConnection:
    """Finds or starts the server on entry. A server that may be started by clients is started again when it is gone.

    `environment` is sent to a server on this machine only. `yolo` is evaluated whenever the workspace is opened,
    because a restarted server takes the mode from its clients.
    """

    def __init__(
        self,
        location: ServerLocation,
        directory: str,
        environment: Sequence[str] = (),
        *,
        via: Via = "editor",
        yolo: Callable[[], bool] = lambda: False,
    ) -> None:
        self._location = location
        self.directory = location.directory or directory
        self._environment = tuple(environment) if location.is_local else ()
        self._via: Via = via
        self._yolo = yolo
        self._tasks = TaskOwner()
        self._client: Client | None = None
        self.workspace = WorkspaceId("")
        self.cursor = 0
        """Position of the stream. The owner sets it to the cursor of a snapshot that it has loaded."""

    @property
    def client(self) -> Client:
        """The client of the server, available after `enter`."""
        assert self._client is not None, "it was entered"
        return self._client

    @property
    def node(self) -> str:
        """The short address of the server in use if several were given, else empty."""
        return self._client.address.label if self._client is not None and self._location.alternatives else ""

    @property
    def has_alternatives(self) -> bool:
        """True if several hosts were given."""
        return bool(self._location.alternatives)

    async def enter(self) -> WorkspaceBody:
        """Find or start the server and open the workspace. Raises `ClientError`."""
        client = await self._find()
        body = await client.create_workspace(self.directory, yolo=self._yolo(), env=self._environment)
        if self._location.alternatives and self.workspace not in ("", body.id):
            body = await self._keep_workspace(client, body)
        self.workspace = body.id
        return body

    async def _keep_workspace(self, client: Client, found: WorkspaceBody) -> WorkspaceBody:
        """Return the workspace in use. A server with other disks has another one in a directory of the same path, and
        knows the first one by its id.
        """
        try:
            known = await client.get_workspace(self.workspace)
        except ServerProblem as problem:
            if problem.status != _UNKNOWN:
                raise
            return found
        await client.leave_workspace(found.id)
        return known

    async def _find(self) -> Client:
        # The search blocks: it opens sockets and may wait for a server to start.
        location = self._location
        if self._client is not None and location.alternatives:
            location = location._replace(address=self._client.address)
        found = await asyncio.to_thread(find_or_start, location)
        address = found.address
        found.close()
        if self._client is None:
            self._client = Client(address, *location.others(address), via=self._via)
            self._client.current_yolo = self._yolo
        else:
            # The client object is kept, because other parts of the program hold it; a restarted server may listen
            # elsewhere.
            self._client.address = address
        return self._client

    async def follow(
        self, receive: Callable[[StreamEvent], Awaitable[None]], on_disconnect: Callable[[str], None] = lambda _: None
    ) -> None:
        """Pass every event after `cursor` to `receive`, until cancelled. Call `enter` before.

        `on_disconnect` is called with the reason whenever there is no connection.
        """
        backoff = Backoff(random.random, maximum=_MAX_DELAY)
        is_entered = True
        while True:
            try:
                if not is_entered:
                    await self.enter()
                # Every further pass follows an end of the stream: the workspace is gone, so it is opened again.
                is_entered = False
                async with self.client.events(self.workspace, since=self.cursor) as events:
                    watching = self._tasks.start(self._watch(events, on_disconnect), name="connection")
                    try:
                        async for item in events:
                            # Before `receive`, which may load a snapshot and set a later cursor.
                            self.cursor = events.cursor
                            backoff.reset()
                            await receive(item)
                    finally:
                        watching.cancel()
            except ClientError as error:
                on_disconnect(str(error))
                await asyncio.sleep(backoff.wait())

    async def _watch(self, events: EventStream, on_disconnect: Callable[[str], None]) -> None:
        """Report a connection that is lost for longer than a moment, and start a server that has stopped."""
        missed = 0
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if events.is_connected:
                missed = 0
                continue
            missed += 1
            on_disconnect(str(events.trouble or ""))
            # A reconnection to a running server needs no search, so the server is searched only every second time.
            if missed % 2 == 0 and self._location.can_be_restored:
                try:
                    # A connection over ssh is opened again; the client itself joins the workspace at another server.
                    await (self._find() if self._location.alternatives else self.enter())
                except ClientError as error:
                    on_disconnect(str(error))

    async def leave(self) -> None:
        """Leave the workspace and close the client."""
        self._tasks.cancel_all()
        await self._tasks.drain()
        if self._client is None:
            return
        if self.workspace:
            try:
                async with asyncio.timeout(_LEAVE_TIMEOUT):
                    await self._client.leave_workspace(self.workspace)
            # The server notices the disconnection anyway; leaving only shortens its hold.
            except (ClientError, TimeoutError):
                pass
        await self._client.close()
