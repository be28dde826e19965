"""Usage statistics of the SQLite store."""

from collections.abc import Iterator
from typing import Any

import apsw

from holdfast.domain.usage import Stats
from holdfast.storage.stats_builder import StatsBuilder

__all__ = ["collect_stats"]


def collect_stats(connection: apsw.Connection, workspace: str | None, zone: int) -> Stats:
    """Return the statistics of one workspace, or of all workspaces if it is None."""
    builder = StatsBuilder(zone)
    paths: list[str] = []
    query = "SELECT key, path FROM workspaces WHERE ?1 IS NULL OR id = ?1 ORDER BY path"
    for key, path in list(connection.execute(query, (workspace,))):
        paths.append(bytes(path).decode("utf-8", "backslashreplace"))
        for (body,) in _rows(connection, "SELECT body FROM sessions WHERE workspace = ?", key):
            builder.add_session(body)
        for (body,) in _rows(connection, "SELECT body FROM messages WHERE workspace = ?", key):
            builder.add_message(body)
        for outcome, body, event in _rows(connection, _RUNS_QUERY, key):
            if body is not None:
                builder.add_run(outcome, body)
            else:
                builder.add_created_run(outcome, event)
    return builder.result(tuple(paths))


_RUNS_QUERY = (
    "SELECT runs.outcome, runs.body, events.body FROM runs LEFT JOIN events ON events.place = runs.place"
    " WHERE runs.workspace = ?"
)


def _rows(connection: apsw.Connection, query: str, key: int) -> Iterator[tuple[Any, ...]]:
    yield from connection.execute(query, (key,))
