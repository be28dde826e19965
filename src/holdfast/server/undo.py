"""Handler that reverts the file changes of a session."""

from collections.abc import Sequence

import msgspec

from holdfast.domain.errors import BadRequest, Conflict, NotFound, SessionBusy, UnknownRun
from holdfast.domain.files import FileVersion, UndoAsk, UndoReport
from holdfast.domain.ids import SessionId
from holdfast.domain.ledger import Operation, Receipt
from holdfast.server.calls import Call
from holdfast.workspace.history import last_change
from holdfast.workspace.undo import path_in, undo

__all__ = ["undo_changes"]

_MOST_SESSIONS = 50


async def undo_changes(call: Call) -> UndoReport:
    """Revert changes of a session or a run, or report what would be reverted."""
    ask: UndoAsk = call.body
    workspace = call.desk.workspace
    engine = workspace.engine
    session, versions = await _history(call, ask)
    if not ask.dry_run and engine.is_busy(session):
        raise SessionBusy("The session is busy: its run may change these files. Wait for its end, or cancel it.")

    async def record(operations: tuple[Operation, ...]) -> None:
        answer = await engine.recorder.put(*operations)
        if not isinstance(answer, Receipt):
            raise Conflict(f"The undo could not be recorded: {answer.reason}.")

    return await undo(
        msgspec.structs.replace(ask, session_id=session),
        versions,
        root=workspace.record.path,
        record=record,
        now_ms=engine.outside.clock.now_ms,
        new_id=engine.outside.new_id,
    )


async def _history(call: Call, ask: UndoAsk) -> tuple[SessionId, Sequence[FileVersion]]:
    """Return the requested session and its file changes."""
    ledger = call.desk.workspace.engine.kit.ledger
    if ask.session_id:
        if await ledger.session(call.desk.id, ask.session_id) is None:
            raise NotFound("There is no such session: look at the list for one.")
        return ask.session_id, await ledger.files(call.desk.id, ask.session_id)
    if ask.run_id:
        record = await ledger.run(call.desk.id, ask.run_id)
        if record is None:
            raise UnknownRun
        return record.run.session_id, await ledger.files(call.desk.id, record.run.session_id)
    return await _latest(call, ask)


async def _latest(call: Call, ask: UndoAsk) -> tuple[SessionId, Sequence[FileVersion]]:
    """Return the session with the most recent change, of the given file if any, that has not been reverted."""
    ledger = call.desk.workspace.engine.kit.ledger
    best: tuple[int, SessionId, Sequence[FileVersion]] = (-1, SessionId(""), ())
    for session in list(await ledger.sessions(call.desk.id))[:_MOST_SESSIONS]:
        versions = await ledger.files(call.desk.id, session.id)
        path = path_in(ask.path, versions, call.desk.workspace.record.path) if ask.path else ""
        changed = last_change(versions, path)
        if changed is not None and changed.updated_at > best[0]:
            best = (changed.updated_at, session.id, versions)
    if not best[1]:
        raise BadRequest("There is nothing to take back here: no session has changed that, or all was taken back.")
    return best[1], best[2]
