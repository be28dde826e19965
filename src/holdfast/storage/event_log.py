"""The numbered log of one workspace, and its pruning."""

from collections.abc import Callable, Collection, Sequence

import apsw
import msgspec

from holdfast.domain.deleted_sessions import about, empty_body, session_of
from holdfast.domain.ids import SessionId
from holdfast.domain.ledger import Entry
from holdfast.storage.tables import bounds, may_keep, number_at, place

__all__ = ["PASS", "EventLog", "Retention"]


# How much of the log is kept.

PASS = 1_000
"""After how many new numbers the log is looked at. A look removes at most twice as many events, so it keeps
up with the log and never holds the writer for long.
"""


class Retention(msgspec.Struct, frozen=True):
    """The newest `events`, as far as they are younger than `days`; more while a run that began there is unended."""

    events: int = 100_000
    days: float = 30

    def cutoff_ms(self, now_ms: int) -> int:
        """Events stored before this are too old."""
        return now_ms - int(self.days * 86_400_000)

    def is_due(self, before: int, after: int) -> bool:
        """Whether the numbering has come far enough since it was at `before`."""
        return before // PASS != after // PASS


# The numbered log of one workspace, and its pruning.


class EventLog:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._first, self._last = bounds(workspace)
        self._removed: dict[str, int] = {}
        """Sessions deleted by the current batch, and the last number before that."""

    def forget(self) -> None:
        """A deletion was undone."""
        self._removed.clear()

    def append(self, entries: Sequence[Entry], at: int) -> None:
        if not entries:
            return
        self._connection.executemany(
            "INSERT INTO events (place, at, body) VALUES (?, ?, ?)",
            [(self._first + entry.number, at, self._kept(entry)) for entry in entries],
            can_cache=may_keep(entries[-1].body),
        )

    def _kept(self, entry: Entry) -> bytes:
        """The body to store: an event of a session that the same batch deleted later has no content."""
        if self._removed and entry.number <= self._removed.get(session_of(entry.event), 0):
            return empty_body(entry.body, session_of(entry.event))
        return entry.body

    def remove_sessions(self, sessions: Collection[SessionId], newest: int) -> None:
        self._removed.update(dict.fromkeys(sessions, newest))
        self.empty(lambda session: session in sessions)

    def empty(self, is_removed: Callable[[str], bool]) -> list[str]:
        """Empty the stored events of these sessions. Return the ids of the runs that ended in them.

        Events have no index by session: deletions are rare, and a pass over 100,000 events takes 0.2 s.
        """
        found: list[tuple[bytes, int]] = []
        runs: list[str] = []
        for where, body in self._connection.execute(
            "SELECT place, body FROM events WHERE place BETWEEN ? AND ?", (self._first, self._last)
        ):
            event = about(body)
            if event.type != "removed" and is_removed(event.session):
                found.append((empty_body(body, event.session), where))
                if event.type == "run_complete":
                    runs.append(event.run)
        self._connection.executemany("UPDATE events SET body = ? WHERE place = ?", found)
        return runs

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
