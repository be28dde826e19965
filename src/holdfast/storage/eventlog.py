"""The numbered log of one workspace, and its pruning."""

from collections.abc import Iterable

import apsw

from holdfast.domain.ledger import Entry
from holdfast.storage.retention import PASS, Retention

__all__ = ["EventLog"]


class EventLog:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def append(self, entries: Iterable[Entry], at: int) -> None:
        self._connection.executemany(
            "INSERT INTO events (workspace, number, at, body) VALUES (?, ?, ?, ?)",
            [(self._workspace, entry.number, at, entry.body) for entry in entries],
        )

    def after(self, cursor: int, limit: int) -> list[tuple[int, bytes]]:
        rows = self._connection.execute(
            "SELECT number, body FROM events WHERE workspace = ? AND number > ? ORDER BY number LIMIT ?",
            (self._workspace, cursor, limit),
        )
        return [(int(number), bytes(body)) for number, body in rows]

    def oldest(self) -> int | None:
        return self._number("workspace = ?")

    def prune(self, retention: Retention, now: int) -> None:
        """Remove what need not be kept, a bounded number of events at a time."""
        bound = self._bound(retention, now)
        self._connection.execute("DELETE FROM events WHERE workspace = ? AND number < ?", (self._workspace, bound))
        self._connection.execute(
            "UPDATE workspaces SET held = held - ? WHERE key = ?", (self._connection.changes(), self._workspace)
        )

    def _bound(self, retention: Retention, now: int) -> int:
        """The first number that stays."""
        held, newest = next(
            self._connection.execute("SELECT held, newest FROM workspaces WHERE key = ?", (self._workspace,))
        )
        end = newest + 1
        too_many = self._skip(min(max(0, held - retention.events), 2 * PASS))
        too_old = self._number("workspace = ? AND at >= ?", retention.cutoff_ms(now))
        bounds = [max(end if too_many is None else too_many, end if too_old is None else too_old)]
        if (this_pass := self._skip(2 * PASS)) is not None:
            bounds.append(this_pass)
        for (number,) in self._connection.execute(
            "SELECT min(number) FROM runs WHERE workspace = ? AND outcome IS NULL", (self._workspace,)
        ):
            if number is not None:
                bounds.append(number)
        return min(bounds)

    def _skip(self, count: int) -> int | None:
        """The number of the event that has `count` held ones before it."""
        for (number,) in self._connection.execute(
            "SELECT number FROM events WHERE workspace = ? ORDER BY number LIMIT 1 OFFSET ?",
            (self._workspace, count),
        ):
            return int(number)
        return None

    def _number(self, condition: str, *values: int) -> int | None:
        for (number,) in self._connection.execute(
            f"SELECT number FROM events WHERE {condition} ORDER BY number LIMIT 1", (self._workspace, *values)
        ):
            return int(number)
        return None
