"""The numbered migrations, and the making of a new database."""

import contextlib
import logging
import os
import re
from contextlib import suppress
from pathlib import Path

import apsw

from holdfast.storage import vacuum
from holdfast.storage.event_log import EventLog

__all__ = ["APPLICATION_ID", "create", "finish_upgrade", "migrate", "newest_version", "parts_by_version", "parts_of"]


APPLICATION_ID = 0x484C4446
"""Tells our databases from those of others: the letters HLDF."""


def _migrations() -> list[tuple[int, str]]:
    """Numbers and texts, in order."""
    scripts = Path(__file__).with_name("migrations").glob("*.sql")
    return sorted((int(script.name.split("_")[0]), script.read_text("utf-8")) for script in scripts)


def parts_of(connection: apsw.Connection) -> set[str]:
    """Tables with their columns, indexes and triggers, as names."""
    own = "FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"
    found = {f"{kind} {name}" for kind, name in connection.execute(f"SELECT type, name {own}")}
    columns = connection.execute(
        f"SELECT t.name, c.name FROM (SELECT name {own} AND type = 'table') AS t, pragma_table_info(t.name) AS c"
    )
    return found | {f"column {table}.{column}" for table, column in columns}


def parts_by_version() -> list[set[str]]:
    """What a database of each version consists of, from 0 to the newest."""
    versions: list[set[str]] = [set()]
    with contextlib.closing(apsw.Connection(":memory:")) as connection:
        for _, script in _migrations():
            connection.execute(script)
            versions.append(parts_of(connection))
    return versions


def newest_version() -> int:
    return _migrations()[-1][0]


def migrate(connection: apsw.Connection) -> None:
    """Bring the database up to date. Each migration is one transaction with its number."""
    version = connection.pragma("user_version")
    for number, script in _migrations():
        if number > version:
            with connection:
                connection.execute(script)
                connection.pragma("user_version", number)


def create(path: Path, vfs: str | None) -> None:
    """A new, empty database, under its name only when it is complete: one that is cut short is damaged, not new."""
    draft = path.with_name(path.name + ".new")
    _remove(draft)
    try:
        _make(draft, vfs)
        draft.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(draft)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove(draft: Path) -> None:
    for leftover in (draft, Path(f"{draft}-journal"), Path(f"{draft}-wal"), Path(f"{draft}-shm")):
        leftover.unlink(missing_ok=True)


def _make(draft: Path, vfs: str | None) -> None:
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with contextlib.closing(apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)) as connection:
        connection.pragma("synchronous", "FULL")
        vacuum.prepare(connection)
        migrate(connection)
        # An empty database has no past.
        connection.execute("DELETE FROM upkeep")
        connection.pragma("journal_mode", "WAL")


# Work that an upgrade leaves to the next start: the content of sessions that earlier versions deleted.

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
