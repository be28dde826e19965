"""What was deleted leaves the file again, a few pages at a time, while nobody waits for the writer."""

import apsw

__all__ = ["LOG_BYTES", "Shrinker", "prepare"]

SPARE = 2_000
"""Pages that stay free, 8 MB: a log that is pruned as fast as it grows takes the same pages again and again."""

_STEP = 64
"""Pages given back in one transaction, about a millisecond's work: as long as a prompt may have to wait for it."""

LOG_BYTES = 4 * 1024 * 1024
"""A log that one huge write has made longer is cut to this when it begins anew."""


def prepare(connection: apsw.Connection) -> None:
    """For a database without tables: only in such a one SQLite can be told to keep track of what each page is for."""
    connection.pragma("auto_vacuum", "INCREMENTAL")


class Shrinker:
    """Begins when twice the spare pages are free, and goes on until only those are."""

    def __init__(self) -> None:
        self._is_at_it = False

    def has_work(self, connection: apsw.Connection) -> bool:
        free = connection.pragma("freelist_count")
        self._is_at_it = free > (SPARE if self._is_at_it else 2 * SPARE) and connection.pragma("auto_vacuum") == 2
        return self._is_at_it

    def step(self, connection: apsw.Connection) -> None:
        """One transaction. SQLite gives back a page for each row that is asked for."""
        connection.execute(f"PRAGMA incremental_vacuum({_STEP})").fetchall()
