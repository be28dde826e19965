"""Handlers for sessions, their messages, the files they changed and read, and their stored events."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.domain.errors import BadRequest, ToolError, UnknownRun, UnknownSession
from holdfast.domain.event_erasure import event_subject
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Message, replace_surrogates
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import MarkRead
from holdfast.protocol.bodies import EventLogPage, LoggedEvent
from holdfast.server.http.request import Request
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import WorkspaceManager
from holdfast.workspace.files.safe_open import locate

__all__ = [
    "create_session",
    "delete_session",
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
    "with_live_state",
]


_OUTPUT = re.compile(r"/output/([0-9a-f]{8}-\d+-(?:out|err)\.txt)")
_ZERO_TIME = "0001-01-01T00:00:00Z"
_MAX_EVENTS = 1_000
_MAX_EXAMINED = 5_000
_MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A response ends after this many bytes; the caller requests the next page."""


def with_live_state(manager: WorkspaceManager, handle: WorkspaceHandle, session: Session) -> Session:
    """Add the live state to a stored session: whether it is busy, and the number of viewing clients."""
    return msgspec.structs.replace(
        session,
        is_busy=handle.workspace.is_busy(session.id),
        attached_clients=manager.viewers(handle).get(session.id, 0),
    )


async def known(request: Request, session_id: SessionId | None = None) -> Session:
    """Return the given session, by default that of the path. Raises `UnknownSession`."""
    ledger = request.ledger
    session = await ledger.session(request.workspace.id, request.session if session_id is None else session_id)
    if session is None:
        raise UnknownSession
    return session


async def list_sessions(request: Request) -> list[Session]:
    """Return the sessions of a workspace."""
    sessions = await request.ledger.sessions(request.workspace.id)
    return [with_live_state(request.manager, request.handle, session) for session in sessions]


async def create_session(request: Request) -> Session:
    """Create a session."""
    return await request.workspace.sessions.create(_title(request.body.title))


async def get_session(request: Request) -> Session:
    """Return a session."""
    return with_live_state(request.manager, request.handle, await known(request))


async def put_session(request: Request) -> Session:
    """Rename a session. Only the title can be changed: other fields belong to the server, and the to-do list that a
    client sends may be older than the model's.
    """
    if request.body.title is None:
        return with_live_state(request.manager, request.handle, await known(request))
    session = await request.workspace.sessions.rename(request.session, _title(request.body.title))
    return with_live_state(request.manager, request.handle, session)


async def delete_session(request: Request) -> None:
    """Delete a session. Its contents are removed from the database, from files and from memory before the response."""
    handle = request.handle
    if not handle.is_local:
        # The owner removes what it has outside of the store when it reads the deletion in the log.
        await request.remote.sessions.delete(request.session)
        handle.frame_cache.clear()
        return

    async def clean_up(sessions: Sequence[SessionId]) -> None:
        for session in sessions:
            await handle.services.jobs.end_session(session)
            outputs = await _outputs_named_in(handle, session)
            await asyncio.to_thread(handle.services.processes.remove_output, session, outputs)
        handle.owned.approvals.forget_sessions(sessions)
        handle.frame_cache.clear()

    await handle.owned.sessions.delete(request.session, clean_up)


async def _outputs_named_in(handle: WorkspaceHandle, session: SessionId) -> tuple[str, ...]:
    """Return output files that earlier versions stored without an owner."""
    messages = await handle.workspace.ledger.messages(handle.id, session)
    body = msgspec.json.encode(messages).decode()
    return tuple(_OUTPUT.findall(body))


async def list_messages(request: Request) -> list[Message]:
    """Return the messages of a session, including streamed text that is not flushed yet."""
    messages = await request.ledger.messages(request.workspace.id, request.session)
    growing = request.workspace.open_parts()
    return [grow(message, [part for part in growing if part.message_id == message.id]) for message in messages]


async def list_user_messages(request: Request) -> list[Message]:
    """Return the user's messages of a session, newest first."""
    return [message for message in reversed(await list_messages(request)) if message.role == "user"]


async def list_all_user_messages(request: Request) -> list[Message]:
    """Return the user's messages of all sessions, newest first, for the prompt history."""
    ledger = request.ledger
    found: list[Message] = []
    for session in await ledger.sessions(request.workspace.id):
        messages = await ledger.messages(request.workspace.id, session.id)
        found += [message for message in reversed(messages) if message.role == "user"]
    # The sort is stable: messages of a session with equal times keep their order.
    return sorted(found, key=lambda message: message.created_at, reverse=True)


async def list_history(request: Request) -> list[FileVersion]:
    """Return the versions of files that a session changed."""
    versions = await request.ledger.files(request.workspace.id, request.session)
    return sorted(versions, key=lambda item: (item.version, item.created_at))


async def list_read_files(request: Request) -> list[str]:
    """Return the paths that a session has read."""
    marks = await request.ledger.read_marks(request.workspace.id, request.session)
    return [mark.path for mark in marks]


async def mark_read(request: Request) -> None:
    """Mark a file as read, under its real path, which is the one that tools use."""
    session, path = await known(request, request.body.session_id), await _real_path(request, request.body.path)
    mark = ReadMark(session.id, path, request.workspace.clock.now_ms())
    await request.owned.recorder.put(MarkRead(mark), sync=False)


async def last_read(request: Request) -> str:
    """Return when a session last read a file."""
    ledger = request.ledger
    path = await _real_path(request, request.query["path"])
    mark = await ledger.read_mark(request.workspace.id, SessionId(request.query["session_id"]), path)
    if mark is None:
        return _ZERO_TIME
    return datetime.fromtimestamp(mark.read_at / 1000, UTC).isoformat().replace("+00:00", "Z")


async def _real_path(request: Request, given: str) -> str:
    try:
        return (await asyncio.to_thread(locate, request.workspace.path, given)).path
    except ToolError as error:
        raise BadRequest(str(error)) from None


def _title(text: str) -> str:
    if replace_surrogates(text) != text:
        raise BadRequest("The title is not valid Unicode text.")
    return " ".join(text.split()) or "New session"


class _Plain(msgspec.Struct, frozen=True):
    type: str
    payload: msgspec.Raw


async def read_log(request: Request) -> EventLogPage:
    """Return stored events, oldest first; for a run, those of its session from its acceptance to its end."""
    limit, session, run = (
        request.number("limit", 500),
        request.query.get("session_id", ""),
        request.query.get("run_id", ""),
    )
    if not 0 < limit <= _MAX_EVENTS:
        raise BadRequest(f"limit is from 1 to {_MAX_EVENTS}.")
    ledger, cursor = request.ledger, request.number("after", 0)
    if run:
        asked = await _run(request, run)
        session, cursor = asked.session_id, max(cursor, asked.number - 1)
    rows = await ledger.dated_events(request.workspace.id, cursor, _MAX_EXAMINED)
    found: list[LoggedEvent] = []
    size = 0
    for number, at, body in rows:
        event = event_subject(body)
        if session and event.session != session:
            cursor = number
            continue
        if len(found) == limit or size > _MAX_PAGE_BYTES:
            return EventLogPage(tuple(found), cursor, more=True)
        plain = msgspec.json.decode(body, type=_Plain)
        found.append(LoggedEvent(number, at, plain.type, plain.payload))
        cursor, size = number, size + len(body)
        if run and event.type == "run_complete" and event.run == run:
            return EventLogPage(tuple(found), cursor, more=False)
    return EventLogPage(tuple(found), cursor, more=len(rows) == _MAX_EXAMINED)


async def _run(request: Request, run: str) -> Run:
    record = await request.ledger.run(request.workspace.id, RunId(run))
    if record is None:
        raise UnknownRun
    return record.run
