"""What is asked of the store, and what it answers.

A `Write` is a list of operations that happen together or not at all. Several writes of one workspace
go to the store as one numbered batch; each of them is done or refused on its own. The store hands out
the event numbers. Operations name what happened, not rows: what each one stores and says is decided
once, for every store, in `holdfast.storage.operations`.
"""

from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.events import (
    AskEvent,
    DurableEvent,
    MessageDelta,
    MessagePart,
    PermissionNotificationEvent,
    QuestionNotificationEvent,
)
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Attachment, Brief, Outcome, Run
from holdfast.domain.sessions import Session, SessionPatch

__all__ = [
    "AddFile",
    "Admit",
    "Announce",
    "Answer",
    "Briefing",
    "CancelRun",
    "CancelSession",
    "ClearQueue",
    "CloseRequest",
    "CreateSession",
    "DeleteMessage",
    "DeleteSession",
    "EndRun",
    "Entry",
    "FoldRun",
    "GrowMessage",
    "MarkRead",
    "Operation",
    "PatchSession",
    "PutMessage",
    "Receipt",
    "Redeliver",
    "Refusal",
    "RefusalReason",
    "RemoveRun",
    "Reorder",
    "RunRecord",
    "Snapshot",
    "StartRun",
    "StepRun",
    "WorkspaceRecord",
    "Write",
]


class Admit(msgspec.Struct, frozen=True):
    """A prompt is accepted. The store fills in `number`, `position` and `state`. One that interrupts marks every
    other run of its session that has not ended, as `CancelSession` does.

    Refused: `run_exists`, `unknown_session`, `busy` (a `reject` while the session has runs without an end).
    """

    run: Run
    body_hash: bytes
    attachments: tuple[Attachment, ...] = ()
    brief: Brief | None = None


class RemoveRun(msgspec.Struct, frozen=True):
    """A stored run was refused after all; its row goes away and `run deleted` is said. A run that has ended stays.

    `spared` are runs it had marked, as an interrupt does: the marks go away with it.
    """

    run_id: RunId
    spared: tuple[RunId, ...] = ()


class CancelSession(msgspec.Struct, frozen=True):
    """Marks every run of the session that has not ended. Nothing to mark: nothing is written or said."""

    session_id: SessionId
    by: str = ""


class CancelRun(msgspec.Struct, frozen=True):
    """Marks one run, unless it has ended. Refused: `unknown_run`."""

    run_id: RunId
    by: str = ""


class ClearQueue(msgspec.Struct, frozen=True):
    """Marks the runs of a session that have neither started nor been folded, but for those to `keep`."""

    session_id: SessionId
    keep: tuple[RunId, ...] = ()
    by: str = ""


class Reorder(msgspec.Struct, frozen=True):
    """The runs named trade places among themselves, so that they stand in this order. Says `run updated` for
    `moved`. Refused: `not_waiting` if any of them has started, been folded or ended, or is unknown.
    """

    order: tuple[RunId, ...]
    moved: RunId


class Redeliver(msgspec.Struct, frozen=True):
    """A waiting run gets another delivery. Refused: `not_waiting`."""

    run_id: RunId
    delivery: Literal["steer", "queue"]


class StartRun(msgspec.Struct, frozen=True):
    """A run begins its turn; one that is to stop begins it `cancelling`.

    Refused: `unknown_run`, `already_ended`, `already_started`.
    """

    run_id: RunId
    at: int


class FoldRun(msgspec.Struct, frozen=True):
    """A waiting run joins the turn of `host`. Refused: `unknown_run`, `already_ended`, `already_started`."""

    run_id: RunId
    host: RunId
    at: int


class StepRun(msgspec.Struct, frozen=True):
    """A run begins its `step`-th provider request. Refused: `unknown_run`, `already_ended`."""

    run_id: RunId
    step: int


class EndRun(msgspec.Struct, frozen=True):
    """The one end of a run: its row, then `run_complete`. Refused: `unknown_run`, `already_ended`."""

    run_id: RunId
    outcome: Outcome
    at: int
    error: str = ""
    message_id: MessageId = MessageId("")
    text: str = ""
    folded_into: RunId = RunId("")
    model_unreachable: bool = False


class PutMessage(msgspec.Struct, frozen=True):
    """A message as it is now: `created` the first time, `updated` later; what it had grown by is absorbed.

    A new message goes to the end of its session. Refused: `unknown_session`.
    """

    message: Message


class GrowMessage(msgspec.Struct, frozen=True):
    """What a message has grown by since it was put. Says nothing; unknown messages are passed over."""

    growth: tuple[MessageDelta | MessagePart, ...]


class DeleteMessage(msgspec.Struct, frozen=True):
    """Says `deleted`, with the message emptied of its parts; unknown messages are passed over."""

    message_id: MessageId


class CreateSession(msgspec.Struct, frozen=True):
    """Refused: `session_exists`."""

    session: Session


class PatchSession(msgspec.Struct, frozen=True):
    """Refused: `unknown_session`."""

    patch: SessionPatch


class DeleteSession(msgspec.Struct, frozen=True):
    """Removes the session and all that belongs to it, child sessions first, and their content from the log: numbers
    stay, run ids stay reserved, and each end keeps run id and outcome (`domain.removal`). Refused: `unknown_session`,
    `busy` while one of their runs has not ended.
    """

    session_id: SessionId


class AddFile(msgspec.Struct, frozen=True):
    """The store gives the version its number; content that is the last one already is not stored again.

    Refused: `unknown_session`.
    """

    file: FileVersion


class MarkRead(msgspec.Struct, frozen=True):
    """Says nothing; marks of unknown sessions are passed over."""

    mark: ReadMark


class Announce(msgspec.Struct, frozen=True):
    """Stores an event about a request for permission or a batch of questions. A new request can be closed from now on;
    one that the event closes is closed.
    """

    event: AskEvent


class CloseRequest(msgspec.Struct, frozen=True):
    """Closes a request by a numbered answer, withdrawal or expiry: the first one that is stored.

    Refused: `already_closed`, also for a request that was never stored.
    """

    event: PermissionNotificationEvent | QuestionNotificationEvent


Operation: TypeAlias = (
    Admit
    | RemoveRun
    | CancelSession
    | CancelRun
    | ClearQueue
    | Reorder
    | Redeliver
    | StartRun
    | FoldRun
    | StepRun
    | EndRun
    | PutMessage
    | GrowMessage
    | DeleteMessage
    | CreateSession
    | PatchSession
    | DeleteSession
    | AddFile
    | MarkRead
    | Announce
    | CloseRequest
)


class Write(msgspec.Struct, frozen=True):
    """Operations that happen together. With `sync` they are on the disk before the answer comes."""

    operations: tuple[Operation, ...]
    sync: bool = True


class Entry(msgspec.Struct, frozen=True):
    """A durable event with its number and its one encoding."""

    number: int
    event: DurableEvent
    body: bytes


class Receipt(msgspec.Struct, frozen=True):
    """The write is done. `runs` are those it admitted or marked, in their order, as they are now.

    A cancel's receipt lists every run it covers, also those that were marked before.
    """

    entries: tuple[Entry, ...] = ()
    runs: tuple[Run, ...] = ()


RefusalReason = Literal[
    "run_exists",
    "session_exists",
    "unknown_session",
    "unknown_run",
    "already_started",
    "already_ended",
    "not_waiting",
    "already_closed",
    "busy",
]


class Refusal(msgspec.Struct, frozen=True):
    """The write left no trace, and why."""

    reason: RefusalReason


Answer: TypeAlias = Receipt | Refusal


class RunRecord(msgspec.Struct, frozen=True):
    """A run with what only its owner needs: the hash of its request, the attached bytes, what the prompt stands for."""

    run: Run
    body_hash: bytes
    attachments: tuple[Attachment, ...] = ()
    brief: Brief | None = None


class Briefing(msgspec.Struct, frozen=True):
    """What a run needs to know to begin: itself, its session, and the conversation so far."""

    record: RunRecord
    session: Session
    messages: tuple[Message, ...]


class WorkspaceRecord(msgspec.Struct, frozen=True):
    """A directory the server works in. `epoch` grows each time somebody takes the workspace over.

    `oldest` is the smallest number still held, `newest` the last one given; after an unclean end the
    numbering jumps, so that a number once seen is never used again.
    """

    id: WorkspaceId
    path: str
    epoch: int
    oldest: int
    newest: int


class Snapshot(msgspec.Struct, frozen=True):
    """What is stored, true at one point of the log: `cursor`."""

    cursor: int
    epoch: int
    sessions: tuple[Session, ...]
    messages: tuple[Message, ...]
    runs: tuple[Run, ...]
