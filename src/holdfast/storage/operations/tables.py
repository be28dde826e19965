"""What the operations need to read and store: rows of one workspace, as domain types.

A store offers these; it says nothing about when they are used. Whoever calls `execute` undoes what a
refused write has stored.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.domain.events import MessageDelta, MessagePart
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import RunRecord
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session

__all__ = ["FileRows", "LogRows", "MessageRows", "RequestRows", "RunRows", "SessionRows", "Tables"]


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
