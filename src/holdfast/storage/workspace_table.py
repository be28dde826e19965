"""The table of workspaces: the owner's epoch, the newest event number and the answers of the last batch."""

import os
import secrets

import apsw
import msgspec

from holdfast.domain.errors import OwnerChanged
from holdfast.domain.ids import WorkspaceId
from holdfast.storage.sqlite_tables import is_cacheable

__all__ = [
    "UNCLEAN_GAP",
    "WorkspaceRow",
    "advance",
    "find",
    "last_answers",
    "mark_clean",
    "paths_with_open_runs",
    "require_owner",
    "take_over",
]

UNCLEAN_GAP = 10_000
"""Event numbers to skip after an unclean end. Events of writes without sync are published before they are on disk. A
power cut can undo them, and their numbers must not be reused for other events.
"""

_COLUMNS = "key, id, epoch, newest, clean, ticket"


class WorkspaceRow(msgspec.Struct, frozen=True):
    """One row of the table. `clean` is true if the last owner closed the workspace properly."""

    key: int
    id: WorkspaceId
    epoch: int
    newest: int
    clean: bool
    ticket: int


def find(connection: apsw.Connection, workspace: WorkspaceId) -> WorkspaceRow | None:
    """Return the row of a workspace, or None."""
    return _select_one(connection, f"SELECT {_COLUMNS} FROM workspaces WHERE id = ?", workspace)


def require_owner(connection: apsw.Connection, workspace: WorkspaceId, epoch: int) -> WorkspaceRow:
    """Return the row, if `epoch` is the current one. Raises `OwnerChanged`."""
    row = find(connection, workspace)
    if row is None or row.epoch != epoch:
        raise OwnerChanged
    return row


def take_over(connection: apsw.Connection, path: str) -> WorkspaceRow:
    """Begin a new epoch of the workspace at `path`, and create its row the first time."""
    connection.execute(
        "INSERT INTO workspaces (id, path, epoch, newest, held, clean, ticket, answers)"
        " VALUES (?, ?, 0, 0, 0, 1, 0, x'') ON CONFLICT (path) DO NOTHING",
        (secrets.token_hex(16), os.fsencode(path)),
    )
    connection.execute(
        "UPDATE workspaces SET epoch = epoch + 1, newest = iif(clean, newest, newest + ?),"
        " clean = 0, ticket = 0, answers = x'' WHERE path = ?",
        (UNCLEAN_GAP, os.fsencode(path)),
    )
    row = _select_one(connection, f"SELECT {_COLUMNS} FROM workspaces WHERE path = ?", os.fsencode(path))
    if row is None:
        raise OwnerChanged
    return row


def mark_clean(connection: apsw.Connection, workspace: WorkspaceId, epoch: int) -> None:
    """Record that the owner closed the workspace properly, so that the next owner skips no numbers."""
    connection.execute("UPDATE workspaces SET clean = 1 WHERE id = ? AND epoch = ?", (workspace, epoch))


def advance(connection: apsw.Connection, row: WorkspaceRow, *, event_count: int, ticket: int, answers: bytes) -> None:
    """Store the ticket and the packed results of a batch with `event_count` events."""
    connection.execute(
        "UPDATE workspaces SET newest = newest + ?1, held = held + ?1, ticket = ?2, answers = ?3 WHERE key = ?4",
        (event_count, ticket, answers, row.key),
        can_cache=is_cacheable(answers),
    )


def last_answers(connection: apsw.Connection, row: WorkspaceRow) -> bytes:
    """Return the packed results of the last batch. Not part of the row, because only a repeated batch needs them."""
    for (packed,) in connection.execute("SELECT answers FROM workspaces WHERE key = ?", (row.key,)):
        return bytes(packed)
    return b""


def paths_with_open_runs(connection: apsw.Connection) -> list[str]:
    """Return the paths of the workspaces with runs that have not ended."""
    rows = connection.execute(
        "SELECT path FROM workspaces WHERE EXISTS"
        " (SELECT 1 FROM runs WHERE workspace = workspaces.key AND outcome IS NULL) ORDER BY key"
    )
    return [os.fsdecode(path) for (path,) in rows]


def _select_one(connection: apsw.Connection, sql: str, value: str | bytes) -> WorkspaceRow | None:
    for key, id_, epoch, newest, clean, ticket in connection.execute(sql, (value,)):
        return WorkspaceRow(key, id_, epoch, newest, bool(clean), ticket)
    return None
