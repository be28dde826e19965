"""The table of open requests: permissions and batches of questions that wait for an answer."""

import apsw

from holdfast.domain.ids import SessionId

__all__ = ["RequestTable"]


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
