"""The operations of the store and their results.

A `Write` is a list of operations that are applied together or not at all. Several writes of one workspace
are sent to the store as one numbered batch; each of them is done or refused on its own. The store assigns
the event numbers. Operations name facts, not rows: `holdfast.storage.operations` defines once, for every store,
the rows and events of each operation.
"""

from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.events import (
    ApprovalEvent,
    DurableEvent,
    MessageDelta,
    MessagePart,
    PermissionNotificationEvent,
    QuestionNotificationEvent,
)
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Attachment, Outcome, PromptExpansion, Run
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
    "Input",
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
    """Accept a prompt. The store sets `number`, `position` and `state`. A run that interrupts marks every other run of
    its session that has not ended, as `CancelSession` does.

    Refused: `run_exists`, `unknown_session`, `busy` (a `reject` while the session has runs without an end).
    """

    run: Run
    body_hash: bytes
    attachments: tuple[Attachment, ...] = ()
    brief: PromptExpansion | None = None


class RemoveRun(msgspec.Struct, frozen=True):
    """Remove a stored run that was refused after all, with a `run deleted` event. A run that has ended stays.

    `spared` are runs that it had marked, as an interrupt does: their marks are removed as well.
    """

    run_id: RunId
    spared: tuple[RunId, ...] = ()


class CancelSession(msgspec.Struct, frozen=True):
    """Mark every run of the session that has not ended. If there is none, nothing is written and no event is made."""

    session_id: SessionId
    by: str = ""


class CancelRun(msgspec.Struct, frozen=True):
    """Mark one run for cancellation, unless it has ended. Refused: `unknown_run`; `folded`, if it is an input of any
    node.
    """

    run_id: RunId
    by: str = ""


class ClearQueue(msgspec.Struct, frozen=True):
    """Mark the runs of a session that have neither started nor been folded, except those in `keep`.

    `keeps_next`: if no run of the session is active, except also the next one to start.
    """

    session_id: SessionId
    keep: tuple[RunId, ...] = ()
    by: str = ""
    keeps_next: bool = False


class Reorder(msgspec.Struct, frozen=True):
    """Exchange the positions of the named runs so that they are in this order, with a `run updated` event for `moved`.
    Refused: `not_waiting` if any of them has started, been folded or ended, or is unknown.
    """

    order: tuple[RunId, ...]
    moved: RunId


class Redeliver(msgspec.Struct, frozen=True):
    """Change the delivery of a waiting run. Refused: `not_waiting`."""

    run_id: RunId
    delivery: Literal["steer", "queue"]


class StartRun(msgspec.Struct, frozen=True):
    """Begin the turn of a run, in the state `cancelling` if it is marked.

    Refused: `unknown_run`, `already_ended`, `already_started`.
    """

    run_id: RunId
    at: int


class FoldRun(msgspec.Struct, frozen=True):
    """Fold a waiting run into the turn of `host`. Refused: `unknown_run`, `already_ended`, `already_started`,
    `must_cancel`.
    """

    run_id: RunId
    host: RunId
    at: int


class StepRun(msgspec.Struct, frozen=True):
    """Begin the `step`-th provider request of a run. Refused: `unknown_run`, `already_ended`."""

    run_id: RunId
    step: int


class EndRun(msgspec.Struct, frozen=True):
    """Store the single end of a run: its row, then `run_complete`. Refused: `unknown_run`, `already_ended`,
    `must_cancel` (a run with this mark that would complete or fail).
    """

    run_id: RunId
    outcome: Outcome
    at: int
    error: str = ""
    message_id: MessageId = MessageId("")
    text: str = ""
    folded_into: RunId = RunId("")
    model_unreachable: bool = False


class PutMessage(msgspec.Struct, frozen=True):
    """Store the current state of a message: `created` the first time, `updated` later. It replaces the stored growth.

    A new message is appended to its session. Refused: `unknown_session`.
    """

    message: Message


class GrowMessage(msgspec.Struct, frozen=True):
    """Store the growth of a message since its last `PutMessage`. Makes no event; unknown messages are skipped."""

    growth: tuple[MessageDelta | MessagePart, ...]


class DeleteMessage(msgspec.Struct, frozen=True):
    """Delete a message, with a `deleted` event without its parts; unknown messages are skipped."""

    message_id: MessageId


class CreateSession(msgspec.Struct, frozen=True):
    """Store a new session. Refused: `session_exists`."""

    session: Session


class PatchSession(msgspec.Struct, frozen=True):
    """Change a session. Refused: `unknown_session`."""

    patch: SessionPatch


class DeleteSession(msgspec.Struct, frozen=True):
    """Delete the session and everything that belongs to it, child sessions first, and their content from the log:
    numbers stay, run ids stay reserved, and each end keeps run id and outcome (`domain.removal`). Refused:
    `unknown_session`, `busy` while one of their runs has not ended.
    """

    session_id: SessionId


class AddFile(msgspec.Struct, frozen=True):
    """Add a version of a file. The store numbers it; content equal to that of the last version is not stored again.

    Refused: `unknown_session`.
    """

    file: FileVersion


class MarkRead(msgspec.Struct, frozen=True):
    """Store a read mark. Makes no event; marks of unknown sessions are skipped."""

    mark: ReadMark


class Announce(msgspec.Struct, frozen=True):
    """Store an event about a permission request or a batch of questions: it opens a new request, or closes the one that
    the event closes.
    """

    event: ApprovalEvent


class CloseRequest(msgspec.Struct, frozen=True):
    """Close a request by a numbered answer, withdrawal or expiry. The first one stored wins.

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

Input: TypeAlias = (
    Admit
    | CancelSession
    | CancelRun
    | ClearQueue
    | Reorder
    | Redeliver
    | CloseRequest
    | CreateSession
    | PatchSession
    | DeleteSession
    | PutMessage
)
"""Operations that any node may store, without owning the workspace. A message must belong to no run."""


class Write(msgspec.Struct, frozen=True):
    """Operations that are applied together. With `sync` they are on disk before the result is returned."""

    operations: tuple[Operation, ...]
    sync: bool = True


class Entry(msgspec.Struct, frozen=True):
    """A durable event with its number and its one encoding."""

    number: int
    event: DurableEvent
    body: bytes


class Receipt(msgspec.Struct, frozen=True):
    """The write is done. `runs` are those it admitted or marked, in their order and current state.

    The receipt of a cancel lists every run it covers, including those that were marked before.
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
    "folded",
    "must_cancel",
]


class Refusal(msgspec.Struct, frozen=True):
    """The write had no effect, for this reason."""

    reason: RefusalReason


Answer: TypeAlias = Receipt | Refusal


class RunRecord(msgspec.Struct, frozen=True):
    """A run with the data that only its owner needs: the hash of its request, the attached bytes, the brief of its
    prompt.
    """

    run: Run
    body_hash: bytes
    attachments: tuple[Attachment, ...] = ()
    brief: PromptExpansion | None = None


class Briefing(msgspec.Struct, frozen=True):
    """The data with which a run begins: its record, its session, and the conversation so far."""

    record: RunRecord
    session: Session
    messages: tuple[Message, ...]


class WorkspaceRecord(msgspec.Struct, frozen=True):
    """A directory the server works in. `epoch` grows with each change of the owning server.

    `oldest` is the smallest number still stored, `newest` the last one assigned; after an unclean end the
    numbering skips ahead, so that a number once seen is never used again.
    """

    id: WorkspaceId
    path: str
    epoch: int
    oldest: int
    newest: int


class Snapshot(msgspec.Struct, frozen=True):
    """The stored state at one point of the log, `cursor`."""

    cursor: int
    epoch: int
    sessions: tuple[Session, ...]
    messages: tuple[Message, ...]
    runs: tuple[Run, ...]
