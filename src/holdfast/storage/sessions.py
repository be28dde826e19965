"""The table of sessions of one workspace."""

import apsw
import msgspec

from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session
from holdfast.storage.large import may_keep
from holdfast.storage.messages import MessageTable
from holdfast.storage.runs import RunTable

__all__ = ["SessionTable"]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Session)


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
                session = self._known[session_id] = _decoder.decode(body)
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
        return [_decoder.decode(body) for (body,) in rows]

    def every(self) -> list[Session]:
        """All of them, children too, latest change first."""
        rows = self._connection.execute(
            "SELECT body FROM sessions WHERE workspace = ? ORDER BY updated_at DESC, ord DESC", (self._workspace,)
        )
        return [_decoder.decode(body) for (body,) in rows]
