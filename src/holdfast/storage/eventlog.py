"""The numbered log of one workspace, and its pruning."""

from collections.abc import Sequence

import apsw

from holdfast.domain.ledger import Entry
from holdfast.storage.large import may_keep
from holdfast.storage.places import bounds, number_at, place
from holdfast.storage.retention import PASS, Retention

__all__ = ["EventLog"]


class EventLog:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._first, self._last = bounds(workspace)

    def append(self, entries: Sequence[Entry], at: int) -> None:
        if not entries:
            return
        self._connection.executemany(
            "INSERT INTO events (place, at, body) VALUES (?, ?, ?)",
            [(self._first + entry.number, at, entry.body) for entry in entries],
            can_cache=may_keep(entries[-1].body),
        )

    def after(self, cursor: int, limit: int) -> list[tuple[int, bytes]]:
        return [(number, body) for number, _, body in self.dated_after(cursor, limit)]

    def dated_after(self, cursor: int, limit: int) -> list[tuple[int, int, bytes]]:
        rows = self._connection.execute(
            "SELECT place, at, body FROM events WHERE place > ? AND place <= ? ORDER BY place LIMIT ?",
            (place(self._workspace, cursor), self._last, limit),
        )
        return [(number_at(where), at, bytes(body)) for where, at, body in rows]

    def oldest(self) -> int | None:
        return self._skip(0)

    def prune(self, retention: Retention, now: int) -> None:
        """Remove what need not be kept, a bounded number of events at a time."""
        bound = self._bound(retention, now)
        places = (self._first, place(self._workspace, bound))
        self._connection.execute("DELETE FROM events WHERE place >= ? AND place < ?", places)
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
        too_old = self._first_since(retention.cutoff_ms(now))
        ends = [max(end if too_many is None else too_many, end if too_old is None else too_old)]
        if (this_pass := self._skip(2 * PASS)) is not None:
            ends.append(this_pass)
        for (unended,) in self._connection.execute(
            "SELECT min(place) FROM runs WHERE workspace = ? AND outcome IS NULL", (self._workspace,)
        ):
            if unended is not None:
                ends.append(number_at(unended))
        return min(ends)

    def _skip(self, count: int) -> int | None:
        """The number of the event that has `count` held ones before it."""
        for (where,) in self._connection.execute(
            "SELECT place FROM events WHERE place >= ? AND place <= ? ORDER BY place LIMIT 1 OFFSET ?",
            (self._first, self._last, count),
        ):
            return number_at(where)
        return None

    def _first_since(self, at: int) -> int | None:
        """The number of the first event that was stored then or later."""
        for (where,) in self._connection.execute(
            "SELECT place FROM events WHERE place >= ? AND place <= ? AND at >= ? ORDER BY place LIMIT 1",
            (self._first, self._last, at),
        ):
            return number_at(where)
        return None
