"""The asynchronous client for long-running programs, with one typed method for each route.

`docs/examples/client.py` attaches, prompts, streams and cancels.
"""

import asyncio
import os
import random
import uuid

from holdfast.client.backoff import Backoff
from holdfast.client.errors import ClientError, ServerProblem, message_of
from holdfast.client.request import OpenResponse
from holdfast.client.server_address import ServerAddress, build_request, fill
from holdfast.client.session_methods import SessionMethods
from holdfast.client.stream import SILENCE_TIMEOUT, EventStream
from holdfast.client.workspace_methods import WorkspaceMethods
from holdfast.domain.approvals import Via
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.routes import PREFIX

__all__ = ["Client", "new_client_id"]

_STREAM_HEADERS = (("Accept", "text/event-stream"), ("Cache-Control", "no-cache"))
_MAX_ERROR_BODY = 64 * 1024


def new_client_id() -> str:
    """Return a new UUID that identifies a client to the server."""
    return str(uuid.UUID(bytes=os.urandom(16), version=4))


class Client(WorkspaceMethods, SessionMethods):
    """Keeps a few idle connections. Belongs to one event loop and has to be closed there."""

    def __init__(
        self, address: ServerAddress, *, client_id: str | None = None, via: Via = "", seconds: float = 30.0
    ) -> None:
        super().__init__(address, client_id=client_id or new_client_id(), via=via, seconds=seconds)

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

        return EventStream(connect, since=since, backoff=backoff or Backoff(random.random), quiet_seconds=quiet_seconds)

    async def close(self) -> None:
        """Close all connections. Requests in progress raise `ConnectionLost`; streams are closed by their owners."""
        self._pool.close()
        await asyncio.sleep(0)

    async def _open_events(self, workspace: WorkspaceId, since: int) -> OpenResponse:
        path = fill(PREFIX + "/workspaces/{id}/events", {"id": workspace})
        query: list[tuple[str, str | int | None]] = [("client_id", self.client_id), ("since", since)]
        message = build_request(self.address, "GET", path, query, headers=_STREAM_HEADERS)
        response = await self._pool.open(message, seconds=self._seconds)
        if response.head.status != 200:
            raise ServerProblem(response.head.status, message_of(await _read_error(response, self._seconds)))
        return response


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
