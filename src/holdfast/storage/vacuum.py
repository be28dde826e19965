"""Removal of deleted content from the database file: incremental vacuum, and overwriting of unused bytes.

SQLite puts the pages of deleted rows on a free list. `IncrementalVacuum` returns them to the file system in short steps
while the writer is idle. `secure_delete` overwrites deleted cells, but not the copies that remain when a page is
reorganised; `overwrite_unused` does that after a deletion.
"""

import os
from collections.abc import Iterator

import apsw

__all__ = ["WAL_SIZE_LIMIT", "IncrementalVacuum", "enable", "overwrite_unused"]


SPARE_PAGES = 2_000
"""Free pages to keep, 8 MB: an event log that is pruned as fast as it grows reuses them."""

_PAGES_PER_STEP = 64
"""Pages to release per transaction. It takes about a millisecond, the longest time that a prompt waits for a step."""

WAL_SIZE_LIMIT = 4 * 1024 * 1024
"""Length to which SQLite truncates the WAL when it begins it anew after a very large write."""


def enable(connection: apsw.Connection) -> None:
    """Enable the incremental vacuum. It must be done before the first table exists: SQLite then maintains pointer maps,
    without which it cannot move pages.
    """
    connection.pragma("auto_vacuum", "INCREMENTAL")


class IncrementalVacuum:
    """Decides when to vacuum: from twice `SPARE_PAGES` free pages down to `SPARE_PAGES`.

    The distance between the two limits prevents a step after each pruning pass.
    """

    def __init__(self) -> None:
        self._is_running = False

    def has_work(self, connection: apsw.Connection) -> bool:
        """Return True if a step is due. Databases without pointer maps (decision 22) are never vacuumed."""
        free = connection.pragma("freelist_count")
        self._is_running = (
            free > (SPARE_PAGES if self._is_running else 2 * SPARE_PAGES) and connection.pragma("auto_vacuum") == 2
        )
        return self._is_running

    def step(self, connection: apsw.Connection) -> None:
        """Release some pages in one transaction. SQLite releases one page for each row that is fetched."""
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES_PER_STEP})").fetchall()


_PAGE_SIZE = 4_096
_FILE_HEADER_SIZE = 100
_INTERIOR_PAGES = (0x02, 0x05)
_BTREE_PAGES = (0x02, 0x05, 0x0A, 0x0D)


def overwrite_unused(connection: apsw.Connection, descriptor: int) -> None:
    """Overwrite the unused bytes of all pages of tables and indexes; `descriptor` is the database file's.

    Takes about a second for 300 MB. Raises `OSError` and `apsw.Error`.
    """
    if connection.pragma("page_size") != _PAGE_SIZE:
        return
    pages = connection.execute("SELECT pageno FROM dbstat WHERE pagetype IN ('leaf', 'internal')")
    has_changed = False
    for (number,) in pages:
        offset = (int(number) - 1) * _PAGE_SIZE
        page = os.pread(descriptor, _PAGE_SIZE, offset)
        for start, end in _unused_ranges(page, _FILE_HEADER_SIZE if number == 1 else 0):
            # Pages that are clean already are not written, which keeps the cost of a second erasure low.
            if page[start:end].strip(b"\0"):
                os.pwrite(descriptor, bytes(end - start), offset + start)
                has_changed = True
    if has_changed:
        os.fsync(descriptor)


def _unused_ranges(page: bytes, header: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the unused ranges of a b-tree page: the gap between the cell pointers and the cells, and
    the content of each free block. The layout is described in SQLite's "Database File Format", section 1.6.
    """
    kind = page[header] if len(page) == _PAGE_SIZE else 0
    if kind not in _BTREE_PAGES:
        return
    cells = _uint16(page, header + 3)
    yield header + (12 if kind in _INTERIOR_PAGES else 8) + 2 * cells, _uint16(page, header + 5)
    block, before = _uint16(page, header + 1), 0
    # Free blocks are listed in ascending order; anything else is a damaged page, which is left alone.
    while before < block <= _PAGE_SIZE - 4:
        yield block + 4, min(block + _uint16(page, block + 2), _PAGE_SIZE)
        before, block = block, _uint16(page, block)


def _uint16(page: bytes, offset: int) -> int:
    return int.from_bytes(page[offset : offset + 2], "big")
