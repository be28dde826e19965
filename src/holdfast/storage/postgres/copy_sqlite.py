"""Copies the database of a data directory to PostgreSQL, each workspace in one transaction.

The rows keep their ids, numbers and times. Before the commit the copy is compared with the source by the number of rows
and a digest of each table. A workspace that is there already is left alone, so a repeated call continues. The documents
of the directory (saved settings, trust) follow in one transaction of their own.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import apsw
import msgspec

from holdfast.domain.errors import StorageError
from holdfast.domain.event_erasure import event_subject
from holdfast.domain.ids import RunId, SessionId
from holdfast.storage.postgres.apply_call import content_digest, encode_run
from holdfast.storage.postgres.asyncpg_errors import ERRORS, read_error
from holdfast.storage.postgres.batch_keys import encode_path, searchable
from holdfast.storage.postgres.connection_pool import Connection
from holdfast.storage.sqlite_ledger import SqliteLedger, WorkspaceTables
from holdfast.storage.workspace_table import UNCLEAN_GAP

__all__ = ["Copied", "copy_documents", "copy_workspaces", "missing_documents"]

Values = tuple[Any, ...]
_encoder = msgspec.json.Encoder()
_packer = msgspec.msgpack.Encoder()


class Copied(msgspec.Struct, frozen=True):
    """The result for one workspace or document: copied, already there, or not copied because the database has another
    workspace ("taken") or document ("kept") in its place. `counts` are rows by table, or the bytes of a document.
    """

    path: str
    outcome: Literal["copied", "present", "taken", "kept"]
    counts: dict[str, int] = {}
    id: str = ""
    """The id of the workspace; empty for a document."""


class _Workspace(NamedTuple):
    key: int
    id: str
    path: bytes
    epoch: int
    newest: int


class _Rows(NamedTuple):
    """The rows of one table. `checked` is the content that is compared, in the order of `order`, by the expression
    `compared`.
    """

    table: str
    columns: tuple[str, ...]
    values: Sequence[Values]
    checked: Sequence[bytes]
    compared: str
    order: str


async def copy_workspaces(source: SqliteLedger, connection: Connection, place: str) -> list[Copied]:
    """Copy all workspaces. Raises `StorageError` if one cannot be copied; those before it stay copied."""
    try:
        workspaces = await source.database.read(_workspaces)
        return [await _copy(source, connection, place, workspace) for workspace in workspaces]
    except ERRORS as error:
        raise read_error(error) from None


async def _copy(source: SqliteLedger, connection: Connection, place: str, workspace: _Workspace) -> Copied:
    path = os.fsdecode(workspace.path)
    query = "SELECT id FROM holdfast.workspaces WHERE id = $1 OR (place = $2 AND path = $3)"
    present = [row["id"] for row in await connection.fetch(query, workspace.id, place, workspace.path)]
    if present:
        return Copied(path, "present" if present == [workspace.id] else "taken", id=workspace.id)
    tables = await source.database.read(lambda database: _read(database, workspace.key))
    events = next(len(rows.values) for rows in tables if rows.table == "events")
    async with connection.transaction():
        key = await connection.fetchval(
            "INSERT INTO holdfast.workspaces (id, place, path, epoch, newest, held) VALUES ($1, $2, $3, $4, $5, $6)"
            " RETURNING key",
            *(workspace.id, place, workspace.path, workspace.epoch, workspace.newest, events),
        )
        for rows in tables:
            await connection.copy_records_to_table(
                rows.table,
                schema_name="holdfast",
                columns=("workspace", *rows.columns),
                records=[(key, *values) for values in rows.values],
            )
            await _verify(connection, key, rows, path)
    return Copied(path, "copied", {rows.table: len(rows.values) for rows in tables}, workspace.id)


async def _verify(connection: Connection, key: int, rows: _Rows, path: str) -> None:
    """Compare a table with its source. Raises `StorageError`, which rolls the workspace back."""
    digests = f"string_agg(sha256({rows.compared}), ''::bytea ORDER BY {rows.order})"
    query = f"SELECT count(*), sha256(coalesce({digests}, '')) FROM holdfast.{rows.table} WHERE workspace = $1"
    found = await connection.fetchrow(query, key)
    expected = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in rows.checked)).digest()
    if found is None or (found[0], found[1]) != (len(rows.values), expected):
        raise StorageError(f"The copy of {path} differs from its source in {rows.table}: nothing of it was stored.")


async def missing_documents(connection: Connection, names: Iterable[str]) -> set[str]:
    """Return the names of documents that the database does not have and never had. Raises `StorageError`."""
    try:
        rows = await connection.fetch("SELECT name FROM holdfast.documents WHERE name = ANY($1)", list(names))
    except ERRORS as error:
        raise read_error(error) from None
    return set(names) - {row["name"] for row in rows}


async def copy_documents(connection: Connection, documents: Mapping[str, bytes]) -> list[Copied]:
    """Copy all documents that the database does not have, in one transaction. Raises `StorageError`.

    A document that it has is kept: servers may have changed it since an earlier copy.
    """
    results = []
    try:
        async with connection.transaction():
            for name, content in documents.items():
                is_new = await connection.fetchval("SELECT holdfast.document_put($1, 0, $2)", name, content)
                query = "SELECT sha256(body) FROM holdfast.documents WHERE name = $1"
                is_same = await connection.fetchval(query, name) == hashlib.sha256(content).digest()
                if is_new and not is_same:
                    raise StorageError(
                        f"The copy of {name} differs from its source: no settings and no trust were stored."
                    )
                counts = {"bytes": len(content)} if is_new else {}
                results.append(Copied(name, "copied" if is_new else "present" if is_same else "kept", counts))
    except ERRORS as error:
        raise read_error(error) from None
    return results


def _workspaces(database: apsw.Connection) -> list[_Workspace]:
    rows = database.execute("SELECT key, id, path, epoch, newest, clean FROM workspaces ORDER BY key")
    return [
        # After an unclean end, numbers that clients have seen may be missing: they must not be used again.
        _Workspace(key, id_, bytes(path), epoch, newest if clean else newest + UNCLEAN_GAP)
        for key, id_, path, epoch, newest, clean in rows
    ]


def _read(database: apsw.Connection, key: int) -> list[_Rows]:
    rows = WorkspaceTables(database, key)
    sessions = [SessionId(id_) for (id_,) in database.execute("SELECT id FROM sessions WHERE workspace = ?", (key,))]
    return [
        _bodies(database, key, "sessions", ("id", "parent", "updated_at")),
        _bodies(database, key, "messages", ("id", "session", "run_id")),
        _growth(database, key),
        _runs(database, key, rows),
        _ids(database, key, "removed_runs", ("run_id",)),
        _ids(database, key, "requests", ("id", "session")),
        _events(rows),
        *_files(rows, sessions),
        _marks(rows, sessions),
    ]


def _clean(value: object) -> object:
    return searchable(value) if isinstance(value, str) else value


def _bodies(database: apsw.Connection, key: int, table: str, columns: tuple[str, ...]) -> _Rows:
    query = f"SELECT {', '.join(columns)}, body FROM {table} WHERE workspace = ? ORDER BY ord"
    values: list[Values] = [(*map(_clean, ids), bytes(body)) for *ids, body in database.execute(query, (key,))]
    return _Rows(table, (*columns, "body"), values, [row[-1] for row in values], "body", "ord")


def _growth(database: apsw.Connection, key: int) -> _Rows:
    found = database.execute(
        "SELECT m.id, g.body FROM messages AS m JOIN growth AS g ON g.message = m.ord WHERE m.workspace = ?"
        " ORDER BY g.ord",
        (key,),
    )
    values = [(searchable(message), bytes(body)) for message, body in found]
    return _Rows("growth", ("message", "body"), values, [body for _, body in values], "body", "ord")


_RUN_COLUMNS = (
    *("run_id", "number", "session", "rank", "is_folded", "outcome"),
    *("body_hash", "body", "prompt", "attachments", "brief"),
)


def _runs(database: apsw.Connection, key: int, rows: WorkspaceTables) -> _Rows:
    values: list[Values] = []
    query = "SELECT run_id, rank FROM runs WHERE workspace = ? ORDER BY place"
    for run_id, rank in database.execute(query, (key,)).fetchall():
        record = rows.runs.record(RunId(str(run_id)))
        assert record is not None
        run = record.run
        attachments = _packer.encode(record.attachments) if record.attachments else None
        brief = None if record.brief is None else _packer.encode(record.brief)
        state = (run.run_id, run.number, searchable(run.session_id), rank, run.state == "folded", run.outcome)
        values.append((*state, bytes(record.body_hash), encode_run(run), run.prompt.encode(), attachments, brief))
    checked = [b"".join(item or b"" for item in row[6:]) for row in values]
    compared = "body_hash || body || prompt || coalesce(attachments, '') || coalesce(brief, '')"
    return _Rows("runs", _RUN_COLUMNS, values, checked, compared, "number")


def _ids(database: apsw.Connection, key: int, table: str, columns: tuple[str, ...]) -> _Rows:
    query = f"SELECT {', '.join(columns)} FROM {table} WHERE workspace = ?"
    values = [tuple(searchable(str(value)) for value in row) for row in database.execute(query, (key,))]
    checked = sorted(row[0].encode() for row in values)
    return _Rows(table, columns, values, checked, f"convert_to({columns[0]}, 'UTF8')", columns[0])


def _events(rows: WorkspaceTables) -> _Rows:
    values: list[Values] = []
    for number, at, body in rows.log.dated_after(0, -1):
        subject = event_subject(body)
        values.append((number, at, searchable(subject.session), subject.type == "run_complete", body))
    checked = [row[0].to_bytes(8) + row[1].to_bytes(8) + row[4] for row in values]
    columns = ("number", "at", "session", "is_end", "body")
    return _Rows("events", columns, values, checked, "int8send(number) || int8send(at) || body", "number")


def _files(rows: WorkspaceTables, sessions: Iterable[SessionId]) -> list[_Rows]:
    values: list[Values] = []
    contents: dict[bytes, bytes] = {}
    for session in sessions:
        for file in rows.files.of_session(session):
            digest = content_digest(file)
            contents[digest] = file.content.encode()
            body = _encoder.encode(msgspec.structs.replace(file, content=""))
            values.append((searchable(session), encode_path(file.path), file.version, digest, body))
    values.sort(key=lambda row: (row[0].encode(), row[1], row[2]))
    checked = [row[1] + row[3] + row[4] for row in values]
    columns = ("session", "path", "version", "digest", "body")
    order = "session, path, version"
    kept = sorted(contents.items())
    return [
        _Rows("contents", ("digest", "content"), kept, [content for _, content in kept], "content", "digest"),
        _Rows("files", columns, values, checked, "path || digest || body", order),
    ]


def _marks(rows: WorkspaceTables, sessions: Iterable[SessionId]) -> _Rows:
    marks = [mark for session in sessions for mark in rows.files.read_marks(session)]
    values = [(searchable(mark.session_id), encode_path(mark.path), _encoder.encode(mark)) for mark in marks]
    values.sort(key=lambda row: (row[0].encode(), row[1]))
    return _Rows("read_marks", ("session", "path", "body"), values, [row[2] for row in values], "body", "session, path")
