"""All rows that were loaded for a batch, as `operations.Tables`, and the changes that a batch made to them. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.event_erasure import event_subject, redact_body, redact_event, session_of
from holdfast.domain.events import RunCompleteEvent, encode_event
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import Entry
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.storage.journal import Journal, Table
from holdfast.storage.postgres.keys import Keys, searchable
from holdfast.storage.postgres.loaded_rows import (
    LoadedFiles,
    LoadedMessages,
    LoadedRequests,
    LoadedRuns,
    LoadedSessions,
    MessageRow,
    RunRow,
    SessionRow,
)

__all__ = ["LoadedTables", "WorkspaceState", "decode_run", "decode_session", "decode_version"]

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
