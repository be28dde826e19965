"""Tables of the store in memory, with transactions that can be rolled back."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from holdfast.domain.event_erasure import event_subject, redact_body
from holdfast.domain.events import MessageDelta, MessagePart
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Entry, RunRecord
from holdfast.storage.event_log import PRUNE_INTERVAL, Retention
from holdfast.storage.undo_log import Journal, Table

__all__ = ["MemoryTables"]


class _Ranked(msgspec.Struct, frozen=True):
    record: RunRecord
    rank: int


class _Placed(msgspec.Struct, frozen=True):
    ord: int
    message: Message
    growth: tuple[MessageDelta | MessagePart, ...] = ()


class _Made(msgspec.Struct, frozen=True):
    ord: int
    session: Session


class MemoryRuns:
    def __init__(self, journal: Journal) -> None:
        self._rows: Table[RunId, _Ranked] = Table(journal)
        self._open: Table[RunId, RunId] = Table(journal)
        self._removed: Table[RunId, RunId] = Table(journal)

    def is_taken(self, run_id: RunId) -> bool:
        """Return True if the id is in use or was used by a deleted run."""
        return run_id in self._rows or run_id in self._removed

    def get(self, run_id: RunId) -> Run | None:
        """Return a run, or None."""
        row = self._rows.get(run_id)
        return None if row is None else row.record.run

    def record(self, run_id: RunId) -> RunRecord | None:
        """Return a run with its input, or None."""
        row = self._rows.get(run_id)
        return None if row is None else row.record

    def every(self) -> list[Run]:
        """Return all runs, by number."""
        return sorted((row.record.run for row in self._rows), key=lambda run: run.number)

    def all_open(self) -> list[Run]:
        """Return the runs without an end, by rank."""
        rows = sorted((self._rows[run_id] for run_id in self._open), key=lambda row: row.rank)
        return [row.record.run for row in rows]

    def open_in(self, session_id: SessionId) -> list[Run]:
        """Return the runs of a session without an end, by rank."""
        return [run for run in self.all_open() if run.session_id == session_id]

    def add(self, record: RunRecord) -> None:
        """Insert a new run at the end of the queue."""
        self._rows.set(record.run.run_id, _Ranked(record, record.run.number))
        self._open.set(record.run.run_id, record.run.run_id)

    def put(self, run: Run) -> None:
        """Replace a stored run."""
        row = self._rows[run.run_id]
        self._rows.set(run.run_id, _Ranked(msgspec.structs.replace(row.record, run=run), row.rank))
        if run.outcome is not None:
            self._open.drop(run.run_id)

    def delete(self, run_id: RunId) -> None:
        """Delete a run."""
        self._rows.drop(run_id)
        self._open.drop(run_id)

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the runs of a session and reserve their ids."""
        for run in self.every():
            if run.session_id == session_id:
                self.delete(run.run_id)
                self._removed.set(run.run_id, run.run_id)

    def rank(self, run_id: RunId) -> int:
        """Return the position of a run in queue order."""
        return self._rows[run_id].rank

    def set_rank(self, run_id: RunId, rank: int) -> None:
        """Change the position of a run in queue order."""
        self._rows.set(run_id, msgspec.structs.replace(self._rows[run_id], rank=rank))


class MemoryMessages:
    def __init__(self, journal: Journal, next_ord: Callable[[], int]) -> None:
        self._rows: Table[MessageId, _Placed] = Table(journal)
        self._next_ord = next_ord

    def get(self, message_id: MessageId) -> Message | None:
        """Return a message as it was last put, or None."""
        row = self._rows.get(message_id)
        return None if row is None else row.message

    def exists(self, message_id: MessageId) -> bool:
        """Return True if the message is stored."""
        return message_id in self._rows

    def add(self, message: Message) -> None:
        """Insert a new message at the end of its session."""
        self._rows.set(message.id, _Placed(self._next_ord(), message))

    def put(self, message: Message) -> None:
        """Replace a stored message and delete its growth."""
        self._rows.set(message.id, _Placed(self._rows[message.id].ord, message))

    def add_growth(self, message_id: MessageId, growth: Sequence[MessageDelta | MessagePart]) -> None:
        """Append text or parts to a message."""
        row = self._rows[message_id]
        self._rows.set(message_id, msgspec.structs.replace(row, growth=(*row.growth, *growth)))

    def delete(self, message_id: MessageId) -> None:
        """Delete a message with its growth."""
        self._rows.drop(message_id)

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the messages of a session."""
        for row in self._rows:
            if row.message.session_id == session_id:
                self._rows.drop(row.message.id)

    def of_session(self, session_id: SessionId) -> list[Message]:
        """Return the messages of a session with their growth."""
        return self._merged_messages(lambda message: message.session_id == session_id)

    def of_run(self, run_id: RunId) -> list[Message]:
        """Return the messages of a run with their growth."""
        return self._merged_messages(lambda message: bool(run_id) and message.run_id == run_id)

    def _merged_messages(self, wanted: Callable[[Message], bool]) -> list[Message]:
        rows = sorted((row for row in self._rows if wanted(row.message)), key=lambda row: row.ord)
        return [grow(row.message, row.growth) for row in rows]


class MemoryFiles:
    def __init__(self, journal: Journal) -> None:
        self._files: Table[tuple[SessionId, str, int], FileVersion] = Table(journal)
        self._marks: Table[tuple[SessionId, str], ReadMark] = Table(journal)

    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        """Return the last version of a file, or None."""
        found = (file for file in self._files if file.session_id == session_id and file.path == path)
        return max(found, key=lambda file: file.version, default=None)

    def add(self, file: FileVersion) -> None:
        """Insert a new version of a file."""
        self._files.set((file.session_id, file.path, file.version), file)

    def set_read_mark(self, mark: ReadMark) -> None:
        """Insert or replace a read mark."""
        self._marks.set((mark.session_id, mark.path), mark)

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the files and read marks of a session."""
        for file in self.of_session(session_id):
            self._files.drop((session_id, file.path, file.version))
        for mark in self.read_marks(session_id):
            self._marks.drop((session_id, mark.path))

    def of_session(self, session_id: SessionId) -> list[FileVersion]:
        """Return the file versions of a session."""
        files = (file for file in self._files if file.session_id == session_id)
        return sorted(files, key=lambda file: (file.path, file.version))

    def read_mark(self, session_id: SessionId, path: str) -> ReadMark | None:
        """Return a read mark, or None."""
        return self._marks.get((session_id, path))

    def read_marks(self, session_id: SessionId) -> list[ReadMark]:
        """Return the read marks of a session."""
        marks = (mark for mark in self._marks if mark.session_id == session_id)
        return sorted(marks, key=lambda mark: (-mark.read_at, mark.path))


class _OfSessions(Protocol):
    def delete_session(self, session_id: SessionId) -> None: ...


class MemoryRequests:
    def __init__(self, journal: Journal) -> None:
        self._rows: Table[str, tuple[str, SessionId]] = Table(journal)

    def add(self, request_id: str, session_id: SessionId) -> None:
        """Insert an open request."""
        self._rows.set(request_id, (request_id, session_id))

    def remove(self, request_id: str) -> bool:
        """Delete a request. Return True if it was open."""
        was_open = request_id in self._rows
        self._rows.drop(request_id)
        return was_open

    def delete_session(self, session_id: SessionId) -> None:
        """Delete the requests of a session."""
        for request_id, session in self._rows:
            if session == session_id:
                self._rows.drop(request_id)


class MemorySessions:
    """The sessions. Deleting one also deletes its rows in other tables, as the foreign keys of the database do."""

    def __init__(self, journal: Journal, next_ord: Callable[[], int], owned: Sequence[_OfSessions]) -> None:
        self._rows: Table[SessionId, _Made] = Table(journal)
        self._next_ord = next_ord
        self._owned = owned

    def get(self, session_id: SessionId) -> Session | None:
        """Return a session, or None."""
        row = self._rows.get(session_id)
        return None if row is None else row.session

    def put(self, session: Session) -> None:
        """Insert or replace a session."""
        row = self._rows.get(session.id)
        self._rows.set(session.id, _Made(self._next_ord() if row is None else row.ord, session))

    def delete(self, session_id: SessionId) -> None:
        """Delete a session with its rows in other tables."""
        self._rows.drop(session_id)
        for table in self._owned:
            table.delete_session(session_id)

    def children(self, session_id: SessionId) -> list[SessionId]:
        """Return the ids of the sessions whose parent is this one."""
        rows = sorted(self._rows, key=lambda row: row.ord)
        return [row.session.id for row in rows if row.session.parent_session_id == session_id]

    def every(self) -> list[Session]:
        """Return all sessions, latest change first."""
        rows = sorted(self._rows, key=lambda row: (row.session.updated_at, row.ord), reverse=True)
        return [row.session for row in rows]


class MemoryLog:
    """The numbered events: numbers only increase, and pruning removes a prefix."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._events: list[tuple[int, int, bytes]] = []

    def append(self, entries: Sequence[Entry], at: int) -> None:
        """Store events with their time."""
        for entry in entries:
            self._events.append((entry.number, at, entry.body))
            self._journal.note(self._events.pop)

    def remove_sessions(self, sessions: Collection[SessionId], newest: int) -> None:
        """Empty the events of deleted sessions."""
        before = list(self._events)
        for index, (number, at, body) in enumerate(self._events):
            if number <= newest and (session := event_subject(body).session) in sessions:
                self._events[index] = (number, at, redact_body(body, session))
        self._journal.note(lambda: self._events.__setitem__(slice(None), before))

    def after(self, cursor: int, limit: int) -> list[tuple[int, bytes]]:
        """Return numbered events after a cursor."""
        return [(number, body) for number, _, body in self.dated_after(cursor, limit)]

    def dated_after(self, cursor: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return numbered events after a cursor with their times."""
        start = bisect_right(self._events, cursor, key=lambda event: event[0])
        return self._events[start : start + limit]

    def oldest(self) -> int | None:
        """Return the number of the oldest event, or None."""
        return self._events[0][0] if self._events else None

    def prune(self, retention: Retention, now_ms: int, unended: int | None) -> None:
        """Prune the oldest events. `unended` is the smallest number of a run that has not ended."""
        cutoff = retention.cutoff_ms(now_ms)
        excess = len(self._events) - retention.events
        for index, (number, at, _) in enumerate(self._events[: 2 * PRUNE_INTERVAL]):
            if (index >= excess and at >= cutoff) or (unended is not None and number >= unended):
                break
        else:
            index = min(len(self._events), 2 * PRUNE_INTERVAL)
        removed = self._events[:index]
        del self._events[:index]
        self._journal.note(lambda: self._events.__setitem__(slice(0, 0), removed))


class MemoryTables:
    """The rows of one workspace."""

    def __init__(self, journal: Journal) -> None:
        self._last_ord = 0
        self.runs = MemoryRuns(journal)
        self.messages = MemoryMessages(journal, self._next_ord)
        self.files = MemoryFiles(journal)
        self.requests = MemoryRequests(journal)
        owned = (self.runs, self.messages, self.files, self.requests)
        self.sessions = MemorySessions(journal, self._next_ord, owned)
        self.log = MemoryLog(journal)

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        """Return whether the run id is taken, whether the session exists, and the number of runs ahead."""
        ahead = sum(run.state != "folded" for run in self.runs.open_in(session_id))
        return self.runs.is_taken(run_id), self.sessions.get(session_id) is not None, ahead

    def _next_ord(self) -> int:
        self._last_ord += 1
        return self._last_ord
