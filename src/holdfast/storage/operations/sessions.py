"""Sessions: created, changed, deleted; and their file versions and read marks."""

from typing import assert_never

import msgspec

from holdfast.domain.event_erasure import redact_session
from holdfast.domain.events import Change, FileEvent, SessionEvent
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session, SessionPatch, apply_patch
from holdfast.domain.store_operations import AddFile, CreateSession, DeleteSession, MarkRead, PatchSession
from holdfast.storage.operations.write_context import Context, Refused, Tables

__all__ = ["perform"]


def perform(operation: CreateSession | PatchSession | DeleteSession | AddFile | MarkRead, context: Context) -> None:
    """Apply the operation. A session with runs that have not ended cannot be deleted."""
    match operation:
        case CreateSession(session=session):
            _create(session, context)
        case PatchSession(patch=patch):
            _patch(patch, context)
        case DeleteSession(session_id=session_id):
            _delete(session_id, context)
        case AddFile(file=file):
            _add_file(file, context)
        case MarkRead(mark=mark):
            if context.tables.sessions.get(mark.session_id) is not None:
                context.tables.files.set_read_mark(mark)
        case _:
            assert_never(operation)


def _create(session: Session, context: Context) -> None:
    if context.tables.sessions.get(session.id) is not None:
        raise Refused("session_exists")
    context.tables.sessions.put(session)
    context.add_event(SessionEvent(Change("created", session)))


def _patch(patch: SessionPatch, context: Context) -> None:
    session = apply_patch(_require_session(patch.session_id, context), patch)
    context.tables.sessions.put(session)
    context.add_event(SessionEvent(Change("updated", session)))


def _delete(session_id: SessionId, context: Context) -> None:
    """Delete a session and its descendants, children first, each with an event of its own. The content of their earlier
    events is removed from the log too.
    """
    family = [_require_session(member, context) for member in _family(session_id, context.tables)]
    if any(context.tables.runs.open_in(member.id) for member in family):
        raise Refused("busy")
    context.tables.log.remove_sessions({member.id for member in family}, context.next_number - 1)
    for member in reversed(family):
        context.tables.sessions.delete(member.id)
        context.add_event(SessionEvent(Change("deleted", redact_session(member))))


def _family(session_id: SessionId, tables: Tables) -> list[SessionId]:
    """Return the session and its descendants, parents before children."""
    family = [session_id]
    for member in family:
        family.extend(child for child in tables.sessions.children(member) if child not in family)
    return family


def _add_file(file: FileVersion, context: Context) -> None:
    _require_session(file.session_id, context)
    files = context.tables.files
    latest = files.latest(file.session_id, file.path)
    if latest is not None and latest.is_same_state(file):
        return
    numbered = msgspec.structs.replace(file, version=0 if latest is None else latest.version + 1)
    files.add(numbered)
    context.add_event(FileEvent(Change("created", numbered)))


def _require_session(session_id: SessionId, context: Context) -> Session:
    session = context.tables.sessions.get(session_id)
    if session is None:
        raise Refused("unknown_session")
    return session
