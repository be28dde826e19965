"""The table of sessions of one workspace."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence, Sized
from operator import itemgetter

import apsw
import msgspec

from holdfast.domain.events import MessageDelta, MessageDeltaEvent, MessagePart, MessagePartEvent, RunEvent
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import Admit, RunRecord
from holdfast.domain.message_delta import grow
from holdfast.domain.messages import Message
from holdfast.domain.runs import Attachment, Brief, Run
from holdfast.domain.sessions import Session

__all__ = [
    "FileTable",
    "MessageTable",
    "RequestTable",
    "RunTable",
    "SessionTable",
    "bounds",
    "may_keep",
    "number_at",
    "place",
]


# Values that must not stay in memory. Pure.

_LARGE = 64 * 1024


def may_keep(*values: Sized) -> bool:
    """Whether a statement may be kept, prepared, with these values bound to it.

    It keeps them until its next use, which may be never. To prepare it again costs little beside a large value.
    """
    return max(map(len, values)) < _LARGE


# The tables of messages and of what they have grown by.

_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
_growth_decoder = msgspec.json.Decoder(tuple[MessageDeltaEvent | MessagePartEvent, ...])


class MessageTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._known: dict[MessageId, tuple[int, RunId]] = {}
        """Place and run of each message that was looked for."""

    def forget(self) -> None:
        """Rows were changed behind this table's back."""
        self._known.clear()

    def get(self, message_id: MessageId) -> Message | None:
        for (body,) in self._connection.execute(
            "SELECT body FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id)
        ):
            return _message_decoder.decode(body)
        return None

    def exists(self, message_id: MessageId) -> bool:
        return self._find(message_id) is not None

    def add(self, message: Message) -> None:
        body = _encoder.encode(message)
        self._connection.execute(
            "INSERT INTO messages (workspace, id, session, run_id, body) VALUES (?, ?, ?, ?, ?)",
            (self._workspace, message.id, message.session_id, message.run_id, body),
            can_cache=may_keep(body),
        )

    def put(self, message: Message) -> None:
        found = self._find(message.id)
        if found is None:
            return
        ord_, run_id = found
        body = _encoder.encode(message)
        if run_id == message.run_id:
            query = "UPDATE messages SET body = ? WHERE ord = ?"
            self._connection.execute(query, (body, ord_), can_cache=may_keep(body))
        else:
            self._known.pop(message.id)
            query = "UPDATE messages SET run_id = ?, body = ? WHERE ord = ?"
            self._connection.execute(query, (message.run_id, body, ord_), can_cache=may_keep(body))
        self._connection.execute("DELETE FROM growth WHERE message = ?", (ord_,))

    def add_growth(self, message_id: MessageId, growth: Sequence[MessageDelta | MessagePart]) -> None:
        """One row, as the live events that say the same."""
        events = [
            MessageDeltaEvent(item) if isinstance(item, MessageDelta) else MessagePartEvent(item) for item in growth
        ]
        if (found := self._find(message_id)) is not None:
            body = _encoder.encode(events)
            query = "INSERT INTO growth (message, body) VALUES (?, ?)"
            self._connection.execute(query, (found[0], body), can_cache=may_keep(body))

    def delete(self, message_id: MessageId) -> None:
        self._known.pop(message_id, None)
        self._connection.execute("DELETE FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id))

    def of_session(self, session_id: SessionId) -> list[Message]:
        return self._grown("session = ?", session_id)

    def of_run(self, run_id: RunId) -> list[Message]:
        # The second condition lets the partial index be used, and keeps messages without a run apart.
        return self._grown("run_id = ? AND run_id <> ''", run_id)

    def _grown(self, condition: str, value: str) -> list[Message]:
        where = f"messages.workspace = ? AND messages.{condition}"
        growth: dict[int, list[MessageDelta | MessagePart]] = defaultdict(list)
        for ord_, body in self._connection.execute(
            f"SELECT messages.ord, growth.body FROM messages JOIN growth ON growth.message = messages.ord"
            f" WHERE {where} ORDER BY growth.ord",
            (self._workspace, value),
        ):
            growth[ord_].extend(event.payload for event in _growth_decoder.decode(body))
        rows = self._connection.execute(
            f"SELECT ord, body FROM messages WHERE {where} ORDER BY ord", (self._workspace, value)
        )
        return [grow(_message_decoder.decode(body), growth.get(ord_, ())) for ord_, body in rows]

    def _find(self, message_id: MessageId) -> tuple[int, RunId] | None:
        found = self._known.get(message_id)
        if found is None:
            for ord_, run_id in self._connection.execute(
                "SELECT ord, run_id FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id)
            ):
                found = self._known[message_id] = (int(ord_), RunId(run_id))
        return found


# Where a numbered thing of a workspace stands: both numbers in one, by which a table can be ordered. Pure.

_BITS = 40
_LAST = (1 << _BITS) - 1
"""The largest number a workspace can give: a thousand a second last for thirty years."""


def place(workspace: int, number: int) -> int:
    """Numbers that were never given are brought within the workspace: the next one begins after its last place."""
    return workspace << _BITS | min(max(number, 0), _LAST)


def number_at(where: int) -> int:
    return where & _LAST


def bounds(workspace: int) -> tuple[int, int]:
    """The first and the last place of a workspace."""
    return place(workspace, 0), place(workspace, _LAST)


# The tables of runs and of their long inputs.

_LONG = 2_000
"""A prompt of more characters stands apart from the row, which is rewritten at every step of the run."""

_INPUT = "FROM inputs WHERE inputs.place = runs.place"
_EVENT = "FROM events WHERE events.place = runs.place"
# A subquery costs a third of a join when there is nothing to join, as there mostly is not.
_RUN = f"place, body, (SELECT prompt {_INPUT}), iif(body IS NULL, (SELECT events.body {_EVENT}), NULL)"
_OPEN = f"SELECT {_RUN}, rank FROM runs WHERE workspace = ? AND outcome IS NULL"

_ADMISSION = (
    "SELECT EXISTS (SELECT 1 FROM runs WHERE workspace = ?1 AND run_id = ?2)"
    " OR EXISTS (SELECT 1 FROM removed_runs WHERE workspace = ?1 AND run_id = ?2),"
    " EXISTS (SELECT 1 FROM sessions WHERE workspace = ?1 AND id = ?3),"
    " (SELECT count(*) FROM runs WHERE workspace = ?1 AND session = ?3 AND folded = 0 AND outcome IS NULL)"
)
_TAKEN = (
    "SELECT run_id FROM runs WHERE workspace = ?1 AND run_id IN (SELECT value FROM json_each(?2))"
    " UNION ALL SELECT run_id FROM removed_runs WHERE workspace = ?1 AND run_id IN (SELECT value FROM json_each(?2))"
)
_AHEAD = (
    "SELECT value,"
    " (SELECT count(*) FROM runs WHERE workspace = ?1 AND session = value AND folded = 0 AND outcome IS NULL)"
    " FROM json_each(?2) WHERE EXISTS (SELECT 1 FROM sessions WHERE workspace = ?1 AND id = value)"
)
_ADD = (
    "INSERT INTO runs (place, workspace, run_id, session, rank, folded, outcome, body_hash)"
    " VALUES (?, ?, ?, ?, ?, 0, NULL, ?)"
)

_run_decoder = msgspec.json.Decoder(Run)
_event_decoder = msgspec.json.Decoder(RunEvent)
_packer = msgspec.msgpack.Encoder()
_attachment_decoder = msgspec.msgpack.Decoder(tuple[Attachment, ...])
_brief_decoder = msgspec.msgpack.Decoder(Brief)


class _Foreseen:
    """Accepts that come one after the other: what was looked up for all of them, and the rows to be stored."""

    def __init__(self, taken: set[RunId], ahead: dict[SessionId, int]) -> None:
        self.taken = taken
        self.ahead = ahead
        self.rows: list[tuple[int, int, RunId, SessionId, int, bytes]] = []


class RunTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._first, self._last = bounds(workspace)
        self._fresh: dict[int, Run] = {}
        """Runs accepted since this was made, by place: their events are stored a little later."""
        self._known: dict[RunId, Run] = {}
        self._foreseen: _Foreseen | None = None

    def forget(self) -> None:
        """Rows were changed behind this table's back."""
        self._known.clear()

    def get(self, run_id: RunId) -> Run | None:
        run = self._known.get(run_id)
        if run is None:
            for run in self._select("workspace = ? AND run_id = ?", self._workspace, run_id):
                self._known[run_id] = run
        return run

    def record(self, run_id: RunId) -> RunRecord | None:
        for *run, body_hash, attachments, brief in self._connection.execute(
            f"SELECT {_RUN}, body_hash, (SELECT attachments {_INPUT}), (SELECT brief {_INPUT}) FROM runs"
            " WHERE workspace = ? AND run_id = ?",
            (self._workspace, run_id),
        ):
            files = _attachment_decoder.decode(attachments) if attachments else ()
            return RunRecord(self._decode(*run), body_hash, files, _brief_decoder.decode(brief) if brief else None)
        return None

    def open_in(self, session_id: SessionId) -> list[Run]:
        return self._by_rank(f"{_OPEN} AND session = ?", session_id)

    def foresee(self, admits: Sequence[Admit]) -> None:
        """Nothing but these accepts comes next: look everything up at once, store all rows at `settle`."""
        runs = _encoder.encode([admit.run.run_id for admit in admits]).decode()
        sessions = _encoder.encode({admit.run.session_id for admit in admits}).decode()
        taken = self._connection.execute(_TAKEN, (self._workspace, runs))
        ahead = self._connection.execute(_AHEAD, (self._workspace, sessions))
        self._foreseen = _Foreseen({run_id for (run_id,) in taken}, dict(ahead))

    def settle(self) -> None:
        """The accepts that were foreseen are over."""
        self._store_held()
        self._foreseen = None

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        if (foreseen := self._foreseen) is not None:
            ahead = foreseen.ahead.get(session_id)
            return run_id in foreseen.taken, ahead is not None, ahead or 0
        for taken, known, count in self._connection.execute(_ADMISSION, (self._workspace, run_id, session_id)):
            return bool(taken), bool(known), int(count)
        return False, False, 0

    def every_open(self) -> list[Run]:
        """Runs without an outcome, in the order in which they are to run."""
        return self._by_rank(_OPEN)

    def last_ended(self, limit: int) -> list[Run]:
        """Newest first."""
        query = "place BETWEEN ? AND ? AND outcome IS NOT NULL ORDER BY place DESC LIMIT ?"
        return self._select(query, self._first, self._last, limit)

    def page(self, session_id: SessionId | None, limit: int, before: int) -> list[Run]:
        """Newest first."""
        last = place(self._workspace, before - 1) if before else self._last
        if session_id is None:
            return self._select("place BETWEEN ? AND ? ORDER BY place DESC LIMIT ?", self._first, last, limit)
        # Each has an index of its own, and those without an end are few.
        ended = "workspace = ? AND session = ? AND outcome IS NOT NULL AND place <= ? ORDER BY place DESC LIMIT ?"
        found = self._select(ended, self._workspace, session_id, last, limit)
        found += (run for run in self.open_in(session_id) if self._first + run.number <= last)
        return sorted(found, key=lambda run: run.number, reverse=True)[:limit]

    def add(self, record: RunRecord) -> None:
        run = record.run
        where = self._first + run.number
        self._fresh[where] = run
        row = (where, self._workspace, run.run_id, run.session_id, run.number, record.body_hash)
        if (foreseen := self._foreseen) is not None:
            foreseen.taken.add(run.run_id)
            foreseen.ahead[run.session_id] += 1
            foreseen.rows.append(row)
        else:
            self._connection.execute(_ADD, row)
        if record.attachments or record.brief is not None or len(run.prompt) > _LONG:
            self._store_held()
            brief = None if record.brief is None else _packer.encode(record.brief)
            attachments = _packer.encode(record.attachments)
            self._connection.execute(
                "INSERT INTO inputs (place, prompt, attachments, brief) VALUES (?, ?, ?, ?)",
                (where, run.prompt, attachments, brief),
                can_cache=may_keep(run.prompt, attachments, brief or b""),
            )

    def _store_held(self) -> None:
        if self._foreseen is not None and self._foreseen.rows:
            self._connection.executemany(_ADD, self._foreseen.rows)
            self._foreseen.rows.clear()

    def put(self, run: Run) -> None:
        self._known[run.run_id] = run
        where, body = self._first + run.number, _encode(run)
        if run.outcome is None and run.state != "folded":
            # It never was either, and what is not set costs no index anything.
            query = "UPDATE runs SET body = ? WHERE place = ?"
            self._connection.execute(query, (body, where), can_cache=may_keep(body))
            return
        self._connection.execute(
            "UPDATE runs SET folded = ?, outcome = ?, body = ? WHERE place = ?",
            (run.state == "folded", run.outcome, body, where),
            can_cache=may_keep(body),
        )

    def delete(self, run_id: RunId) -> None:
        self._known.pop(run_id, None)
        self._connection.execute("DELETE FROM runs WHERE workspace = ? AND run_id = ?", (self._workspace, run_id))

    def rank(self, run_id: RunId) -> int:
        for (rank,) in self._connection.execute(
            "SELECT rank FROM runs WHERE workspace = ? AND run_id = ?", (self._workspace, run_id)
        ):
            return int(rank)
        return 0

    def set_rank(self, run_id: RunId, rank: int) -> None:
        self._connection.execute(
            "UPDATE runs SET rank = ? WHERE workspace = ? AND run_id = ?", (rank, self._workspace, run_id)
        )

    def _select(self, condition: str, *values: str | int) -> list[Run]:
        rows = self._connection.execute(f"SELECT {_RUN} FROM runs WHERE {condition}", values)
        return [self._decode(*row) for row in rows]

    def _by_rank(self, query: str, *values: str) -> list[Run]:
        """In the order in which they are to run. Sorted here: SQLite plans an ordered search of this index anew each
        time, which takes ten times as long as the search.
        """
        rows = self._connection.execute(query, (self._workspace, *values))
        return [self._decode(*row) for *row, _ in sorted(rows, key=itemgetter(-1))]

    def _decode(self, where: int, body: bytes | None, prompt: str | None, event: bytes | None) -> Run:
        if body is None:
            return self._fresh[where] if event is None else _event_decoder.decode(event).change.object
        run = _run_decoder.decode(body)
        return msgspec.structs.replace(run, prompt=prompt) if prompt else run


def _encode(run: Run) -> bytes:
    return _encoder.encode(msgspec.structs.replace(run, prompt="") if len(run.prompt) > _LONG else run)


# The table of sessions of one workspace.

_session_decoder = msgspec.json.Decoder(Session)


class SessionTable:
    """`runs` and `messages` forget what they know when a session takes rows of theirs along."""

    def __init__(self, connection: apsw.Connection, workspace: int, runs: RunTable, messages: MessageTable) -> None:
        self._connection = connection
        self._workspace = workspace
        self._runs = runs
        self._messages = messages
        self._known: dict[SessionId, Session] = {}

    def forget(self) -> None:
        """Rows were changed behind this table's back."""
        self._known.clear()

    def get(self, session_id: SessionId) -> Session | None:
        session = self._known.get(session_id)
        if session is None:
            for (body,) in self._connection.execute(
                "SELECT body FROM sessions WHERE workspace = ? AND id = ?", (self._workspace, session_id)
            ):
                session = self._known[session_id] = _session_decoder.decode(body)
        return session

    def put(self, session: Session) -> None:
        is_known = session.id in self._known
        self._known[session.id] = session
        body = _encoder.encode(session)
        if is_known:
            self._connection.execute(
                "UPDATE sessions SET updated_at = ?, body = ? WHERE workspace = ? AND id = ?",
                (session.updated_at, body, self._workspace, session.id),
                can_cache=may_keep(body),
            )
            return
        self._connection.execute(
            "INSERT INTO sessions (workspace, id, parent, updated_at, body) VALUES (?1, ?2, ?3, ?4, ?5)"
            " ON CONFLICT (workspace, id) DO UPDATE SET updated_at = ?4, body = ?5",
            (self._workspace, session.id, session.parent_session_id, session.updated_at, body),
            can_cache=may_keep(body),
        )

    def delete(self, session_id: SessionId) -> None:
        """What belongs to it goes with it: the tables of messages, files and marks refer to this one. Runs do not,
        for asking whether their session is there would be in every accept's way a second time.
        """
        values = (self._workspace, session_id)
        for state in ("IS NULL", "IS NOT NULL"):
            runs = f"FROM runs WHERE workspace = ? AND session = ? AND outcome {state}"
            self._connection.execute(f"INSERT OR IGNORE INTO removed_runs SELECT workspace, run_id {runs}", values)
            self._connection.execute(f"DELETE {runs}", values)
        self._connection.execute("DELETE FROM requests WHERE workspace = ? AND session = ?", values)
        self._connection.execute("DELETE FROM sessions WHERE workspace = ? AND id = ?", (self._workspace, session_id))
        self._runs.forget()
        self._messages.forget()
        self.forget()

    def children(self, session_id: SessionId) -> list[SessionId]:
        rows = self._connection.execute(
            "SELECT id FROM sessions WHERE workspace = ? AND parent = ? ORDER BY ord", (self._workspace, session_id)
        )
        return [child for (child,) in rows]

    def top(self) -> list[Session]:
        """Sessions without a parent, latest change first."""
        rows = self._connection.execute(
            "SELECT body FROM sessions WHERE workspace = ? AND parent = '' ORDER BY updated_at DESC, ord DESC",
            (self._workspace,),
        )
        return [_session_decoder.decode(body) for (body,) in rows]

    def every(self) -> list[Session]:
        """All of them, children too, latest change first."""
        rows = self._connection.execute(
            "SELECT body FROM sessions WHERE workspace = ? ORDER BY updated_at DESC, ord DESC", (self._workspace,)
        )
        return [_session_decoder.decode(body) for (body,) in rows]


# The tables of file versions and read marks. A content is stored once, however many versions have it.

_version_decoder = msgspec.json.Decoder(FileVersion)
_SELECT = "SELECT f.body, c.content FROM files AS f LEFT JOIN contents AS c ON c.key = f.content"


def _version(body: bytes, content: str | None) -> FileVersion:
    """Rows from before there were contents have theirs in the body."""
    file = _version_decoder.decode(body)
    return file if content is None else msgspec.structs.replace(file, content=content)


class FileTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        for row in self._connection.execute(
            f"{_SELECT} WHERE f.workspace = ? AND f.session = ? AND f.path = ? ORDER BY f.version DESC LIMIT 1",
            (self._workspace, session_id, path),
        ):
            return _version(*row)
        return None

    def add(self, file: FileVersion) -> None:
        body = _encoder.encode(msgspec.structs.replace(file, content=""))
        self._connection.execute(
            "INSERT INTO files (workspace, session, path, version, body, content) VALUES (?, ?, ?, ?, ?, ?)",
            (self._workspace, file.session_id, file.path, file.version, body, self._content_key(file.content)),
        )

    def _content_key(self, content: str) -> int:
        digest = hashlib.blake2b(content.encode(), digest_size=32).digest()
        for (key,) in self._connection.execute(
            "SELECT key FROM contents WHERE workspace = ? AND digest = ?", (self._workspace, digest)
        ):
            return int(key)
        self._connection.execute(
            "INSERT INTO contents (workspace, digest, content) VALUES (?, ?, ?)",
            (self._workspace, digest, content),
            can_cache=may_keep(content),
        )
        return self._connection.last_insert_rowid()

    def mark(self, mark: ReadMark) -> None:
        self._connection.execute(
            "INSERT INTO read_marks (workspace, session, path, read_at, digest) VALUES (?1, ?2, ?3, ?4, ?5)"
            " ON CONFLICT (workspace, session, path) DO UPDATE SET read_at = ?4, digest = ?5",
            (self._workspace, mark.session_id, mark.path, mark.read_at, mark.digest),
        )

    def of_session(self, session_id: SessionId) -> list[FileVersion]:
        rows = self._connection.execute(
            f"{_SELECT} WHERE f.workspace = ? AND f.session = ? ORDER BY f.path, f.version",
            (self._workspace, session_id),
        )
        return [_version(*row) for row in rows]

    def read_mark(self, session_id: SessionId, path: str) -> ReadMark | None:
        for read_at, digest in self._connection.execute(
            "SELECT read_at, digest FROM read_marks WHERE workspace = ? AND session = ? AND path = ?",
            (self._workspace, session_id, path),
        ):
            return ReadMark(session_id, path, read_at, digest)
        return None

    def read_marks(self, session_id: SessionId) -> list[ReadMark]:
        rows = self._connection.execute(
            "SELECT path, read_at, digest FROM read_marks WHERE workspace = ? AND session = ?"
            " ORDER BY read_at DESC, path",
            (self._workspace, session_id),
        )
        return [ReadMark(session_id, path, read_at, digest) for path, read_at, digest in rows]


# The table of open requests: permissions and batches of questions that wait for an answer.


class RequestTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def add(self, request_id: str, session_id: SessionId) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO requests (workspace, id, session) VALUES (?, ?, ?)",
            (self._workspace, request_id, session_id),
        )

    def remove(self, request_id: str) -> bool:
        self._connection.execute("DELETE FROM requests WHERE workspace = ? AND id = ?", (self._workspace, request_id))
        return self._connection.changes() > 0
