"""All tables of one workspace over one connection; what the operations call `Tables`."""

import apsw

from holdfast.domain.ids import RunId, SessionId
from holdfast.storage.eventlog import EventLog
from holdfast.storage.files import FileTable
from holdfast.storage.messages import MessageTable
from holdfast.storage.runs import RunTable
from holdfast.storage.sessions import SessionTable

__all__ = ["Rows"]


class Rows:
    """Cheap to make: one for every batch and every read."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self.runs = RunTable(connection, workspace)
        self.sessions = SessionTable(connection, workspace)
        self.messages = MessageTable(connection, workspace)
        self.files = FileTable(connection, workspace)
        self.log = EventLog(connection, workspace)

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        return self.runs.admission(run_id, session_id)
