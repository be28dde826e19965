"""Handlers for workspaces: opening and leaving them, and the initial state for clients."""

import asyncio
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.message_delta import grow
from holdfast.domain.messages import Message
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody
from holdfast.server.http.request import Request
from holdfast.server.presence import Release, View
from holdfast.server.routes.configuration import config_of, problems_of
from holdfast.server.routes.sessions import dressed
from holdfast.server.workspace_manager import WorkspaceHandle, client_id_of

__all__ = [
    "create_workspace",
    "get_config",
    "get_workspace",
    "leave_workspace",
    "list_providers",
    "list_workspaces",
    "set_current_session",
    "snapshot",
]

_MOST_PROBLEMS = 10


async def list_workspaces(call: Request) -> list[WorkspaceBody]:
    """Return the open workspaces."""
    return [await _body(call, desk) for desk in call.hub.desks]


async def create_workspace(call: Request) -> WorkspaceBody:
    """Open the workspace of a directory."""
    asked = call.body
    if call.page is not None and not asked.env:
        # A browser has no environment: use that of the client that requested the link.
        asked = msgspec.structs.replace(asked, env=call.page.env)
    # A client that disconnects while its workspace is being opened does not cancel the opening.
    return await _body(call, await asyncio.shield(call.hub.create(asked)))


async def get_workspace(call: Request) -> WorkspaceBody:
    """Return a workspace."""
    return await _body(call, call.desk)


async def leave_workspace(call: Request) -> None:
    """Release a client's claim. An unknown workspace is not an error."""
    call.hub.tell(Release(WorkspaceId(call.params["id"]), client_id_of(call.query["client_id"])))


async def set_current_session(call: Request) -> None:
    """Set the session that a client views."""
    call.hub.tell(View(call.desk.id, client_id_of(call.query["client_id"]), call.body.session_id))


async def get_config(call: Request) -> dict[str, Any]:
    """Return the effective configuration."""
    return await config_of(call.desk)


async def list_providers(call: Request) -> list[dict[str, Any]]:
    """Return the providers and their models."""
    choice = call.desk.outfit.choice
    if choice is not None:
        return [msgspec.to_builtins(view) for view in await choice.providers_view()]
    config = await config_of(call.desk)
    return [entry for entry in config["providers"].values() if isinstance(entry, dict)]


async def snapshot(call: Request) -> SnapshotBody:
    """Return the state for a new client: one read of the store, with the streamed text that is not flushed yet."""
    desk = call.desk
    session = SessionId(call.query["session_id"]) if call.query.get("session_id") else None
    stored = await desk.workspace.engine.kit.ledger.snapshot(desk.id, session)
    return SnapshotBody(
        stored.cursor,
        stored.epoch,
        await _body(call, desk),
        tuple(dressed(call.hub, desk, item) for item in stored.sessions),
        tuple(_with_open_parts(desk, stored.messages)),
        stored.runs,
        # Read after the store: requests and answers since then are repeated on the stream, which is harmless.
        tuple(msgspec.to_builtins(ask) for ask in desk.workspace.asks.permissions),
        tuple(msgspec.to_builtins(batch) for batch in desk.workspace.asks.questions),
        tuple(msgspec.to_builtins(job) for job in desk.outfit.jobs.list(session)),
    )


def _with_open_parts(desk: WorkspaceHandle, messages: tuple[Message, ...]) -> list[Message]:
    growing = desk.workspace.engine.open_parts()
    return [grow(message, [part for part in growing if part.message_id == message.id]) for message in messages]


async def _body(call: Request, desk: WorkspaceHandle) -> WorkspaceBody:
    await desk.outfit.extensions.skills.first()
    body = WorkspaceBody(
        desk.id,
        desk.path,
        yolo=desk.yolo,
        debug=desk.debug,
        data_dir=str(desk.data_dir),
        version=__version__,
        config=await config_of(desk),
        channels=desk.channels,
        skills=tuple(msgspec.to_builtins(state) for state in desk.outfit.extensions.skills.states()),
        problems=tuple(str(item) for item in problems_of(desk) if item.severity == "error")[:_MOST_PROBLEMS],
    )
    # The environment may contain secrets: it is returned over the socket only.
    return msgspec.structs.replace(body, env=desk.env) if call.over_socket else body
