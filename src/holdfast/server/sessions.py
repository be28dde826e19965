"""Sessions, their messages, the files they changed and read."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.domain.errors import BadRequest, ToolError, UnknownSession
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.growth import grow
from holdfast.domain.ids import SessionId
from holdfast.domain.ledger import MarkRead
from holdfast.domain.messages import Message, encodable
from holdfast.domain.sessions import Session
from holdfast.server.calls import Call
from holdfast.server.desk import Desk
from holdfast.server.hub import Hub
from holdfast.server.presence import attached
from holdfast.workspace.files import locate

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
]

_OUTPUT = re.compile(r"/output/([0-9a-f]{8}-\d+-(?:out|err)\.txt)")
_NEVER = "0001-01-01T00:00:00Z"


def dressed(hub: Hub, desk: Desk, session: Session) -> Session:
    """A session with what only the server knows of it now."""
    return msgspec.structs.replace(
        session,
        is_busy=desk.workspace.engine.is_busy(session.id),
        attached_clients=attached(hub.presence, desk.id, session.id),
    )


async def known(call: Call, session_id: SessionId | None = None) -> Session:
    """The session that is meant: the one in the path, if no other is named."""
    ledger = call.desk.workspace.engine.kit.ledger
    session = await ledger.session(call.desk.id, call.session if session_id is None else session_id)
    if session is None:
        raise UnknownSession
    return session


async def list_sessions(call: Call) -> list[Session]:
    sessions = await call.desk.workspace.engine.kit.ledger.sessions(call.desk.id)
    return [dressed(call.hub, call.desk, session) for session in sessions]


async def create_session(call: Call) -> Session:
    return await call.desk.workspace.sessions.create(_title(call.body.title))


async def get_session(call: Call) -> Session:
    return dressed(call.hub, call.desk, await known(call))


async def put_session(call: Call) -> Session:
    """Only the title changes, and only if there is one: counters and pointers are nobody's to set, and the to-do list
    that a screen sends along may be older than the model's.
    """
    if call.body.title is None:
        return dressed(call.hub, call.desk, await known(call))
    session = await call.desk.workspace.sessions.rename(call.session, _title(call.body.title))
    return dressed(call.hub, call.desk, session)


async def delete_session(call: Call) -> None:
    """Nothing of its content is left when this is answered: in the database, in files, or in memory."""
    desk = call.desk

    async def clean_up(sessions: Sequence[SessionId]) -> None:
        for session in sessions:
            await desk.outfit.jobs.end_session(session)
            outputs = await _outputs_named_in(desk, session)
            await asyncio.to_thread(desk.outfit.processes.remove_output, session, outputs)
        desk.workspace.asks.forget_sessions(sessions)
        desk.joiner.clear()

    await desk.workspace.sessions.delete(call.session, clean_up)


async def _outputs_named_in(desk: Desk, session: SessionId) -> tuple[str, ...]:
    """Output files that earlier versions have kept without an owner."""
    messages = await desk.workspace.engine.kit.ledger.messages(desk.id, session)
    body = msgspec.json.encode(messages).decode()
    return tuple(_OUTPUT.findall(body))


async def list_messages(call: Call) -> list[Message]:
    """With all that was streamed so far, also what is not flushed yet."""
    engine = call.desk.workspace.engine
    messages = await engine.kit.ledger.messages(call.desk.id, call.session)
    growing = engine.open_parts()
    return [grow(message, [part for part in growing if part.message_id == message.id]) for message in messages]


async def list_user_messages(call: Call) -> list[Message]:
    return [message for message in reversed(await list_messages(call)) if message.role == "user"]


async def list_all_user_messages(call: Call) -> list[Message]:
    """Newest first, whichever session they are of: what a person goes back through."""
    ledger = call.desk.workspace.engine.kit.ledger
    found: list[Message] = []
    for session in await ledger.sessions(call.desk.id):
        messages = await ledger.messages(call.desk.id, session.id)
        found += [message for message in reversed(messages) if message.role == "user"]
    # Of one second, those of a session stay in their order.
    return sorted(found, key=lambda message: message.created_at, reverse=True)


async def list_history(call: Call) -> list[FileVersion]:
    versions = await call.desk.workspace.engine.kit.ledger.files(call.desk.id, call.session)
    return sorted(versions, key=lambda item: (item.version, item.created_at))


async def list_read_files(call: Call) -> list[str]:
    marks = await call.desk.workspace.engine.kit.ledger.read_marks(call.desk.id, call.session)
    return [mark.path for mark in marks]


async def mark_read(call: Call) -> None:
    """Under the name that tools know the file by: otherwise they would not know that it was read."""
    session, path = await known(call, call.body.session_id), await _real_path(call, call.body.path)
    engine = call.desk.workspace.engine
    mark = ReadMark(session.id, path, engine.outside.clock.now_ms())
    await engine.recorder.put(MarkRead(mark), sync=False)


async def last_read(call: Call) -> str:
    ledger = call.desk.workspace.engine.kit.ledger
    path = await _real_path(call, call.query["path"])
    mark = await ledger.read_mark(call.desk.id, SessionId(call.query["session_id"]), path)
    if mark is None:
        return _NEVER
    return datetime.fromtimestamp(mark.read_at / 1000, UTC).isoformat().replace("+00:00", "Z")


async def _real_path(call: Call, given: str) -> str:
    try:
        return (await asyncio.to_thread(locate, call.desk.path, given)).path
    except ToolError as error:
        raise BadRequest(str(error)) from None


def _title(text: str) -> str:
    if encodable(text) != text:
        raise BadRequest("The title is not valid Unicode text.")
    return " ".join(text.split()) or "New session"
