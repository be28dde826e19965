"""What was deleted leaves the file again, a few pages at a time, while nobody waits for the writer."""

import os
from collections.abc import Iterator

import apsw

__all__ = ["LOG_BYTES", "IncrementalVacuum", "overwrite_unused", "prepare"]


SPARE = 2_000
"""Pages that stay free, 8 MB: a log that is pruned as fast as it grows takes the same pages again and again."""

_STEP = 64
"""Pages given back in one transaction, about a millisecond's work: as long as a prompt may have to wait for it."""

LOG_BYTES = 4 * 1024 * 1024
"""A log that one huge write has made longer is cut to this when it begins anew."""


def prepare(connection: apsw.Connection) -> None:
    """For a database without tables: only in such a one SQLite can be told to keep track of what each page is for."""
    connection.pragma("auto_vacuum", "INCREMENTAL")


class IncrementalVacuum:
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


# Overwrites what SQLite leaves behind in pages that are in use.

_PAGE = 4_096
_FILE_HEADER = 100
_INTERIOR = (0x02, 0x05)
_TREE = (0x02, 0x05, 0x0A, 0x0D)


def overwrite_unused(connection: apsw.Connection, descriptor: int) -> None:
    """Overwrite the unused bytes of all pages of tables and indexes; `descriptor` is the database file's.

    Takes about a second for 300 MB. Raises `OSError` and `apsw.Error`.
    """
    if connection.pragma("page_size") != _PAGE:
        return
    pages = connection.execute("SELECT pageno FROM dbstat WHERE pagetype IN ('leaf', 'internal')")
    has_changed = False
    for (number,) in pages:
        where = (int(number) - 1) * _PAGE
        page = os.pread(descriptor, _PAGE, where)
        for start, end in _unused(page, _FILE_HEADER if number == 1 else 0):
            if page[start:end].strip(b"\0"):
                os.pwrite(descriptor, bytes(end - start), where + start)
                has_changed = True
    if has_changed:
        os.fsync(descriptor)


def _unused(page: bytes, header: int) -> Iterator[tuple[int, int]]:
    """The gap between the cell pointers and the cells, and the inside of every free block."""
    kind = page[header] if len(page) == _PAGE else 0
    if kind not in _TREE:
        return
    cells = _number(page, header + 3)
    yield header + (12 if kind in _INTERIOR else 8) + 2 * cells, _number(page, header + 5)
    block, before = _number(page, header + 1), 0
    while before < block <= _PAGE - 4:
        yield block + 4, min(block + _number(page, block + 2), _PAGE)
        before, block = block, _number(page, block)


def _number(page: bytes, place: int) -> int:
    return int.from_bytes(page[place : place + 2], "big")
