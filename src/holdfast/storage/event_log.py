"""The numbered event log of one workspace, its retention and its pruning.

Events are stored as the bytes that are sent to subscribers, ordered by number. Pruning removes the oldest events in
passes of bounded size, after the results of a group were delivered. Deleting a session empties its events but keeps
their numbers, so that a cursor stays valid.
"""

from collections.abc import Callable, Collection, Sequence

import apsw
import msgspec

from holdfast.domain.event_erasure import event_subject, redact_body, session_of
from holdfast.domain.ids import SessionId
from holdfast.domain.store_operations import Entry
from holdfast.storage.sqlite_tables import composite_key, is_cacheable, key_range, number_of

__all__ = ["PRUNE_INTERVAL", "EventLog", "Retention"]


PRUNE_INTERVAL = 1_000
"""Number of new events after which the log is pruned. A pass removes at most twice as many events, so pruning is faster
than the growth of the log and never occupies the writer for long.
"""


class Retention(msgspec.Struct, frozen=True):
    """Amount of the log to keep: the newest `events`, unless they are older than `days`.

    Events since the accept of a run that has not ended are kept in any case: recovery and clients that reconnect need
    them.
    """

    events: int = 100_000
    days: float = 30

    def cutoff_ms(self, now_ms: int) -> int:
        """Return the time before which events are too old."""
        return now_ms - int(self.days * 86_400_000)

    def is_due(self, before: int, after: int) -> bool:
        """Return True if a batch that advanced the numbers from `before` to `after` completes an interval."""
        return before // PRUNE_INTERVAL != after // PRUNE_INTERVAL


class EventLog:
    """The numbered events of one workspace."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace
        self._first, self._last = key_range(workspace)
        self._removed: dict[str, int] = {}
        """Sessions that the current batch deletes, with the last number before the deletion."""

    def clear_cache(self) -> None:
        """Forget the deletions of this batch, because they were rolled back."""
        self._removed.clear()

    def append(self, entries: Sequence[Entry], at: int) -> None:
        """Store the events of a batch with the time `at`."""
        if not entries:
            return
        self._connection.executemany(
            "INSERT INTO events (place, at, body) VALUES (?, ?, ?)",
            [(self._first + entry.number, at, self._stored_body(entry)) for entry in entries],
            can_cache=is_cacheable(entries[-1].body),
        )

    def _stored_body(self, entry: Entry) -> bytes:
        """Return the body to store. It is emptied if a later write of the same batch deletes the session."""
        if self._removed and entry.number <= self._removed.get(session_of(entry.event), 0):
            return redact_body(entry.body, session_of(entry.event))
        return entry.body

    def remove_sessions(self, sessions: Collection[SessionId], newest: int) -> None:
        """Empty every event of these sessions up to number `newest`, those that are not stored yet included."""
        self._removed.update(dict.fromkeys(sessions, newest))
        self.erase_content(lambda session: session in sessions)

    def erase_content(self, is_removed: Callable[[str], bool]) -> list[str]:
        """Remove the content of the stored events of these sessions. Return the ids of the runs that ended in them.

        There is no index by session: deletions are rare, and reading 100,000 events takes 0.2 s.
        """
        found: list[tuple[bytes, int]] = []
        runs: list[str] = []
        for key, body in self._connection.execute(
            "SELECT place, body FROM events WHERE place BETWEEN ? AND ?", (self._first, self._last)
        ):
            event = event_subject(body)
            if event.type != "removed" and is_removed(event.session):
                found.append((redact_body(body, event.session), key))
                if event.type == "run_complete":
                    runs.append(event.run)
        self._connection.executemany("UPDATE events SET body = ? WHERE place = ?", found)
        return runs

    def after(self, cursor: int, limit: int) -> list[tuple[int, bytes]]:
        """Return numbers and bodies of the events after `cursor`, at most `limit`."""
        return [(number, body) for number, _, body in self.dated_after(cursor, limit)]

    def dated_after(self, cursor: int, limit: int) -> list[tuple[int, int, bytes]]:
        """Return numbers, times and bodies of the events after `cursor`, at most `limit`."""
        rows = self._connection.execute(
            "SELECT place, at, body FROM events WHERE place > ? AND place <= ? ORDER BY place LIMIT ?",
            (composite_key(self._workspace, cursor), self._last, limit),
        )
        return [(number_of(key), at, bytes(body)) for key, at, body in rows]

    def oldest(self) -> int | None:
        """Return the number of the oldest stored event, or None."""
        return self._number_at_offset(0)

    def prune(self, retention: Retention, now: int) -> None:
        """Delete events that the retention does not cover, at most two intervals of them."""
        first_kept = self._first_kept(retention, now)
        keys = (self._first, composite_key(self._workspace, first_kept))
        self._connection.execute("DELETE FROM events WHERE place >= ? AND place < ?", keys)
        self._connection.execute(
            "UPDATE workspaces SET held = held - ? WHERE key = ?", (self._connection.changes(), self._workspace)
        )

    def _first_kept(self, retention: Retention, now: int) -> int:
        """Return the number of the first event that is kept."""
        held, newest = next(
            self._connection.execute("SELECT held, newest FROM workspaces WHERE key = ?", (self._workspace,))
        )
        end = newest + 1
        too_many = self._number_at_offset(min(max(0, held - retention.events), 2 * PRUNE_INTERVAL))
        too_old = self._first_since(retention.cutoff_ms(now))
        ends = [max(end if too_many is None else too_many, end if too_old is None else too_old)]
        if (this_pass := self._number_at_offset(2 * PRUNE_INTERVAL)) is not None:
            ends.append(this_pass)
        for (unended,) in self._connection.execute(
            "SELECT min(place) FROM runs WHERE workspace = ? AND outcome IS NULL", (self._workspace,)
        ):
            if unended is not None:
                ends.append(number_of(unended))
        return min(ends)

    def _number_at_offset(self, count: int) -> int | None:
        """Return the number of the event that has `count` stored events before it, or None."""
        for (key,) in self._connection.execute(
            "SELECT place FROM events WHERE place >= ? AND place <= ? ORDER BY place LIMIT 1 OFFSET ?",
            (self._first, self._last, count),
        ):
            return number_of(key)
        return None

    def _first_since(self, at: int) -> int | None:
        """Return the number of the first event stored at or after the time `at`, or None."""
        for (key,) in self._connection.execute(
            "SELECT place FROM events WHERE place >= ? AND place <= ? AND at >= ? ORDER BY place LIMIT 1",
            (self._first, self._last, at),
        ):
            return number_of(key)
        return None
