"""Workspaces: opening and leaving them, what a screen needs to begin."""

import asyncio
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.domain.growth import grow
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody
from holdfast.server.calls import Call
from holdfast.server.configuration import config_of, problems_of
from holdfast.server.desk import Desk
from holdfast.server.hub import client_id_of
from holdfast.server.presence import Release, View
from holdfast.server.sessions import dressed

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


async def list_workspaces(call: Call) -> list[WorkspaceBody]:
    return [await _body(call, desk) for desk in call.hub.desks]


async def create_workspace(call: Call) -> WorkspaceBody:
    asked = call.body
    if call.page is not None and not asked.env:
        # A browser has no environment: the page's is that of whoever asked for its link.
        asked = msgspec.structs.replace(asked, env=call.page.env)
    # Who goes away while a workspace is being opened does not take it along.
    return await _body(call, await asyncio.shield(call.hub.create(asked)))


async def get_workspace(call: Call) -> WorkspaceBody:
    return await _body(call, call.desk)


async def leave_workspace(call: Call) -> None:
    """Leaving what is not there is fine."""
    call.hub.tell(Release(WorkspaceId(call.params["id"]), client_id_of(call.query["client_id"])))


async def set_current_session(call: Call) -> None:
    call.hub.tell(View(call.desk.id, client_id_of(call.query["client_id"]), call.body.session_id))


async def get_config(call: Call) -> dict[str, Any]:
    return await config_of(call.desk)


async def list_providers(call: Call) -> list[dict[str, Any]]:
    choice = call.desk.outfit.choice
    if choice is not None:
        return [msgspec.to_builtins(view) for view in await choice.providers_view()]
    config = await config_of(call.desk)
    return [entry for entry in config["providers"].values() if isinstance(entry, dict)]


async def snapshot(call: Call) -> SnapshotBody:
    """One read of the store; the text streamed since its last flush is added from what the engine holds."""
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
        # Read after the store: what was asked or answered since comes again on the stream, and changes nothing.
        tuple(msgspec.to_builtins(ask) for ask in desk.workspace.asks.permissions),
        tuple(msgspec.to_builtins(batch) for batch in desk.workspace.asks.questions),
        tuple(msgspec.to_builtins(job) for job in desk.outfit.jobs.list(session)),
    )


def _with_open_parts(desk: Desk, messages: tuple[Message, ...]) -> list[Message]:
    growing = desk.workspace.engine.open_parts()
    return [grow(message, [part for part in growing if part.message_id == message.id]) for message in messages]


async def _body(call: Call, desk: Desk) -> WorkspaceBody:
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
    # A client's environment may hold its secrets: it goes back over the socket only.
    return msgspec.structs.replace(body, env=desk.env) if call.over_socket else body
