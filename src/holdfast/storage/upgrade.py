"""Work that an upgrade leaves to the next start: the content of sessions that earlier versions deleted.

Those versions removed the rows of a session and left its events, and the bytes of both, in the file. Everything here
can be repeated: it is done again at the next start if it is cut off, or if there is no room for it.
"""

import logging
import re
from contextlib import suppress
from pathlib import Path

import apsw

from holdfast.storage.eventlog import EventLog

__all__ = ["finish_upgrade"]

_TASK = "remove content"
_OUTPUT = re.compile(rb"[0-9a-f]{8}-\d+-(?:out|err)\.txt")
_log = logging.getLogger("holdfast.storage")


def finish_upgrade(connection: apsw.Connection, data_dir: Path) -> None:
    """Remove what deleted sessions have left in the log, in output files and in unused parts of the database file."""
    if not connection.execute("SELECT 1 FROM upkeep WHERE task = ?", (_TASK,)).fetchall():
        return
    _log.info("removing the content of sessions that earlier versions deleted")
    try:
        workspaces = connection.execute("SELECT key, id FROM workspaces").fetchall()
        for key, workspace in workspaces:
            with connection:
                _empty_log(connection, int(str(key)))
            _remove_outputs(connection, int(str(key)), data_dir / "workspaces" / str(workspace) / "output")
        connection.execute("VACUUM")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.execute("DELETE FROM upkeep WHERE task = ?", (_TASK,))
    except apsw.Error as error:
        _log.warning("it is tried again at the next start: %s", error)


def _empty_log(connection: apsw.Connection, workspace: int) -> None:
    rows = connection.execute("SELECT id FROM sessions WHERE workspace = ?", (workspace,))
    known = {str(session) for (session,) in rows}
    ended = EventLog(connection, workspace).empty(lambda session: bool(session) and session not in known)
    connection.executemany("INSERT OR IGNORE INTO removed_runs VALUES (?, ?)", [(workspace, run) for run in ended])


def _remove_outputs(connection: apsw.Connection, workspace: int, directory: Path) -> None:
    """Output files had no owner. Those that no message names are nobody's."""
    files = {path.name.encode(): path for path in directory.glob("*.txt")}
    if not files:
        return
    for (body,) in connection.execute("SELECT body FROM messages WHERE workspace = ?", (workspace,)):
        for name in _OUTPUT.findall(bytes(body)):
            files.pop(name, None)
    for path in files.values():
        with suppress(OSError):
            path.unlink()
