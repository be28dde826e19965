"""Handlers for workspaces: opening and leaving them, and the initial state for clients."""

import asyncio
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Message
from holdfast.domain.processes import JobInfo
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody
from holdfast.server.http.request import Request
from holdfast.server.presence import Release, ViewSession
from holdfast.server.routes.configuration import config_of, problems_of
from holdfast.server.routes.sessions import with_live_state
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import client_id_of

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

_MAX_PROBLEMS = 10


async def list_workspaces(request: Request) -> list[WorkspaceBody]:
    """Return the open workspaces."""
    return [await _own_body(request, handle) for handle in request.manager.handles]


async def create_workspace(request: Request) -> WorkspaceBody:
    """Open the workspace of a directory."""
    asked = request.body
    if request.page is not None and not asked.env:
        # A browser has no environment: use that of the client that requested the link.
        asked = msgspec.structs.replace(asked, env=request.page.env)
    # A client that disconnects while its workspace is being opened does not cancel the opening.
    return await _body(request, await asyncio.shield(request.manager.create(asked)))


async def get_workspace(request: Request) -> WorkspaceBody:
    """Return a workspace."""
    return await _body(request, request.handle)


async def leave_workspace(request: Request) -> None:
    """Release a client's claim. An unknown workspace is not an error."""
    request.manager.apply(Release(WorkspaceId(request.params["id"]), client_id_of(request.query["client_id"])))


async def set_current_session(request: Request) -> None:
    """Set the session that a client views."""
    request.manager.apply(
        ViewSession(request.workspace.id, client_id_of(request.query["client_id"]), request.body.session_id)
    )


async def get_config(request: Request) -> dict[str, Any]:
    """Return the effective configuration."""
    return await config_of(request.handle)


async def list_providers(request: Request) -> list[dict[str, Any]]:
    """Return the providers and their models."""
    choice = request.services.selected_models
    if choice is not None:
        return [msgspec.to_builtins(view) for view in await choice.providers_view()]
    config = await config_of(request.handle)
    return [entry for entry in config["providers"].values() if isinstance(entry, dict)]


async def snapshot(request: Request) -> SnapshotBody:
    """Return the state for a new client: one read of the store, with the streamed text that is not flushed yet."""
    handle = request.handle
    session = SessionId(request.query["session_id"]) if request.query.get("session_id") else None
    stored = await handle.workspace.ledger.snapshot(handle.id, session)
    return SnapshotBody(
        stored.cursor,
        stored.epoch,
        await _body(request, handle),
        tuple(with_live_state(request.manager, handle, item) for item in stored.sessions),
        tuple(_with_open_parts(handle, stored.messages)),
        stored.runs,
        # Read after the store: requests and answers since then are repeated on the stream, which is harmless.
        tuple(msgspec.to_builtins(ask) for ask in handle.workspace.approvals.permissions),
        tuple(msgspec.to_builtins(batch) for batch in handle.workspace.approvals.questions),
        await _jobs(request, session),
    )


async def _jobs(request: Request, session: SessionId | None) -> tuple[Any, ...]:
    answer = await request.fetch_from_owner("list_jobs")
    if answer is not None and answer.status == 200:
        jobs = msgspec.json.decode(answer.body, type=tuple[JobInfo, ...])
        return tuple(msgspec.to_builtins(job) for job in jobs if session in (None, job.session_id))
    return tuple(msgspec.to_builtins(job) for job in request.services.jobs.list(session))


def _with_open_parts(handle: WorkspaceHandle, messages: tuple[Message, ...]) -> list[Message]:
    growing = handle.workspace.open_parts()
    return [grow(message, [part for part in growing if part.message_id == message.id]) for message in messages]


async def _body(request: Request, handle: WorkspaceHandle) -> WorkspaceBody:
    """Return a workspace, with the settings and extensions of its owner if another server owns it."""
    answer = await request.fetch_from_owner("get_workspace", handle=handle)
    if answer is None or answer.status != 200:
        return await _own_body(request, handle)
    body = msgspec.structs.replace(
        msgspec.json.decode(answer.body, type=WorkspaceBody),
        debug=handle.debug,
        data_dir=str(handle.data_dir),
        version=__version__,
        channels=handle.channels,
    )
    return msgspec.structs.replace(body, env=handle.env) if request.over_socket else body


async def _own_body(request: Request, handle: WorkspaceHandle) -> WorkspaceBody:
    skills = handle.services.extensions.skills
    await skills.wait_first_scan()
    body = WorkspaceBody(
        handle.id,
        handle.path,
        yolo=handle.yolo,
        debug=handle.debug,
        data_dir=str(handle.data_dir),
        version=__version__,
        config=await config_of(handle),
        channels=handle.channels,
        skills=tuple(msgspec.to_builtins(state) for state in skills.states()),
        problems=tuple(str(item) for item in problems_of(handle) if item.severity == "error")[:_MAX_PROBLEMS],
    )
    # The environment may contain secrets: it is returned over the socket only.
    return msgspec.structs.replace(body, env=handle.env) if request.over_socket else body
