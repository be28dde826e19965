"""The tables of one workspace: messages, runs, sessions, file versions, read marks and open requests.

Each class reads and writes the rows of one table family over one connection, within the caller's transaction, and
implements one of the row protocols of `operations`. Objects are cheap and live for one batch or one read.

Rows contain the JSON of a domain type in `body`; the other columns contain only the values by which rows are found.
Two properties serve the speed of a commit, which is measured in changed pages (decision 13). A row is stored once:
a run that was accepted and not changed since has no body, because its `created` event in the log contains it, and a
long prompt is stored apart from the row that each step rewrites. And a batch looks each row up once: the tables cache
the rows that they have read, until a rollback makes them call `clear_cache`.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence, Sized
from operator import itemgetter

import apsw
import msgspec

from holdfast.domain.events import MessageDelta, MessageDeltaEvent, MessagePart, MessagePartEvent, RunEvent
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Message
from holdfast.domain.runs import Attachment, PromptExpansion, Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Admit, RunRecord

__all__ = [
    "FileTable",
    "MessageTable",
    "RequestTable",
    "RunTable",
    "SessionTable",
    "composite_key",
    "is_cacheable",
    "key_range",
    "number_of",
]


# Composite keys. Tables of numbered rows are ordered by one integer, the column `place`: the key of the workspace in
# the upper bits and the number of the row in the lower ones. Rows of one workspace are adjacent, and SQLite appends to
# such a table by changing a single page.

_NUMBER_BITS = 40
_MAX_NUMBER = (1 << _NUMBER_BITS) - 1
"""The largest number in a workspace: enough for a thousand events per second for thirty years."""


def composite_key(workspace: int, number: int) -> int:
    """Return the key of a row. Numbers out of range are clamped, so that a key never refers to another workspace."""
    return workspace << _NUMBER_BITS | min(max(number, 0), _MAX_NUMBER)


def number_of(key: int) -> int:
    """Return the number in a composite key."""
    return key & _MAX_NUMBER


def key_range(workspace: int) -> tuple[int, int]:
    """Return the first and the last composite key of a workspace."""
    return composite_key(workspace, 0), composite_key(workspace, _MAX_NUMBER)


_CACHEABLE_BYTES = 64 * 1024


def is_cacheable(*values: Sized) -> bool:
    """Return True if a statement with these values may stay in the cache of prepared statements.

    A cached statement keeps its bound values until its next use, which may never come. Preparing it again costs little
    compared with storing a large value.
    """
    return max(map(len, values)) < _CACHEABLE_BYTES


_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
_growth_decoder = msgspec.json.Decoder(tuple[MessageDeltaEvent | MessagePartEvent, ...])


class MessageTable:
    """The messages of a workspace, and the text and parts that were appended to them since they were stored."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._cache: dict[MessageId, tuple[int, RunId]] = {}
        """Row id and run of each message that was looked up."""

    def clear_cache(self) -> None:
        """Discard cached rows: they were changed by a rollback or by another table."""
        self._cache.clear()

    def get(self, message_id: MessageId) -> Message | None:
        """Return the message as it was last put, without later growth."""
        for (body,) in self._connection.execute(
            "SELECT body FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id)
        ):
            return _message_decoder.decode(body)
        return None

    def exists(self, message_id: MessageId) -> bool:
        """Return True if the message is stored."""
        return self._find(message_id) is not None

    def add(self, message: Message) -> None:
        """Insert a new message at the end of its session."""
        body = _encoder.encode(message)
        self._connection.execute(
            "INSERT INTO messages (workspace, id, session, run_id, body) VALUES (?, ?, ?, ?, ?)",
            (self._workspace, message.id, message.session_id, message.run_id, body),
            can_cache=is_cacheable(body),
        )

    def put(self, message: Message) -> None:
        """Replace a stored message. Its growth is deleted, because the new body contains it."""
        found = self._find(message.id)
        if found is None:
            return
        ord_, run_id = found
        body = _encoder.encode(message)
        if run_id == message.run_id:
            # A column that is not set costs no index update.
            query = "UPDATE messages SET body = ? WHERE ord = ?"
            self._connection.execute(query, (body, ord_), can_cache=is_cacheable(body))
        else:
            self._cache.pop(message.id)
            query = "UPDATE messages SET run_id = ?, body = ? WHERE ord = ?"
            self._connection.execute(query, (message.run_id, body, ord_), can_cache=is_cacheable(body))
        self._connection.execute("DELETE FROM growth WHERE message = ?", (ord_,))

    def add_growth(self, message_id: MessageId, growth: Sequence[MessageDelta | MessagePart]) -> None:
        """Append text or parts to a message: one row, in the form of the live events with the same content."""
        events = [
            MessageDeltaEvent(item) if isinstance(item, MessageDelta) else MessagePartEvent(item) for item in growth
        ]
        if (found := self._find(message_id)) is not None:
            body = _encoder.encode(events)
            query = "INSERT INTO growth (message, body) VALUES (?, ?)"
            self._connection.execute(query, (found[0], body), can_cache=is_cacheable(body))

    def delete(self, message_id: MessageId) -> None:
        """Delete a message with its growth."""
        self._cache.pop(message_id, None)
        self._connection.execute("DELETE FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id))

    def of_session(self, session_id: SessionId) -> list[Message]:
        """Return the messages of a session in conversation order, with their growth applied."""
        return self._load("session = ?", session_id)

    def of_run(self, run_id: RunId) -> list[Message]:
        """Return the messages of a run in conversation order, with their growth applied."""
        # The second condition lets SQLite use the partial index, and excludes messages without a run.
        return self._load("run_id = ? AND run_id <> ''", run_id)

    def _load(self, condition: str, value: str) -> list[Message]:
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
        found = self._cache.get(message_id)
        if found is None:
            for ord_, run_id in self._connection.execute(
                "SELECT ord, run_id FROM messages WHERE workspace = ? AND id = ?", (self._workspace, message_id)
            ):
                found = self._cache[message_id] = (int(ord_), RunId(run_id))
        return found


_INLINE_PROMPT_LIMIT = 2_000
"""A prompt of more characters is stored in `inputs`, not in the row that each step of the run rewrites."""

_FROM_INPUT = "FROM inputs WHERE inputs.place = runs.place"
_FROM_EVENT = "FROM events WHERE events.place = runs.place"
# Most runs have neither a row in `inputs` nor a missing body. A subquery that finds nothing costs a third of a join.
_RUN_COLUMNS = (
    f"place, body, (SELECT prompt {_FROM_INPUT}), iif(body IS NULL, (SELECT events.body {_FROM_EVENT}), NULL)"
)
_OPEN_RUNS_QUERY = f"SELECT {_RUN_COLUMNS}, rank FROM runs WHERE workspace = ? AND outcome IS NULL"

_ADMISSION_QUERY = (
    "SELECT EXISTS (SELECT 1 FROM runs WHERE workspace = ?1 AND run_id = ?2)"
    " OR EXISTS (SELECT 1 FROM removed_runs WHERE workspace = ?1 AND run_id = ?2),"
    " EXISTS (SELECT 1 FROM sessions WHERE workspace = ?1 AND id = ?3),"
    " (SELECT count(*) FROM runs WHERE workspace = ?1 AND session = ?3 AND folded = 0 AND outcome IS NULL)"
)
_TAKEN_IDS_QUERY = (
    "SELECT run_id FROM runs WHERE workspace = ?1 AND run_id IN (SELECT value FROM json_each(?2))"
    " UNION ALL SELECT run_id FROM removed_runs WHERE workspace = ?1 AND run_id IN (SELECT value FROM json_each(?2))"
)
_RUNS_AHEAD_QUERY = (
    "SELECT value,"
    " (SELECT count(*) FROM runs WHERE workspace = ?1 AND session = value AND folded = 0 AND outcome IS NULL)"
    " FROM json_each(?2) WHERE EXISTS (SELECT 1 FROM sessions WHERE workspace = ?1 AND id = value)"
)
_INSERT_RUN = (
    "INSERT INTO runs (place, workspace, run_id, session, rank, folded, outcome, body_hash)"
    " VALUES (?, ?, ?, ?, ?, 0, NULL, ?)"
)

_run_decoder = msgspec.json.Decoder(Run)
_event_decoder = msgspec.json.Decoder(RunEvent)
_packer = msgspec.msgpack.Encoder()
_attachment_decoder = msgspec.msgpack.Decoder(tuple[Attachment, ...])
_brief_decoder = msgspec.msgpack.Decoder(PromptExpansion)


class _AdmissionBatch:
    """A sequence of accepts: the rows that were looked up for all of them, and the rows to be inserted.

    `taken` are ids of existing runs; `ahead` maps each existing session to the number of runs that a new one waits for.
    """

    def __init__(self, taken: set[RunId], ahead: dict[SessionId, int]) -> None:
        self.taken = taken
        self.ahead = ahead
        self.rows: list[tuple[int, int, RunId, SessionId, int, bytes]] = []


class RunTable:
    """The runs of a workspace, and their long prompts, attachments and briefs."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._first, self._last = key_range(workspace)
        self._new_runs: dict[int, Run] = {}
        """Runs of this batch by composite key. Their events, which serve as bodies, are stored at its end."""
        self._cache: dict[RunId, Run] = {}
        self._admissions: _AdmissionBatch | None = None

    def clear_cache(self) -> None:
        """Discard cached rows: they were changed by a rollback or by another table."""
        self._cache.clear()

    def get(self, run_id: RunId) -> Run | None:
        """Return a run, or None."""
        run = self._cache.get(run_id)
        if run is None:
            for run in self._select("workspace = ? AND run_id = ?", self._workspace, run_id):
                self._cache[run_id] = run
        return run

    def record(self, run_id: RunId) -> RunRecord | None:
        """Return a run with the hash of its request body, its attachments and its brief, or None."""
        for *run, body_hash, attachments, brief in self._connection.execute(
            f"SELECT {_RUN_COLUMNS}, body_hash, (SELECT attachments {_FROM_INPUT}), (SELECT brief {_FROM_INPUT})"
            " FROM runs WHERE workspace = ? AND run_id = ?",
            (self._workspace, run_id),
        ):
            files = _attachment_decoder.decode(attachments) if attachments else ()
            return RunRecord(self._decode(*run), body_hash, files, _brief_decoder.decode(brief) if brief else None)
        return None

    def open_in(self, session_id: SessionId) -> list[Run]:
        """Return the runs of a session without an outcome, in queue order."""
        return self._by_rank(f"{_OPEN_RUNS_QUERY} AND session = ?", session_id)

    def begin_admissions(self, admits: Sequence[Admit]) -> None:
        """Look up the rows for a sequence of accepts at once. Until `end_admissions` no other operation may follow;
        their rows are inserted together.
        """
        runs = _encoder.encode([admit.run.run_id for admit in admits]).decode()
        sessions = _encoder.encode({admit.run.session_id for admit in admits}).decode()
        taken = self._connection.execute(_TAKEN_IDS_QUERY, (self._workspace, runs))
        ahead = self._connection.execute(_RUNS_AHEAD_QUERY, (self._workspace, sessions))
        self._admissions = _AdmissionBatch({run_id for (run_id,) in taken}, dict(ahead))

    def end_admissions(self) -> None:
        """Insert the rows of the accepts since `begin_admissions`."""
        self._flush_admissions()
        self._admissions = None

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        """Return whether the run id is taken, whether the session exists, and how many runs are ahead in it."""
        if (admissions := self._admissions) is not None:
            ahead = admissions.ahead.get(session_id)
            return run_id in admissions.taken, ahead is not None, ahead or 0
        for taken, known, count in self._connection.execute(_ADMISSION_QUERY, (self._workspace, run_id, session_id)):
            return bool(taken), bool(known), int(count)
        return False, False, 0

    def all_open(self) -> list[Run]:
        """Return all runs without an outcome, in queue order."""
        return self._by_rank(_OPEN_RUNS_QUERY)

    def recently_ended(self, limit: int) -> list[Run]:
        """Return the newest runs with an outcome, newest first."""
        query = "place BETWEEN ? AND ? AND outcome IS NOT NULL ORDER BY place DESC LIMIT ?"
        return self._select(query, self._first, self._last, limit)

    def page(self, session_id: SessionId | None, limit: int, before: int) -> list[Run]:
        """Return runs of one session or of all, newest first. `before` is a number, 0 for the newest page."""
        last = composite_key(self._workspace, before - 1) if before else self._last
        if session_id is None:
            return self._select("place BETWEEN ? AND ? ORDER BY place DESC LIMIT ?", self._first, last, limit)
        # Ended and open runs have separate indexes, and open runs are few.
        ended = "workspace = ? AND session = ? AND outcome IS NOT NULL AND place <= ? ORDER BY place DESC LIMIT ?"
        found = self._select(ended, self._workspace, session_id, last, limit)
        found += (run for run in self.open_in(session_id) if self._first + run.number <= last)
        return sorted(found, key=lambda run: run.number, reverse=True)[:limit]

    def add(self, record: RunRecord) -> None:
        """Insert a new run. Its rank is its number, so it is the last of the queue."""
        run = record.run
        key = self._first + run.number
        self._new_runs[key] = run
        row = (key, self._workspace, run.run_id, run.session_id, run.number, record.body_hash)
        if (admissions := self._admissions) is not None:
            admissions.taken.add(run.run_id)
            admissions.ahead[run.session_id] += 1
            admissions.rows.append(row)
        else:
            self._connection.execute(_INSERT_RUN, row)
        if record.attachments or record.brief is not None or len(run.prompt) > _INLINE_PROMPT_LIMIT:
            # `inputs` refers to the row in `runs`.
            self._flush_admissions()
            brief = None if record.brief is None else _packer.encode(record.brief)
            attachments = _packer.encode(record.attachments)
            self._connection.execute(
                "INSERT INTO inputs (place, prompt, attachments, brief) VALUES (?, ?, ?, ?)",
                (key, run.prompt, attachments, brief),
                can_cache=is_cacheable(run.prompt, attachments, brief or b""),
            )

    def _flush_admissions(self) -> None:
        if self._admissions is not None and self._admissions.rows:
            self._connection.executemany(_INSERT_RUN, self._admissions.rows)
            self._admissions.rows.clear()

    def put(self, run: Run) -> None:
        """Replace a stored run. Number, prompt and rank are unchanged."""
        self._cache[run.run_id] = run
        key, body = self._first + run.number, _encode_run(run)
        if run.outcome is None and run.state != "folded":
            # Its columns `folded` and `outcome` have not changed, and a column that is not set costs no index update.
            query = "UPDATE runs SET body = ? WHERE place = ?"
            self._connection.execute(query, (body, key), can_cache=is_cacheable(body))
            return
        self._connection.execute(
            "UPDATE runs SET folded = ?, outcome = ?, body = ? WHERE place = ?",
            (run.state == "folded", run.outcome, body, key),
            can_cache=is_cacheable(body),
        )

    def delete(self, run_id: RunId) -> None:
        """Delete a run."""
        self._cache.pop(run_id, None)
        self._connection.execute("DELETE FROM runs WHERE workspace = ? AND run_id = ?", (self._workspace, run_id))

    def rank(self, run_id: RunId) -> int:
        """Return the position of a run in queue order, or 0."""
        for (rank,) in self._connection.execute(
            "SELECT rank FROM runs WHERE workspace = ? AND run_id = ?", (self._workspace, run_id)
        ):
            return int(rank)
        return 0

    def set_rank(self, run_id: RunId, rank: int) -> None:
        """Change the position of a run in queue order."""
        self._connection.execute(
            "UPDATE runs SET rank = ? WHERE workspace = ? AND run_id = ?", (rank, self._workspace, run_id)
        )

    def _select(self, condition: str, *values: str | int) -> list[Run]:
        rows = self._connection.execute(f"SELECT {_RUN_COLUMNS} FROM runs WHERE {condition}", values)
        return [self._decode(*row) for row in rows]

    def _by_rank(self, query: str, *values: str) -> list[Run]:
        """Return runs in queue order. Sorted here, because SQLite plans an ordered search of this partial index anew
        for each execution, which takes ten times as long as the search.
        """
        rows = self._connection.execute(query, (self._workspace, *values))
        return [self._decode(*row) for *row, _ in sorted(rows, key=itemgetter(-1))]

    def _decode(self, key: int, body: bytes | None, prompt: str | None, event: bytes | None) -> Run:
        if body is None:
            return self._new_runs[key] if event is None else _event_decoder.decode(event).change.object
        run = _run_decoder.decode(body)
        return msgspec.structs.replace(run, prompt=prompt) if prompt else run


def _encode_run(run: Run) -> bytes:
    return _encoder.encode(msgspec.structs.replace(run, prompt="") if len(run.prompt) > _INLINE_PROMPT_LIMIT else run)


_session_decoder = msgspec.json.Decoder(Session)


class SessionTable:
    """The sessions of a workspace. Clears the caches of `runs` and `messages` when it deletes their rows."""

    def __init__(self, connection: apsw.Connection, workspace: int, runs: RunTable, messages: MessageTable) -> None:
        self._connection = connection
        self._workspace = workspace
        self._runs = runs
        self._messages = messages
        self._cache: dict[SessionId, Session] = {}

    def clear_cache(self) -> None:
        """Discard cached rows: they were changed by a rollback or by another table."""
        self._cache.clear()

    def get(self, session_id: SessionId) -> Session | None:
        """Return a session, or None."""
        session = self._cache.get(session_id)
        if session is None:
            for (body,) in self._connection.execute(
                "SELECT body FROM sessions WHERE workspace = ? AND id = ?", (self._workspace, session_id)
            ):
                session = self._cache[session_id] = _session_decoder.decode(body)
        return session

    def put(self, session: Session) -> None:
        """Insert or replace a session."""
        is_known = session.id in self._cache
        self._cache[session.id] = session
        body = _encoder.encode(session)
        if is_known:
            self._connection.execute(
                "UPDATE sessions SET updated_at = ?, body = ? WHERE workspace = ? AND id = ?",
                (session.updated_at, body, self._workspace, session.id),
                can_cache=is_cacheable(body),
            )
            return
        self._connection.execute(
            "INSERT INTO sessions (workspace, id, parent, updated_at, body) VALUES (?1, ?2, ?3, ?4, ?5)"
            " ON CONFLICT (workspace, id) DO UPDATE SET updated_at = ?4, body = ?5",
            (self._workspace, session.id, session.parent_session_id, session.updated_at, body),
            can_cache=is_cacheable(body),
        )

    def delete(self, session_id: SessionId) -> None:
        """Delete a session with all rows that belong to it, and reserve the ids of its runs.

        Messages, files and read marks refer to the session by foreign keys, so SQLite deletes them. Runs do not,
        because the check of the foreign key would look the session up a second time in each accept.
        """
        values = (self._workspace, session_id)
        # Open and ended runs have separate indexes.
        for state in ("IS NULL", "IS NOT NULL"):
            runs = f"FROM runs WHERE workspace = ? AND session = ? AND outcome {state}"
            self._connection.execute(f"INSERT OR IGNORE INTO removed_runs SELECT workspace, run_id {runs}", values)
            self._connection.execute(f"DELETE {runs}", values)
        self._connection.execute("DELETE FROM requests WHERE workspace = ? AND session = ?", values)
        self._connection.execute("DELETE FROM sessions WHERE workspace = ? AND id = ?", (self._workspace, session_id))
        self._runs.clear_cache()
        self._messages.clear_cache()
        self.clear_cache()

    def children(self, session_id: SessionId) -> list[SessionId]:
        """Return the ids of the sessions whose parent is this one."""
        rows = self._connection.execute(
            "SELECT id FROM sessions WHERE workspace = ? AND parent = ? ORDER BY ord", (self._workspace, session_id)
        )
        return [child for (child,) in rows]

    def top_level(self) -> list[Session]:
        """Return the sessions without a parent, latest change first."""
        rows = self._connection.execute(
            "SELECT body FROM sessions WHERE workspace = ? AND parent = '' ORDER BY updated_at DESC, ord DESC",
            (self._workspace,),
        )
        return [_session_decoder.decode(body) for (body,) in rows]

    def every(self) -> list[Session]:
        """Return all sessions, those of sub-agents included, latest change first."""
        rows = self._connection.execute(
            "SELECT body FROM sessions WHERE workspace = ? ORDER BY updated_at DESC, ord DESC", (self._workspace,)
        )
        return [_session_decoder.decode(body) for (body,) in rows]


_version_decoder = msgspec.json.Decoder(FileVersion)
_SELECT_VERSION = "SELECT f.body, c.content FROM files AS f LEFT JOIN contents AS c ON c.key = f.content"


def _decode_version(body: bytes, content: str | None) -> FileVersion:
    """Decode a row. Databases of format 1 stored the content in the body, not in `contents`."""
    file = _version_decoder.decode(body)
    return file if content is None else msgspec.structs.replace(file, content=content)


class FileTable:
    """File versions and read marks of a workspace. Equal contents are stored once, found by digest."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        """Return the last version of a file that the session has stored, or None."""
        for row in self._connection.execute(
            f"{_SELECT_VERSION} WHERE f.workspace = ? AND f.session = ? AND f.path = ? ORDER BY f.version DESC LIMIT 1",
            (self._workspace, session_id, path),
        ):
            return _decode_version(*row)
        return None

    def add(self, file: FileVersion) -> None:
        """Insert a new version of a file."""
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
            can_cache=is_cacheable(content),
        )
        return self._connection.last_insert_rowid()

    def set_read_mark(self, mark: ReadMark) -> None:
        """Insert a read mark, or replace that of the same session and path."""
        self._connection.execute(
            "INSERT INTO read_marks (workspace, session, path, read_at, digest) VALUES (?1, ?2, ?3, ?4, ?5)"
            " ON CONFLICT (workspace, session, path) DO UPDATE SET read_at = ?4, digest = ?5",
            (self._workspace, mark.session_id, mark.path, mark.read_at, mark.digest),
        )

    def of_session(self, session_id: SessionId) -> list[FileVersion]:
        """Return all file versions of a session by path and version."""
        rows = self._connection.execute(
            f"{_SELECT_VERSION} WHERE f.workspace = ? AND f.session = ? ORDER BY f.path, f.version",
            (self._workspace, session_id),
        )
        return [_decode_version(*row) for row in rows]

    def read_mark(self, session_id: SessionId, path: str) -> ReadMark | None:
        """Return the read mark of a file, or None."""
        for read_at, digest in self._connection.execute(
            "SELECT read_at, digest FROM read_marks WHERE workspace = ? AND session = ? AND path = ?",
            (self._workspace, session_id, path),
        ):
            return ReadMark(session_id, path, read_at, digest)
        return None

    def read_marks(self, session_id: SessionId) -> list[ReadMark]:
        """Return the read marks of a session, latest first."""
        rows = self._connection.execute(
            "SELECT path, read_at, digest FROM read_marks WHERE workspace = ? AND session = ?"
            " ORDER BY read_at DESC, path",
            (self._workspace, session_id),
        )
        return [ReadMark(session_id, path, read_at, digest) for path, read_at, digest in rows]


class RequestTable:
    """Permission requests and batches of questions that have no answer yet."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def add(self, request_id: str, session_id: SessionId) -> None:
        """Insert an open request."""
        self._connection.execute(
            "INSERT OR REPLACE INTO requests (workspace, id, session) VALUES (?, ?, ?)",
            (self._workspace, request_id, session_id),
        )

    def remove(self, request_id: str) -> bool:
        """Delete a request. Return True if it was open."""
        self._connection.execute("DELETE FROM requests WHERE workspace = ? AND id = ?", (self._workspace, request_id))
        return self._connection.changes() > 0
