"""Handlers for sessions, their messages, and the files they changed and read."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.domain.deleted_sessions import about
from holdfast.domain.errors import BadRequest, ToolError, UnknownRun, UnknownSession
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.ledger import MarkRead
from holdfast.domain.message_delta import grow
from holdfast.domain.messages import Message, encodable
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import LoggedEvent, LogPage
from holdfast.server.http.request import Request
from holdfast.server.presence import attached
from holdfast.server.workspace_manager import WorkspaceHandle, WorkspaceManager
from holdfast.workspace.files.open_files import locate

__all__ = [
    "create_session",
    "delete_session",
    "dressed",
    "get_session",
    "last_read",
    "list_all_user_messages",
    "list_history",
    "list_messages",
    "list_read_files",
    "list_sessions",
    "list_user_messages",
    "mark_read",
    "put_session",
    "read_log",
]


_OUTPUT = re.compile(r"/output/([0-9a-f]{8}-\d+-(?:out|err)\.txt)")
_NEVER = "0001-01-01T00:00:00Z"


def dressed(hub: WorkspaceManager, desk: WorkspaceHandle, session: Session) -> Session:
    """Add the live state to a stored session: whether it is busy, and the number of viewing clients."""
    return msgspec.structs.replace(
        session,
        is_busy=desk.workspace.engine.is_busy(session.id),
        attached_clients=attached(hub.presence, desk.id, session.id),
    )


async def known(call: Request, session_id: SessionId | None = None) -> Session:
    """Return the given session, by default that of the path. Raises `UnknownSession`."""
    ledger = call.desk.workspace.engine.kit.ledger
    session = await ledger.session(call.desk.id, call.session if session_id is None else session_id)
    if session is None:
        raise UnknownSession
    return session


async def list_sessions(call: Request) -> list[Session]:
    """Return the sessions of a workspace."""
    sessions = await call.desk.workspace.engine.kit.ledger.sessions(call.desk.id)
    return [dressed(call.hub, call.desk, session) for session in sessions]


async def create_session(call: Request) -> Session:
    """Create a session."""
    return await call.desk.workspace.sessions.create(_title(call.body.title))


async def get_session(call: Request) -> Session:
    """Return a session."""
    return dressed(call.hub, call.desk, await known(call))


async def put_session(call: Request) -> Session:
    """Rename a session. Only the title can be changed: other fields belong to the server, and the to-do list that a
    client sends may be older than the model's.
    """
    if call.body.title is None:
        return dressed(call.hub, call.desk, await known(call))
    session = await call.desk.workspace.sessions.rename(call.session, _title(call.body.title))
    return dressed(call.hub, call.desk, session)


async def delete_session(call: Request) -> None:
    """Delete a session. Its contents are removed from the database, from files and from memory before the response."""
    desk = call.desk

    async def clean_up(sessions: Sequence[SessionId]) -> None:
        for session in sessions:
            await desk.outfit.jobs.end_session(session)
            outputs = await _outputs_named_in(desk, session)
            await asyncio.to_thread(desk.outfit.processes.remove_output, session, outputs)
        desk.workspace.asks.forget_sessions(sessions)
        desk.joiner.clear()

    await desk.workspace.sessions.delete(call.session, clean_up)


async def _outputs_named_in(desk: WorkspaceHandle, session: SessionId) -> tuple[str, ...]:
    """Return output files that earlier versions stored without an owner."""
    messages = await desk.workspace.engine.kit.ledger.messages(desk.id, session)
    body = msgspec.json.encode(messages).decode()
    return tuple(_OUTPUT.findall(body))


async def list_messages(call: Request) -> list[Message]:
    """Return the messages of a session, including streamed text that is not flushed yet."""
    engine = call.desk.workspace.engine
    messages = await engine.kit.ledger.messages(call.desk.id, call.session)
    growing = engine.open_parts()
    return [grow(message, [part for part in growing if part.message_id == message.id]) for message in messages]


async def list_user_messages(call: Request) -> list[Message]:
    """Return the user's messages of a session, newest first."""
    return [message for message in reversed(await list_messages(call)) if message.role == "user"]


async def list_all_user_messages(call: Request) -> list[Message]:
    """Return the user's messages of all sessions, newest first, for the prompt history."""
    ledger = call.desk.workspace.engine.kit.ledger
    found: list[Message] = []
    for session in await ledger.sessions(call.desk.id):
        messages = await ledger.messages(call.desk.id, session.id)
        found += [message for message in reversed(messages) if message.role == "user"]
    # The sort is stable: messages of a session with equal times keep their order.
    return sorted(found, key=lambda message: message.created_at, reverse=True)


async def list_history(call: Request) -> list[FileVersion]:
    """Return the versions of files that a session changed."""
    versions = await call.desk.workspace.engine.kit.ledger.files(call.desk.id, call.session)
    return sorted(versions, key=lambda item: (item.version, item.created_at))


async def list_read_files(call: Request) -> list[str]:
    """Return the paths that a session has read."""
    marks = await call.desk.workspace.engine.kit.ledger.read_marks(call.desk.id, call.session)
    return [mark.path for mark in marks]


async def mark_read(call: Request) -> None:
    """Mark a file as read, under its real path, which is the one that tools use."""
    session, path = await known(call, call.body.session_id), await _real_path(call, call.body.path)
    engine = call.desk.workspace.engine
    mark = ReadMark(session.id, path, engine.outside.clock.now_ms())
    await engine.recorder.put(MarkRead(mark), sync=False)


async def last_read(call: Request) -> str:
    """Return when a session last read a file."""
    ledger = call.desk.workspace.engine.kit.ledger
    path = await _real_path(call, call.query["path"])
    mark = await ledger.read_mark(call.desk.id, SessionId(call.query["session_id"]), path)
    if mark is None:
        return _NEVER
    return datetime.fromtimestamp(mark.read_at / 1000, UTC).isoformat().replace("+00:00", "Z")


async def _real_path(call: Request, given: str) -> str:
    try:
        return (await asyncio.to_thread(locate, call.desk.path, given)).path
    except ToolError as error:
        raise BadRequest(str(error)) from None


def _title(text: str) -> str:
    if encodable(text) != text:
        raise BadRequest("The title is not valid Unicode text.")
    return " ".join(text.split()) or "New session"


# Handler for stored events with their times, for timelines and replays.

_MOST = 1_000
_MOST_LOOKED_AT = 5_000
_MOST_BYTES = 4 * 1024 * 1024
"""A response ends after this many bytes; the caller requests the next page."""


class _Plain(msgspec.Struct, frozen=True):
    type: str
    payload: msgspec.Raw


async def read_log(call: Request) -> LogPage:
    """Return stored events, oldest first; for a run, those of its session from its acceptance to its end."""
    limit, session, run = call.number("limit", 500), call.query.get("session_id", ""), call.query.get("run_id", "")
    if not 0 < limit <= _MOST:
        raise BadRequest(f"limit is from 1 to {_MOST}.")
    ledger, cursor = call.desk.workspace.engine.kit.ledger, call.number("after", 0)
    if run:
        asked = await _run(call, run)
        session, cursor = asked.session_id, max(cursor, asked.number - 1)
    rows = await ledger.dated_events(call.desk.id, cursor, _MOST_LOOKED_AT)
    found: list[LoggedEvent] = []
    size = 0
    for number, at, body in rows:
        event = about(body)
        if session and event.session != session:
            cursor = number
            continue
        if len(found) == limit or size > _MOST_BYTES:
            return LogPage(tuple(found), cursor, more=True)
        plain = msgspec.json.decode(body, type=_Plain)
        found.append(LoggedEvent(number, at, plain.type, plain.payload))
        cursor, size = number, size + len(body)
        if run and event.type == "run_complete" and event.run == run:
            return LogPage(tuple(found), cursor, more=False)
    return LogPage(tuple(found), cursor, more=len(rows) == _MOST_LOOKED_AT)


async def _run(call: Request, run: str) -> Run:
    record = await call.desk.workspace.engine.kit.ledger.run(call.desk.id, RunId(run))
    if record is None:
        raise UnknownRun
    return record.run
