"""One write while it happens: the rows it changes, what it says, and how it is refused."""

import msgspec

from holdfast.domain.events import Change, ChangeKind, DurableEvent, RunEvent, encode_event
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import Entry, Receipt, RefusalReason
from holdfast.domain.runs import Run
from holdfast.storage.operations.tables import Tables

__all__ = ["Context", "Refused"]


class Refused(Exception):
    """The write cannot be done. Never leaves `execute`."""

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(reason)
        self.reason: RefusalReason = reason


class Context:
    """Gathers the receipt of a write. Numbers follow `newest` without a gap."""

    __slots__ = ("_covered", "_entries", "next_number", "tables")

    def __init__(self, tables: Tables, newest: int) -> None:
        self.tables = tables
        self.next_number = newest + 1
        """The number the next event gets."""
        self._entries: list[Entry] = []
        self._covered: dict[RunId, Run] = {}

    def say(self, event: DurableEvent) -> None:
        self._entries.append(Entry(self.next_number, event, encode_event(event)))
        self.next_number += 1

    def say_run(self, kind: ChangeKind, run: Run) -> None:
        """The run without its prompt: only `created` carries that, or each step would repeat it."""
        self.say(RunEvent(Change(kind, msgspec.structs.replace(run, prompt=""))))

    def cover(self, run: Run) -> None:
        """The receipt names this run."""
        self._covered[run.run_id] = run

    def put_run(self, run: Run) -> None:
        """Store a changed run; a receipt that names it tells how it is at the end of the write."""
        self.tables.runs.put(run)
        if run.run_id in self._covered:
            self._covered[run.run_id] = run

    def receipt(self) -> Receipt:
        return Receipt(tuple(self._entries), tuple(self._covered.values()))
