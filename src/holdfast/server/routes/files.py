"""Handlers for files: those that a prompt can attach, and the undo of changes."""

import asyncio
import os
from collections.abc import Sequence

import msgspec

from holdfast.domain.errors import BadRequest, Conflict, NotFound, SessionBusy, ToolError, UnknownRun
from holdfast.domain.files import FileVersion, UndoReport, UndoRequest
from holdfast.domain.ids import SessionId
from holdfast.domain.runs import Attachment
from holdfast.domain.store_operations import Operation, Receipt
from holdfast.protocol.attachment_types import LARGEST_FILE, kind_of
from holdfast.protocol.bodies import FileList
from holdfast.protocol.error_status import TooLarge
from holdfast.server.http.request import Request
from holdfast.workspace.files.safe_open import locate, read_whole_file, status_of
from holdfast.workspace.files.undo import last_change, recorded_path, undo
from holdfast.workspace.search.search import Searcher, SearchScope

__all__ = ["list_files", "read_file", "undo_changes"]


_SECONDS = 5.0
_MAX_FILES = 20_000
_MAX_SESSIONS = 50


class NoSuchFile(NotFound):
    """There is no such file in the workspace, or no model can read it."""


class FileTooLarge(TooLarge):
    """The file is larger than 5 MB and cannot be attached: write its path in the prompt, and the model reads it."""


async def list_files(request: Request) -> FileList:
    """Return the files that a search would cover, without ignored ones."""
    root = await asyncio.to_thread(os.path.realpath, request.workspace.path)
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        found = await Searcher(git=request.services.git).files(
            SearchScope(root, root, environment, _SECONDS, _MAX_FILES), "**"
        )
    except (OSError, ToolError):
        raise NotFound("The directory of the workspace cannot be read.") from None
    return FileList(found.paths, found.is_truncated or found.is_timed_out)


async def read_file(request: Request) -> Attachment:
    """Return a file as an attachment."""
    given = request.query["path"]
    content = await asyncio.to_thread(_content, request.workspace.path, given)
    kind = kind_of(given, content)
    if kind is None:
        raise NoSuchFile
    return Attachment(content, given, os.path.basename(given), kind)


def _content(root: str, given: str) -> bytes:
    try:
        place = locate(root, given)
        status = status_of(place) if place.is_inside else None
        if status is None:
            raise NoSuchFile
        if status.st_size > LARGEST_FILE:
            raise FileTooLarge
        return read_whole_file(place, LARGEST_FILE).data
    except ToolError:
        raise NoSuchFile from None


async def undo_changes(request: Request) -> UndoReport:
    """Revert changes of a session or a run, or report what would be reverted."""
    ask: UndoRequest = request.body
    workspace = request.owned
    session, versions = await _history(request, ask)
    if not ask.dry_run and workspace.is_busy(session):
        raise SessionBusy("The session is busy: its run may change these files. Wait for its end, or cancel it.")

    async def record(operations: tuple[Operation, ...]) -> None:
        answer = await workspace.recorder.put(*operations)
        if not isinstance(answer, Receipt):
            raise Conflict(f"The undo could not be recorded: {answer.reason}.")

    return await undo(
        msgspec.structs.replace(ask, session_id=session),
        versions,
        root=workspace.record.path,
        record=record,
        now_ms=workspace.clock.now_ms,
        new_id=workspace.new_id,
    )


async def _history(request: Request, ask: UndoRequest) -> tuple[SessionId, Sequence[FileVersion]]:
    """Return the requested session and its file changes."""
    ledger = request.ledger
    if ask.session_id:
        if await ledger.session(request.workspace.id, ask.session_id) is None:
            raise NotFound("There is no such session: see the list of sessions.")
        return ask.session_id, await ledger.files(request.workspace.id, ask.session_id)
    if ask.run_id:
        record = await ledger.run(request.workspace.id, ask.run_id)
        if record is None:
            raise UnknownRun
        return record.run.session_id, await ledger.files(request.workspace.id, record.run.session_id)
    return await _latest(request, ask)


async def _latest(request: Request, ask: UndoRequest) -> tuple[SessionId, Sequence[FileVersion]]:
    """Return the session with the most recent change, of the given file if any, that has not been reverted."""
    ledger = request.ledger
    best: tuple[int, SessionId, Sequence[FileVersion]] = (-1, SessionId(""), ())
    for session in list(await ledger.sessions(request.workspace.id))[:_MAX_SESSIONS]:
        versions = await ledger.files(request.workspace.id, session.id)
        path = recorded_path(ask.path, versions, request.workspace.record.path) if ask.path else ""
        changed = last_change(versions, path)
        if changed is not None and changed.updated_at > best[0]:
            best = (changed.updated_at, session.id, versions)
    if not best[1]:
        raise BadRequest("There is nothing to undo: no session has changed this, or all changes are undone.")
    return best[1], best[2]
