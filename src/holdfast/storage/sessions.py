"""The table of sessions of one workspace."""

import apsw
import msgspec

from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session

__all__ = ["SessionTable"]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Session)


class SessionTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def get(self, session_id: SessionId) -> Session | None:
        for (body,) in self._connection.execute(
            "SELECT body FROM sessions WHERE workspace = ? AND id = ?", (self._workspace, session_id)
        ):
            return _decoder.decode(body)
        return None

    def put(self, session: Session) -> None:
        self._connection.execute(
            "INSERT INTO sessions (workspace, id, parent, updated_at, body) VALUES (?1, ?2, ?3, ?4, ?5)"
            " ON CONFLICT (workspace, id) DO UPDATE SET updated_at = ?4, body = ?5",
            (
                self._workspace,
                session.id,
                session.parent_session_id,
                session.updated_at,
                _encoder.encode(session),
            ),
        )

    def delete(self, session_id: SessionId) -> None:
        """What belongs to it goes with it: the tables of messages, runs, files and marks refer to this one."""
        self._connection.execute("DELETE FROM sessions WHERE workspace = ? AND id = ?", (self._workspace, session_id))

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
