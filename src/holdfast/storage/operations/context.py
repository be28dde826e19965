"""One write while it happens: the rows it changes, what it says, and how it is refused."""

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from holdfast.domain.events import Change, ChangeKind, DurableEvent, MessageDelta, MessagePart, RunEvent, encode_event
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import Entry, Receipt, RefusalReason, RunRecord
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session

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


# What the operations need to read and store: rows of one workspace, as domain types.


class RunRows(Protocol):
    def get(self, run_id: RunId) -> Run | None: ...

    def open_in(self, session_id: SessionId) -> Sequence[Run]:
        """The session's runs without an outcome, by rank."""

    def add(self, record: RunRecord) -> None:
        """A new run; its rank is its number, so it comes after all that are there."""

    def put(self, run: Run) -> None:
        """The run as it is now. Its number, prompt and rank stay."""

    def delete(self, run_id: RunId) -> None: ...

    def rank(self, run_id: RunId) -> int: ...

    def set_rank(self, run_id: RunId, rank: int) -> None: ...


class SessionRows(Protocol):
    def get(self, session_id: SessionId) -> Session | None: ...

    def put(self, session: Session) -> None:
        """Adds the session or replaces it."""

    def delete(self, session_id: SessionId) -> None:
        """The session with its messages, runs, files, read marks and requests, but not its children. The ids of its
        runs stay reserved.
        """

    def children(self, session_id: SessionId) -> Sequence[SessionId]: ...


class MessageRows(Protocol):
    def get(self, message_id: MessageId) -> Message | None:
        """The message as it was put, without what it has grown by."""

    def exists(self, message_id: MessageId) -> bool: ...

    def add(self, message: Message) -> None:
        """A new message, at the end of its session."""

    def put(self, message: Message) -> None:
        """The message as it is now, in its old place; what it had grown by is gone."""

    def add_growth(self, message_id: MessageId, growth: Sequence[MessageDelta | MessagePart]) -> None: ...

    def delete(self, message_id: MessageId) -> None: ...


class FileRows(Protocol):
    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        """The last version of the file that the session has stored."""

    def add(self, file: FileVersion) -> None: ...

    def mark(self, mark: ReadMark) -> None:
        """Replaces an earlier mark of the same session and path."""


class RequestRows(Protocol):
    """Requests for permission and batches of questions that are open."""

    def add(self, request_id: str, session_id: SessionId) -> None: ...

    def remove(self, request_id: str) -> bool:
        """Whether it was open."""


class LogRows(Protocol):
    def remove_sessions(self, sessions: Collection[SessionId], newest: int) -> None:
        """Empty every event of these sessions with a number up to `newest`, also those that are not stored yet."""


class Tables(Protocol):
    """The rows of one workspace."""

    def admission(self, run_id: RunId, session_id: SessionId) -> tuple[bool, bool, int]:
        """Whether there is or was such a run; whether there is such a session; and how many of the session's runs have
        no outcome and are not folded: those a new one waits for. One look, for it is in every accept's way.
        """

    @property
    def runs(self) -> RunRows: ...

    @property
    def sessions(self) -> SessionRows: ...

    @property
    def messages(self) -> MessageRows: ...

    @property
    def files(self) -> FileRows: ...

    @property
    def requests(self) -> RequestRows: ...

    @property
    def log(self) -> LogRows: ...


# One write while it happens: the rows it changes, what it says, and how it is refused.


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
