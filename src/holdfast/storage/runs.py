"""The tables of runs and of their long inputs."""

import apsw
import msgspec

from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.ledger import RunRecord
from holdfast.domain.runs import Attachment, Run

__all__ = ["RunTable"]

_LONG = 2_000
"""A prompt of more characters stands apart from the row, which is rewritten at every step of the run."""

_INPUT = "FROM inputs WHERE inputs.workspace = runs.workspace AND inputs.number = runs.number"
# A subquery costs a third of a join when there is nothing to join, as there mostly is not.
_RUN = f"body, (SELECT prompt {_INPUT})"

_ADMISSION = (
    "SELECT EXISTS (SELECT 1 FROM runs WHERE workspace = ?1 AND run_id = ?2),"
    " EXISTS (SELECT 1 FROM sessions WHERE workspace = ?1 AND id = ?3),"
    " (SELECT count(*) FROM runs WHERE workspace = ?1 AND session = ?3 AND folded = 0 AND outcome IS NULL)"
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Run)
_attachment_encoder = msgspec.msgpack.Encoder()
_attachment_decoder = msgspec.msgpack.Decoder(tuple[Attachment, ...])


class RunTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def get(self, run_id: RunId) -> Run | None:
        found = self._select("run_id = ?", run_id)
        return found[0] if found else None

    def record(self, run_id: RunId) -> RunRecord | None:
        for body, prompt, body_hash, attachments in self._connection.execute(
            f"SELECT {_RUN}, body_hash, (SELECT attachments {_INPUT}) FROM runs WHERE workspace = ? AND run_id = ?",
            (self._workspace, run_id),
        ):
            files = _attachment_decoder.decode(attachments) if attachments else ()
            return RunRecord(_decode(body, prompt), body_hash, files)
        return None

    def open_in(self, session_id: SessionId) -> list[Run]:
        return self._select("session = ? AND outcome IS NULL ORDER BY rank", session_id)

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        for taken, known, ahead in self._connection.execute(_ADMISSION, (self._workspace, run_id, session_id)):
            return bool(taken), bool(known), int(ahead)
        return False, False, 0

    def every_open(self) -> list[Run]:
        """Runs without an outcome, in the order in which they are to run."""
        return self._select("outcome IS NULL ORDER BY rank")

    def last_ended(self, limit: int) -> list[Run]:
        """Newest first."""
        return self._select("outcome IS NOT NULL ORDER BY number DESC LIMIT ?", limit)

    def page(self, session_id: SessionId | None, limit: int, before: int) -> list[Run]:
        """Newest first."""
        bound = before or (1 << 62)
        if session_id is None:
            return self._select("number < ? ORDER BY number DESC LIMIT ?", bound, limit)
        condition = "session = ? AND number < ? ORDER BY number DESC LIMIT ?"
        return self._select(condition, session_id, bound, limit)

    def add(self, record: RunRecord) -> None:
        run = record.run
        self._connection.execute(
            "INSERT INTO runs (workspace, number, run_id, session, rank, folded, outcome, body_hash, body)"
            " VALUES (?1, ?2, ?3, ?4, ?2, 0, ?5, ?6, ?7)",
            (self._workspace, run.number, run.run_id, run.session_id, run.outcome, record.body_hash, _encode(run)),
        )
        if record.attachments or len(run.prompt) > _LONG:
            self._connection.execute(
                "INSERT INTO inputs (workspace, number, prompt, attachments) VALUES (?, ?, ?, ?)",
                (self._workspace, run.number, run.prompt, _attachment_encoder.encode(record.attachments)),
            )

    def put(self, run: Run) -> None:
        self._connection.execute(
            "UPDATE runs SET folded = ?, outcome = ?, body = ? WHERE workspace = ? AND number = ?",
            (run.state == "folded", run.outcome, _encode(run), self._workspace, run.number),
        )

    def delete(self, run_id: RunId) -> None:
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
        rows = self._connection.execute(
            f"SELECT {_RUN} FROM runs WHERE workspace = ? AND {condition}", (self._workspace, *values)
        )
        return [_decode(body, prompt) for body, prompt in rows]


def _encode(run: Run) -> bytes:
    return _encoder.encode(msgspec.structs.replace(run, prompt="") if len(run.prompt) > _LONG else run)


def _decode(body: bytes, prompt: str | None) -> Run:
    run = _decoder.decode(body)
    return msgspec.structs.replace(run, prompt=prompt) if prompt else run
