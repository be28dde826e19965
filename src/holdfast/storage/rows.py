"""All tables of one workspace over one connection; what the operations call `Tables`."""

import apsw

from holdfast.storage.eventlog import EventLog
from holdfast.storage.files import FileTable
from holdfast.storage.messages import MessageTable
from holdfast.storage.requests import RequestTable
from holdfast.storage.runs import RunTable
from holdfast.storage.sessions import SessionTable

__all__ = ["Rows"]


class Rows:
    """Cheap to make: one for every batch and every read. What it has looked up it knows until it is told to forget."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self.runs = RunTable(connection, workspace)
        self.messages = MessageTable(connection, workspace)
        self.sessions = SessionTable(connection, workspace, self.runs, self.messages)
        self.files = FileTable(connection, workspace)
        self.requests = RequestTable(connection, workspace)
        self.log = EventLog(connection, workspace)
        self.admission = self.runs.admission

    def forget(self) -> None:
        """Something was undone."""
        self.runs.forget()
        self.sessions.forget()
        self.messages.forget()
        self.log.forget()
