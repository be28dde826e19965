"""Rows in memory whose changes can be undone. Pure.

A write of several operations may be refused after some of them changed rows: the caller then returns to the mark that
it set before the write.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Journal", "Table"]

K = TypeVar("K")
V = TypeVar("V")


class Journal:
    """Undo steps of changes in memory, executed latest first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def note(self, undo: Callable[[], object]) -> None:
        """Record how to undo a change that was just made."""
        self._undo.append(undo)

    def mark(self) -> int:
        """Return a point to which `back_to` can return."""
        return len(self._undo)

    def back_to(self, mark: int) -> None:
        """Undo all changes since the mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def forget(self) -> None:
        """Make the changes permanent."""
        self._undo.clear()


class Table(Generic[K, V]):
    """A dictionary that records its changes in a journal. Its order means nothing."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def items(self) -> list[tuple[K, V]]:
        """Return keys and rows."""
        return list(self._rows.items())

    def __iter__(self) -> Iterator[V]:
        return iter(tuple(self._rows.values()))

    def __contains__(self, key: K) -> bool:
        return key in self._rows

    def __getitem__(self, key: K) -> V:
        return self._rows[key]

    def get(self, key: K) -> V | None:
        """Return a row, or None."""
        return self._rows.get(key)

    def set(self, key: K, value: V) -> None:
        """Insert or replace a row."""
        if key in self._rows:
            before = self._rows[key]
            self._journal.note(lambda: self._rows.__setitem__(key, before))
        else:
            self._journal.note(lambda: self._rows.pop(key))
        self._rows[key] = value

    def drop(self, key: K) -> None:
        """Delete a row, if there is one."""
        if key in self._rows:
            before = self._rows.pop(key)
            self._journal.note(lambda: self._rows.__setitem__(key, before))
