"""The rows that were loaded for a batch, as `operations.Tables`, and the changes that the batch made to them. Pure.

Each class of rows implements one of the row protocols of `operations`. Rows are replaced, never changed, and a journal
undoes the changes of a write that is refused. `is_stored` distinguishes rows of the database from those that the batch
added.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.event_erasure import event_subject, redact_body, redact_event, session_of
from holdfast.domain.events import MessageDelta, MessagePart, RunCompleteEvent, encode_event
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Entry, RunRecord
from holdfast.storage.postgres.batch_keys import Keys, searchable
from holdfast.storage.undo_log import Journal, Table

__all__ = ["LoadedTables", "RunRow", "WorkspaceState", "decode_run", "decode_session", "decode_version"]

_run_decoder = msgspec.json.Decoder(Run)
_session_decoder = msgspec.json.Decoder(Session)
_message_decoder = msgspec.json.Decoder(Message)
_version_decoder = msgspec.json.Decoder(FileVersion)


def decode_run(body: bytes, prompt: bytes) -> Run:
    """Decode a run, whose prompt is stored apart."""
    run = _run_decoder.decode(body)
    return msgspec.structs.replace(run, prompt=prompt.decode()) if prompt else run


def decode_session(body: bytes) -> Session:
    """Decode a session."""
    return _session_decoder.decode(body)


def decode_version(body: bytes, content: bytes) -> FileVersion:
    """Decode a version of a file, whose content is stored apart."""
    return msgspec.structs.replace(_version_decoder.decode(body), content=content.decode())


class RunRow(msgspec.Struct, frozen=True):
    """A run with its rank. `record` is complete for a run that the batch added."""

    run: Run
    rank: int
    is_stored: bool
    record: RunRecord | None = None


class SessionRow(msgspec.Struct, frozen=True):
    """A session with its place in the order of creation."""

    session: Session
    ord: int
    is_stored: bool


class MessageRow(msgspec.Struct, frozen=True):
    """A message. Of a stored one only its session is known, unless it was loaded as a whole or put.

    `is_put` means that the message replaces the stored one, without the growth that is stored.
    """

    session: str
    is_stored: bool
    message: Message | None = None
    is_put: bool = False
    growth: tuple[tuple[MessageDelta | MessagePart, ...], ...] = ()


def _is_ahead(run: Run) -> bool:
    return run.outcome is None and run.state != "folded"


def _require(key: object, known: object) -> None:
    if not known:
        raise LookupError(f"The row {key!r} was not loaded for this batch.")


class LoadedRuns:
    """The runs that the batch names, and the open runs of the sessions that it needs."""

    def __init__(self, journal: Journal) -> None:
        self.rows: Table[RunId, RunRow] = Table(journal)
        self.deleted: Table[RunId, RunId] = Table(journal)
        """Stored runs that the batch deletes, except those of a deleted session."""
        self.reserved: Table[RunId, RunId] = Table(journal)
        """Ids that were given to runs of deleted sessions."""
        self.ahead: Table[SessionId, int] = Table(journal)
        """Runs that a new one of the session waits for."""
        self.known: set[str] = set()
        self.queues: set[str] = set()

    def is_taken(self, run_id: RunId) -> bool:
        """Return True if the id was given to a run."""
        return self._find(run_id) is not None or run_id in self.reserved

    def get(self, run_id: RunId) -> Run | None:
        """Return a run, or None."""
        row = self._find(run_id)
        return None if row is None else row.run

    def open_in(self, session_id: SessionId) -> list[Run]:
        """Return the runs of a session without an outcome, by rank."""
        _require(session_id, session_id in self.queues)
        rows = [row for row in self.rows if row.run.session_id == session_id and row.run.outcome is None]
        return [row.run for row in sorted(rows, key=lambda row: row.rank)]

    def add(self, record: RunRecord) -> None:
        """Insert a new run. Its rank is its number."""
        run = record.run
        self.rows.set(run.run_id, RunRow(run, run.number, is_stored=False, record=record))
        self._count(run, 1)

    def put(self, run: Run) -> None:
        """Replace a run."""
        row = self.rows[run.run_id]
        self.rows.set(run.run_id, msgspec.structs.replace(row, run=run))
        self._count(run, _is_ahead(run) - _is_ahead(row.run))

    def delete(self, run_id: RunId) -> None:
        """Delete a run."""
        row = self.rows[run_id]
        self.rows.drop(run_id)
        self._count(row.run, -_is_ahead(row.run))
        if row.is_stored:
            self.deleted.set(run_id, run_id)

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the runs of a session and reserve their ids."""
        for row in self.rows:
            if row.run.session_id == session_id:
                self.rows.drop(row.run.run_id)
                self.reserved.set(row.run.run_id, row.run.run_id)

    def rank(self, run_id: RunId) -> int:
        """Return the position of a run in queue order, or 0."""
        row = self._find(run_id)
        return 0 if row is None else row.rank

    def set_rank(self, run_id: RunId, rank: int) -> None:
        """Change the position of a run in queue order."""
        self.rows.set(run_id, msgspec.structs.replace(self.rows[run_id], rank=rank))

    def _find(self, run_id: RunId) -> RunRow | None:
        row = self.rows.get(run_id)
        _require(run_id, row is not None or run_id in self.known)
        return row

    def _count(self, run: Run, change: int) -> None:
        if change:
            self.ahead.set(run.session_id, (self.ahead.get(run.session_id) or 0) + change)


class LoadedMessages:
    """The messages that the batch names."""

    def __init__(self, journal: Journal) -> None:
        self.rows: Table[MessageId, MessageRow] = Table(journal)
        self.deleted: Table[MessageId, MessageId] = Table(journal)
        """Stored messages that the batch deletes, except those of a deleted session."""
        self.known: set[str] = set()

    def get(self, message_id: MessageId) -> Message | None:
        """Return the message as it was last put."""
        row = self._find(message_id)
        if row is None:
            return None
        _require(message_id, row.message is not None)
        return row.message

    def exists(self, message_id: MessageId) -> bool:
        """Return True if there is such a message."""
        return self._find(message_id) is not None

    def add(self, message: Message) -> None:
        """Insert a new message at the end of its session."""
        # A table keeps the order of insertion, which is that of the conversation.
        self.rows.drop(message.id)
        self.rows.set(message.id, MessageRow(message.session_id, is_stored=False, message=message))

    def put(self, message: Message) -> None:
        """Replace a message and delete its growth."""
        row = self.rows[message.id]
        self.rows.set(message.id, msgspec.structs.replace(row, message=message, is_put=True, growth=()))

    def add_growth(self, message_id: MessageId, growth: Sequence[MessageDelta | MessagePart]) -> None:
        """Append text or parts to a message."""
        row = self.rows[message_id]
        self.rows.set(message_id, msgspec.structs.replace(row, growth=(*row.growth, tuple(growth))))

    def delete(self, message_id: MessageId) -> None:
        """Delete a message with its growth."""
        if self.rows[message_id].is_stored:
            self.deleted.set(message_id, message_id)
        self.rows.drop(message_id)

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the messages of a session."""
        for message_id, row in self.rows.items():
            if row.session == session_id:
                self.rows.drop(message_id)

    def _find(self, message_id: MessageId) -> MessageRow | None:
        row = self.rows.get(message_id)
        _require(message_id, row is not None or message_id in self.known)
        return row


class LoadedFiles:
    """The last versions of the files that the batch names, and its new versions and read marks."""

    def __init__(self, journal: Journal) -> None:
        self.versions: Table[tuple[SessionId, str], FileVersion] = Table(journal)
        self.added: Table[tuple[SessionId, str, int], FileVersion] = Table(journal)
        self.marks: Table[tuple[SessionId, str], ReadMark] = Table(journal)
        self.known: set[tuple[str, str]] = set()

    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        """Return the last version of a file that the session has stored, or None."""
        _require((session_id, path), (session_id, path) in self.known)
        return self.versions.get((session_id, path))

    def add(self, file: FileVersion) -> None:
        """Insert a new version of a file."""
        self.versions.set((file.session_id, file.path), file)
        self.added.set((file.session_id, file.path, file.version), file)

    def set_read_mark(self, mark: ReadMark) -> None:
        """Insert or replace a read mark."""
        self.marks.set((mark.session_id, mark.path), mark)

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the versions and read marks of a session."""
        for file in self.versions:
            if file.session_id == session_id:
                self.versions.drop((session_id, file.path))
        for file in self.added:
            if file.session_id == session_id:
                self.added.drop((session_id, file.path, file.version))
        for mark in self.marks:
            if mark.session_id == session_id:
                self.marks.drop((session_id, mark.path))


class LoadedRequests:
    """The requests that the batch names."""

    def __init__(self, journal: Journal) -> None:
        self.rows: Table[str, SessionId] = Table(journal)
        self.known: set[str] = set()

    def add(self, request_id: str, session_id: SessionId) -> None:
        """Insert an open request."""
        self.rows.set(request_id, session_id)

    def remove(self, request_id: str) -> bool:
        """Delete a request. Return True if it was open."""
        _require(request_id, request_id in self.known)
        was_open = request_id in self.rows
        self.rows.drop(request_id)
        return was_open

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the requests of a session."""
        for request_id, session in self.rows.items():
            if session == session_id:
                self.rows.drop(request_id)


class LoadedSessions:
    """The sessions that the batch names, and the descendants of those that it may delete."""

    def __init__(
        self,
        journal: Journal,
        owned: Sequence[LoadedRuns | LoadedMessages | LoadedFiles | LoadedRequests],
    ) -> None:
        self.rows: Table[SessionId, SessionRow] = Table(journal)
        self.deleted: Table[SessionId, SessionId] = Table(journal)
        """Stored sessions that the batch deletes with everything that belongs to them."""
        self.known: set[str] = set()
        self._owned = owned
        self._last_ord = 1 << 62

    def get(self, session_id: SessionId) -> Session | None:
        """Return a session, or None."""
        row = self.rows.get(session_id)
        _require(session_id, row is not None or session_id in self.known)
        return None if row is None else row.session

    def put(self, session: Session) -> None:
        """Insert or replace a session."""
        row = self.rows.get(session.id)
        if row is not None:
            self.rows.set(session.id, msgspec.structs.replace(row, session=session))
            return
        self._last_ord += 1
        self.rows.set(session.id, SessionRow(session, self._last_ord, is_stored=False))

    def delete(self, session_id: SessionId) -> None:
        """Delete a session with everything that belongs to it, but not its children."""
        row = self.rows.get(session_id)
        if row is not None and row.is_stored:
            self.deleted.set(session_id, session_id)
        self.rows.drop(session_id)
        for table in self._owned:
            table.delete_session(session_id)

    def children(self, session_id: SessionId) -> list[SessionId]:
        """Return the ids of the sessions whose parent is this one, oldest first."""
        rows = sorted(self.rows, key=lambda row: row.ord)
        return [row.session.id for row in rows if row.session.parent_session_id == session_id]


class WorkspaceState(msgspec.Struct, frozen=True):
    """The row of a workspace at the moment of the load."""

    epoch: int
    newest: int
    revision: int
    ticket: int
    is_closed: bool


class LoadedLog:
    """The stored ends of runs in sessions that may be deleted. Other events of such a session are replaced unseen."""

    def __init__(self, journal: Journal) -> None:
        self.ends: list[tuple[int, bytes]] = []
        self.removed: Table[str, int] = Table(journal)
        """Sessions that the batch deletes, with the last number before the deletion."""

    def remove_sessions(self, sessions: Collection[SessionId], newest: int) -> None:
        """Empty every event of these sessions up to number `newest`."""
        for session in sessions:
            self.removed.set(session, newest)

    def redacted_ends(self) -> list[tuple[int, bytes]]:
        """Return numbers and new bodies of the stored ends in deleted sessions."""
        subjects = ((number, body, event_subject(body).session) for number, body in self.ends)
        return [(number, redact_body(body, session)) for number, body, session in subjects if session in self.removed]

    def stored_body(self, entry: Entry) -> bytes:
        """Return the body to store. It is emptied if a later write of the same batch deletes the session."""
        session = session_of(entry.event)
        if entry.number <= (self.removed.get(session) or 0):
            return encode_event(redact_event(entry.event, session))
        return entry.body

    @staticmethod
    def is_end(entry: Entry) -> bool:
        """Return True for the end of a run."""
        return isinstance(entry.event, RunCompleteEvent)


class LoadedTables:
    """The rows of one workspace that a batch may touch, and the state of the workspace at that moment."""

    def __init__(self, keys: Keys, rows: Sequence[Mapping[int | str, Any]]) -> None:
        self.journal = Journal()
        self.runs = LoadedRuns(self.journal)
        self.messages = LoadedMessages(self.journal)
        self.files = LoadedFiles(self.journal)
        self.requests = LoadedRequests(self.journal)
        self.sessions = LoadedSessions(self.journal, (self.runs, self.messages, self.files, self.requests))
        self.log = LoadedLog(self.journal)
        self.state: WorkspaceState | None = None
        self._ids = {searchable(key): key for key in keys.ids() if searchable(key) != key}
        self._note_keys(keys)
        for row in rows:
            self._add(row)
        self.journal.forget()
        self.stored_runs = dict(self.runs.rows.items())
        self.stored_sessions = dict(self.sessions.rows.items())
        self.stored_requests = dict(self.requests.rows.items())

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        """Return whether the run id is taken, whether the session exists, and how many runs are ahead in it."""
        is_known = self.sessions.get(session_id) is not None
        return self.runs.is_taken(run_id), is_known, self.runs.ahead.get(session_id) or 0

    def _original(self, id_: str) -> str:
        """Return the id that a searchable one stands for."""
        return self._ids.get(id_, id_)

    def _note_keys(self, keys: Keys) -> None:
        self.runs.known |= keys.runs
        self.runs.queues |= keys.queues | keys.families
        self.messages.known |= keys.messages | keys.whole_messages
        self.sessions.known |= keys.sessions
        self.files.known |= keys.files
        self.requests.known |= keys.requests

    def _add(self, row: Mapping[int | str, Any]) -> None:
        match row["kind"]:
            case "workspace":
                self.state = WorkspaceState(row["a"], row["b"], row["c"], row["d"], row["flag"])
            case "run":
                run = decode_run(row["body"], row["extra"])
                self.runs.rows.set(run.run_id, RunRow(run, row["a"], is_stored=True))
            case "reserved":
                self.runs.reserved.set(RunId(row["id"]), RunId(row["id"]))
            case "ahead":
                self.runs.ahead.set(SessionId(self._original(row["id"])), row["a"])
            case "session" | "family":
                self._add_session(row)
            case "message":
                body = row["body"]
                message = None if body is None else _message_decoder.decode(body)
                message_id = MessageId(self._original(row["id"])) if message is None else message.id
                session = SessionId(self._original(row["other"])) if message is None else message.session_id
                self.messages.rows.set(message_id, MessageRow(session, is_stored=True, message=message))
            case "file":
                file = decode_version(row["body"], row["extra"])
                self.files.versions.set((file.session_id, file.path), file)
            case "request":
                self.requests.rows.set(self._original(row["id"]), SessionId(self._original(row["other"])))
            case "end":
                self.log.ends.append((row["a"], row["body"]))
            case kind:
                raise LookupError(kind)

    def _add_session(self, row: Mapping[int | str, Any]) -> None:
        session = decode_session(row["body"])
        self.sessions.rows.set(session.id, SessionRow(session, row["a"], is_stored=True))
        if row["kind"] == "family":
            self.sessions.known.add(session.id)
            self.runs.queues.add(session.id)
