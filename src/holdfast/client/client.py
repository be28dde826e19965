"""The asynchronous client for long-running programs, with one typed method for each route.

`docs/examples/client.py` attaches, prompts, streams and cancels.
"""

import asyncio
import os
import random
import uuid
from collections.abc import Callable

import msgspec

from holdfast.client.backoff import Backoff
from holdfast.client.errors import ClientError, ServerProblem, message_of
from holdfast.client.request import OpenResponse
from holdfast.client.server_address import ServerAddress, build_request, fill
from holdfast.client.session_methods import SessionMethods
from holdfast.client.stream import SILENCE_TIMEOUT, EventStream
from holdfast.client.workspace_methods import WorkspaceMethods
from holdfast.domain.approvals import Via
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.protocol.routes import PREFIX

__all__ = ["Client", "new_client_id"]

_STREAM_HEADERS = (("Accept", "text/event-stream"), ("Cache-Control", "no-cache"))
_NOT_HERE = (400, 404)
"""The directory does not exist on the machine of another server of the cluster. It knows the workspace by its id."""
_MAX_ERROR_BODY = 64 * 1024
_OPEN_TIMEOUT = 10.0
"""Maximum seconds until a stream begins, if there is another address. A workspace may just move between servers."""


def new_client_id() -> str:
    """Return a new UUID that identifies a client to the server."""
    return str(uuid.UUID(bytes=os.urandom(16), version=4))


class Client(WorkspaceMethods, SessionMethods):
    """Keeps a few idle connections. Belongs to one event loop and has to be closed there."""

    def __init__(
        self,
        address: ServerAddress,
        *alternatives: ServerAddress,
        client_id: str | None = None,
        via: Via = "",
        seconds: float = 30.0,
    ) -> None:
        """With `alternatives`, which are other addresses of the same server or other servers of its cluster, requests
        and streams continue at another address when one fails.
        """
        super().__init__(address, alternatives, client_id=client_id or new_client_id(), via=via, seconds=seconds)
        self.current_yolo: Callable[[], bool] | None = None
        """Returns the mode for a workspace that is opened at another address, if it may have changed meanwhile."""
        self._joined: dict[WorkspaceId, WorkspaceBody] = {}
        self._joined_at = address

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def events(
        self,
        workspace: WorkspaceId,
        *,
        since: int,
        backoff: Backoff | None = None,
        quiet_seconds: float = SILENCE_TIMEOUT,
    ) -> EventStream:
        """Follow the events of a workspace: all durable events after the number `since` (0: all that are stored), each
        once, with live events between them.
        """

        async def connect(after: int) -> OpenResponse:
            return await self._open_events(workspace, after)

        return EventStream(
            connect,
            since=since,
            backoff=backoff or Backoff(random.random),
            quiet_seconds=quiet_seconds,
            find_better=self._find_better if self._pool.has_alternatives else None,
        )

    async def create_workspace(
        self, path: str, *, yolo: bool = False, debug: bool = False, env: tuple[str, ...] = (), version: str = ""
    ) -> WorkspaceBody:
        """Open the workspace of a directory, or join it. Returns it with its id. If the client has to continue at
        another address, it is opened there as well.
        """
        found = await super().create_workspace(path, yolo=yolo, debug=debug, env=env, version=version)
        body = WorkspaceBody(
            WorkspaceId(""), path, yolo=yolo, debug=debug, version=version, client_id=self.client_id, env=env
        )
        self._joined[found.id] = body
        self._joined_at = self.address
        return found

    async def leave_workspace(self, workspace: WorkspaceId) -> None:
        """Leave a workspace."""
        self._joined.pop(workspace, None)
        await super().leave_workspace(workspace)

    async def set_skip(self, workspace: WorkspaceId, *, skip: bool) -> None:
        """Set whether permission requests are skipped."""
        await super().set_skip(workspace, skip=skip)
        if workspace in self._joined:
            self._joined[workspace] = msgspec.structs.replace(self._joined[workspace], yolo=skip)

    async def _join_again(self, address: ServerAddress) -> None:
        if address == self._joined_at:
            return
        for workspace, body in [*self._joined.items()]:
            await self._join(address, workspace, body)
        self._joined_at = address

    async def _join(self, address: ServerAddress, workspace: WorkspaceId, body: WorkspaceBody) -> None:
        """Open a workspace at another server."""
        if self.current_yolo is not None:
            body = msgspec.structs.replace(body, yolo=self.current_yolo())
        try:
            raw = await self._send_to(address, "create_workspace", {}, body=body, seconds=_OPEN_TIMEOUT)
            found = self._decode(WorkspaceBody, "create_workspace", raw)
            if found.id != workspace:
                # This server has other disks: it knows the workspace by its id only.
                query = [("client_id", self.client_id)]
                await self._send_to(address, "leave_workspace", {"id": found.id}, query=query)
        except ServerProblem as problem:
            if problem.status not in _NOT_HERE:
                raise

    async def close(self) -> None:
        """Close all connections. Requests in progress raise `ConnectionLost`; streams are closed by their owners."""
        self._pool.close()
        await asyncio.sleep(0)

    async def _open_events(self, workspace: WorkspaceId, since: int) -> OpenResponse:
        path = fill(PREFIX + "/workspaces/{id}/events", {"id": workspace})
        query: list[tuple[str, str | int | None]] = [("client_id", self.client_id), ("since", since)]
        seconds = _OPEN_TIMEOUT if self._pool.has_alternatives else self._seconds

        async def send(address: ServerAddress) -> OpenResponse:
            message = build_request(address, "GET", path, query, headers=_STREAM_HEADERS)
            response = await self._pool.open(message, seconds=seconds, address=address)
            if response.head.status != 200:
                raise ServerProblem(response.head.status, message_of(await _read_error(response, seconds)))
            return response

        return await self._attempt(send, can_repeat=True)


async def _read_error(response: OpenResponse, seconds: float | None) -> bytes:
    """Return the body of an error response, or nothing if it is too long or too slow."""
    body = b""
    try:
        async with asyncio.timeout(seconds):
            while len(body) < _MAX_ERROR_BODY and (piece := await response.read()) is not None:
                body += piece
    except (TimeoutError, ClientError):
        return b""
    finally:
        response.close()
    return body
