"""The changes of a batch as arguments of the SQL function `apply`, and the statement that loads its rows. Pure."""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from holdfast.domain.event_erasure import redact_event, session_of
from holdfast.domain.events import MessageDelta, MessageDeltaEvent, MessagePart, MessagePartEvent, encode_event
from holdfast.domain.files import FileVersion
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import Entry
from holdfast.storage.postgres.batch_keys import Keys, encode_path, searchable
from holdfast.storage.postgres.loaded_tables import LoadedTables, RunRow

__all__ = ["APPLY", "apply_arguments", "content_digest", "encode_run", "has_changes", "load_statement", "sections"]

_encoder = msgspec.json.Encoder()
_packer = msgspec.msgpack.Encoder()


def sections(name: str) -> dict[str, str]:
    """Return the statements of an SQL file by the names in its comments."""
    text = files(__package__).joinpath("sql", name).read_text("utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name.strip(): statement.strip() for name, _, statement in parts}


_LOAD = sections("load.sql")
_NEEDED_BY = {
    "runs": ("runs",),
    "reserved_runs": ("admitted",),
    "open_runs": ("queues",),
    "ahead": ("counted",),
    "sessions": ("sessions",),
    "families": ("families",),
    "messages": ("messages",),
    "whole_messages": ("whole_messages",),
    "files": ("file_sessions", "file_paths"),
    "requests": ("requests",),
}
"""Parameters of each section. A section is left out if they are empty."""


def load_statement(workspace: int, keys: Keys) -> tuple[str, list[Any]]:
    """Return one statement for all rows that the keys name, and its arguments."""
    values: dict[str, list[Any]] = {
        name: [searchable(key) for key in getattr(keys, name)] for name in Keys.__struct_fields__ if name != "files"
    }
    values["file_sessions"] = [searchable(session) for session, _ in keys.files]
    values["file_paths"] = [encode_path(path) for _, path in keys.files]
    statements = [_LOAD["workspace"]]
    arguments: list[Any] = [workspace]
    for section, parameters in _NEEDED_BY.items():
        if values[parameters[0]]:
            statement = _LOAD[section]
            for parameter in parameters:
                arguments.append(values[parameter])
                statement = statement.replace(f":{parameter}::", f"${len(arguments)}::")
            statements.append(statement)
    return "\nUNION ALL\n".join(statements), arguments


_ARGUMENTS = 56
APPLY = f"SELECT holdfast.apply({', '.join(f'${number}' for number in range(1, _ARGUMENTS + 1))})"
"""Applies the arguments of `apply_arguments`."""

Columns = list[Any]


def has_changes(tables: LoadedTables, entries: Sequence[Entry]) -> bool:
    """Return True if the batch changed rows or made events."""
    return bool(entries) or any(_row_columns(tables))


def apply_arguments(tables: LoadedTables, entries: Sequence[Entry]) -> Columns:
    """Return the arguments of `apply` that follow the time: events, deletions, then rows."""
    return [
        [searchable(session_of(entry.event)) for entry in entries],
        [tables.log.is_end(entry) for entry in entries],
        [tables.log.stored_body(entry) for entry in entries],
        *_row_columns(tables),
    ]


def _row_columns(tables: LoadedTables) -> Columns:
    return [
        *_deletions(tables),
        *_sessions(tables),
        *_new_runs(tables),
        *_changed_runs(tables),
        *_messages(tables),
        *_files(tables),
        *_requests(tables),
    ]


def _deletions(tables: LoadedTables) -> Columns:
    removed = list(tables.sessions.deleted)
    ends = tables.log.redacted_ends()
    open_requests = tables.requests.rows
    return [
        [searchable(session) for session in removed],
        [encode_event(redact_event(None, session)) for session in removed],
        [number for number, _ in ends],
        [body for _, body in ends],
        list(tables.runs.reserved) if removed else [],
        list(tables.runs.deleted),
        [searchable(message) for message in tables.messages.deleted],
        [searchable(request) for request in tables.stored_requests if request not in open_requests],
    ]


def _sessions(tables: LoadedTables) -> Columns:
    rows = [row.session for key, row in tables.sessions.rows.items() if tables.stored_sessions.get(key) is not row]
    return [
        [searchable(session.id) for session in rows],
        [searchable(session.parent_session_id) for session in rows],
        [session.updated_at for session in rows],
        [_encoder.encode(session) for session in rows],
    ]


def encode_run(run: Run) -> bytes:
    """Return the body of a run. Its prompt is stored apart."""
    return _encoder.encode(msgspec.structs.replace(run, prompt=""))


def _new_runs(tables: LoadedTables) -> Columns:
    rows = [(row.run, row.record) for row in tables.runs.rows if row.record is not None]
    return [
        [run.run_id for run, _ in rows],
        [run.number for run, _ in rows],
        [searchable(run.session_id) for run, _ in rows],
        [record.body_hash for _, record in rows],
        [run.prompt.encode() for run, _ in rows],
        [_packer.encode(record.attachments) if record.attachments else None for _, record in rows],
        [None if record.brief is None else _packer.encode(record.brief) for _, record in rows],
        [encode_run(run) for run, _ in rows],
    ]


def _is_changed(row: RunRow, tables: LoadedTables) -> bool:
    """Return True for a stored run that has changed, and for a new one that has changed since it was added."""
    if row.record is None:
        return tables.stored_runs[row.run.run_id] is not row
    return row.rank != row.run.number or row.run.state == "folded" or row.run.outcome is not None


def _changed_runs(tables: LoadedTables) -> Columns:
    rows = [row for row in tables.runs.rows if _is_changed(row, tables)]
    return [
        [row.run.run_id for row in rows],
        [row.rank for row in rows],
        [row.run.state == "folded" for row in rows],
        [row.run.outcome for row in rows],
        [encode_run(row.run) for row in rows],
    ]


def _messages(tables: LoadedTables) -> Columns:
    rows = tables.messages.rows.items()
    added = [row.message for _, row in rows if not row.is_stored and row.message is not None]
    put = [row.message for _, row in rows if row.is_stored and row.is_put and row.message is not None]
    growth = [(searchable(key), _encode_growth(items)) for key, row in rows for items in row.growth]
    return [
        [searchable(message.id) for message in added],
        [searchable(message.session_id) for message in added],
        [searchable(message.run_id) for message in added],
        [_encoder.encode(message) for message in added],
        [searchable(message.id) for message in put],
        [searchable(message.run_id) for message in put],
        [_encoder.encode(message) for message in put],
        [message_id for message_id, _ in growth],
        [body for _, body in growth],
    ]


def _encode_growth(growth: Iterable[MessageDelta | MessagePart]) -> bytes:
    """Encode growth in the form of the live events with the same content."""
    return _encoder.encode(
        [MessageDeltaEvent(item) if isinstance(item, MessageDelta) else MessagePartEvent(item) for item in growth]
    )


def _files(tables: LoadedTables) -> Columns:
    added = list(tables.files.added)
    contents = {content_digest(file): file.content.encode() for file in added}
    marks = list(tables.files.marks)
    return [
        [searchable(file.session_id) for file in added],
        [encode_path(file.path) for file in added],
        [file.version for file in added],
        [content_digest(file) for file in added],
        [_encoder.encode(msgspec.structs.replace(file, content="")) for file in added],
        list(contents),
        list(contents.values()),
        [searchable(mark.session_id) for mark in marks],
        [encode_path(mark.path) for mark in marks],
        [_encoder.encode(mark) for mark in marks],
    ]


def content_digest(file: FileVersion) -> bytes:
    """Return the key of the content of a file."""
    return hashlib.blake2b(file.content.encode(), digest_size=32).digest()


def _requests(tables: LoadedTables) -> Columns:
    stored = tables.stored_requests
    rows = [(request, session) for request, session in tables.requests.rows.items() if stored.get(request) != session]
    return [[searchable(request) for request, _ in rows], [searchable(session) for _, session in rows]]
