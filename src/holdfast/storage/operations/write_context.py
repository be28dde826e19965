"""The context of a write: access to the rows of its workspace, its events, and its refusal."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from holdfast.domain.events import Change, ChangeKind, DurableEvent, MessageDelta, MessagePart, RunEvent, encode_event
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Entry, Receipt, RefusalReason, RunRecord

__all__ = [
    "Context",
    "FileRows",
    "LogRows",
    "MessageRows",
    "Refused",
    "RequestRows",
    "RunRows",
    "SessionRows",
    "Tables",
]


class RunRows(Protocol):
    """The runs of a workspace."""

    def get(self, run_id: RunId) -> Run | None:
        """Return a run, or None."""

    def open_in(self, session_id: SessionId) -> Sequence[Run]:
        """Return the runs of a session without an outcome, by rank."""

    def add(self, record: RunRecord) -> None:
        """Insert a new run. Its rank is its number, so it is the last of the queue."""

    def put(self, run: Run) -> None:
        """Replace a stored run. Number, prompt and rank are unchanged."""

    def delete(self, run_id: RunId) -> None:
        """Delete a run."""

    def rank(self, run_id: RunId) -> int:
        """Return the position of a run in queue order."""

    def set_rank(self, run_id: RunId, rank: int) -> None:
        """Change the position of a run in queue order."""


class SessionRows(Protocol):
    """The sessions of a workspace."""

    def get(self, session_id: SessionId) -> Session | None:
        """Return a session, or None."""

    def put(self, session: Session) -> None:
        """Insert or replace a session."""

    def delete(self, session_id: SessionId) -> None:
        """Delete a session with its messages, runs, files, read marks and requests, but not its children. The ids of
        its runs stay reserved.
        """

    def children(self, session_id: SessionId) -> Sequence[SessionId]:
        """Return the ids of the sessions whose parent is this one."""


class MessageRows(Protocol):
    """The messages of a workspace."""

    def get(self, message_id: MessageId) -> Message | None:
        """Return the message as it was last put, without later growth."""

    def exists(self, message_id: MessageId) -> bool:
        """Return True if the message is stored."""

    def add(self, message: Message) -> None:
        """Insert a new message at the end of its session."""

    def put(self, message: Message) -> None:
        """Replace a stored message at its position, and delete its growth."""

    def add_growth(self, message_id: MessageId, growth: Sequence[MessageDelta | MessagePart]) -> None:
        """Append text or parts to a message."""

    def delete(self, message_id: MessageId) -> None:
        """Delete a message with its growth."""


class FileRows(Protocol):
    """File versions and read marks of a workspace."""

    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        """Return the last version of the file that the session has stored, or None."""

    def add(self, file: FileVersion) -> None:
        """Insert a new version of a file."""

    def set_read_mark(self, mark: ReadMark) -> None:
        """Insert a read mark, or replace that of the same session and path."""


class RequestRows(Protocol):
    """Permission requests and batches of questions that have no answer yet."""

    def add(self, request_id: str, session_id: SessionId) -> None:
        """Insert an open request."""

    def remove(self, request_id: str) -> bool:
        """Delete a request. Return True if it was open."""


class LogRows(Protocol):
    """The stored events of a workspace."""

    def remove_sessions(self, sessions: Collection[SessionId], newest: int) -> None:
        """Empty every event of these sessions up to number `newest`, those that are not stored yet included."""


class Tables(Protocol):
    """The rows of one workspace, as domain types."""

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        """Return whether the run id is taken, now or by a deleted run; whether the session exists; and how many of its
        runs are ahead of a new one (no outcome, not folded). One query, because each accept needs it.
        """

    @property
    def runs(self) -> RunRows:
        """The runs."""

    @property
    def sessions(self) -> SessionRows:
        """The sessions."""

    @property
    def messages(self) -> MessageRows:
        """The messages."""

    @property
    def files(self) -> FileRows:
        """The file versions and read marks."""

    @property
    def requests(self) -> RequestRows:
        """The open requests."""

    @property
    def log(self) -> LogRows:
        """The stored events."""


class Refused(Exception):
    """The write is refused. `execute` catches it and returns a `Refusal`."""

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(reason)
        self.reason: RefusalReason = reason


class Context:
    """Collects the events and runs for the receipt of a write. Numbers follow `newest` without a gap."""

    __slots__ = ("_covered", "_entries", "is_input", "next_number", "tables")

    def __init__(self, tables: Tables, newest: int, *, is_input: bool = False) -> None:
        self.tables = tables
        self.is_input = is_input
        """Whether a node stores the write without owning the workspace."""
        self.next_number = newest + 1
        """The number of the next event."""
        self._entries: list[Entry] = []
        self._covered: dict[RunId, Run] = {}

    def add_event(self, event: DurableEvent) -> None:
        """Number and encode an event."""
        self._entries.append(Entry(self.next_number, event, encode_event(event)))
        self.next_number += 1

    def add_run_event(self, kind: ChangeKind, run: Run) -> None:
        """Add an event of a run without its prompt. Only `created` contains it, so that steps do not repeat it."""
        self.add_event(RunEvent(Change(kind, msgspec.structs.replace(run, prompt=""))))

    def include_run(self, run: Run) -> None:
        """Name the run in the receipt."""
        self._covered[run.run_id] = run

    def put_run(self, run: Run) -> None:
        """Store a changed run. A receipt that names it contains its state at the end of the write."""
        self.tables.runs.put(run)
        if run.run_id in self._covered:
            self._covered[run.run_id] = run

    def receipt(self) -> Receipt:
        """Return the receipt of the write."""
        return Receipt(tuple(self._entries), tuple(self._covered.values()))
