"""The tables of runs and of their long inputs."""

from collections.abc import Sequence
from operator import itemgetter

import apsw
import msgspec

from holdfast.domain.events import RunEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.ledger import Admit, RunRecord
from holdfast.domain.runs import Attachment, Brief, Run
from holdfast.storage.large import may_keep
from holdfast.storage.places import bounds, place

__all__ = ["RunTable"]

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

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Run)
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
            return self._fresh[where] if event is None else _event_decoder.decode(event).payload.payload
        run = _decoder.decode(body)
        return msgspec.structs.replace(run, prompt=prompt) if prompt else run


def _encode(run: Run) -> bytes:
    return _encoder.encode(msgspec.structs.replace(run, prompt="") if len(run.prompt) > _LONG else run)
