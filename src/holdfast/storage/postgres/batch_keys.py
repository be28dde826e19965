"""The keys of the rows that the operations of a batch may touch. Pure.

PostgreSQL is read before the operations are executed, so their keys have to be known in advance. A key that is missing
here is an error of the program: `LoadedTables` raises `LookupError` instead of reporting that there is no such row.
"""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from holdfast.domain.events import PermissionRequestEvent, QuestionRequestEvent
from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    Announce,
    CancelRun,
    CancelSession,
    ClearQueue,
    CloseRequest,
    CreateSession,
    DeleteMessage,
    DeleteSession,
    EndRun,
    FoldRun,
    GrowMessage,
    MarkRead,
    Operation,
    PatchSession,
    PutMessage,
    Redeliver,
    RemoveRun,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.storage.operations.approvals import closed_by

__all__ = ["Keys", "encode_path", "keys_of", "searchable"]


def searchable(text: str) -> str:
    """Return an id as a value that PostgreSQL can store in a text column: without null characters and surrogates."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def encode_path(path: str) -> bytes:
    """Return the bytes of a path."""
    return path.encode("utf-8", "surrogatepass")


class Keys(msgspec.Struct):
    """The keys, by kind of row. `queues` are sessions whose open runs are needed, `counted` those for which the number
    of runs ahead suffices, `families` those that may be deleted with their descendants.
    """

    runs: set[str] = msgspec.field(default_factory=set)
    admitted: set[str] = msgspec.field(default_factory=set)
    queues: set[str] = msgspec.field(default_factory=set)
    counted: set[str] = msgspec.field(default_factory=set)
    sessions: set[str] = msgspec.field(default_factory=set)
    families: set[str] = msgspec.field(default_factory=set)
    messages: set[str] = msgspec.field(default_factory=set)
    whole_messages: set[str] = msgspec.field(default_factory=set)
    files: set[tuple[str, str]] = msgspec.field(default_factory=set)
    requests: set[str] = msgspec.field(default_factory=set)

    def ids(self) -> set[str]:
        """Return all keys that are ids."""
        sessions = self.queues | self.counted | self.sessions | self.families
        return self.runs | sessions | self.messages | self.whole_messages | self.requests


def keys_of(writes: Iterable[Write]) -> Keys:
    """Return the keys for all operations of a batch."""
    keys = Keys()
    created: set[str] = set()
    for write in writes:
        for operation in write.operations:
            _add(operation, keys)
            if isinstance(operation, CreateSession):
                created.add(operation.session.id)
    if keys.families:
        # A session may be older than its parent, and its parent may be created and deleted by one batch.
        keys.families |= created
    keys.messages -= keys.whole_messages
    return keys


def _add(operation: Operation, keys: Keys) -> None:
    match operation:
        case Admit() | RemoveRun() | Reorder() | Redeliver() | StartRun() | FoldRun() | StepRun() | EndRun():
            _add_run(operation, keys)
        case CancelRun(run_id=run_id):
            keys.runs.add(run_id)
        case CancelSession(session_id=session_id) | ClearQueue(session_id=session_id):
            keys.queues.add(session_id)
        case PutMessage() | GrowMessage() | DeleteMessage():
            _add_message(operation, keys)
        case CreateSession() | PatchSession() | DeleteSession() | AddFile() | MarkRead():
            _add_session(operation, keys)
        case Announce() | CloseRequest():
            _add_request(operation, keys)
        case _:
            assert_never(operation)


def _add_run(
    operation: Admit | RemoveRun | Reorder | Redeliver | StartRun | FoldRun | StepRun | EndRun, keys: Keys
) -> None:
    match operation:
        case Admit(run=run):
            keys.runs.add(run.run_id)
            keys.admitted.add(run.run_id)
            keys.sessions.add(run.session_id)
            keys.counted.add(run.session_id)
            if run.delivery == "interrupt":
                keys.queues.add(run.session_id)
        case RemoveRun(run_id=run_id, spared=spared):
            keys.runs.update((run_id, *spared))
        case Reorder(order=order, moved=moved):
            keys.runs.update((*order, moved))
        case Redeliver(run_id=run_id) | StartRun(run_id=run_id) | FoldRun(run_id=run_id):
            keys.runs.add(run_id)
        case StepRun(run_id=run_id) | EndRun(run_id=run_id):
            keys.runs.add(run_id)
        case _:
            assert_never(operation)


def _add_session(operation: CreateSession | PatchSession | DeleteSession | AddFile | MarkRead, keys: Keys) -> None:
    match operation:
        case CreateSession(session=session):
            keys.sessions.add(session.id)
        case PatchSession(patch=patch):
            keys.sessions.add(patch.session_id)
        case DeleteSession(session_id=session_id):
            keys.families.add(session_id)
            keys.sessions.add(session_id)
        case AddFile(file=file):
            keys.sessions.add(file.session_id)
            keys.files.add((file.session_id, file.path))
        case MarkRead(mark=mark):
            keys.sessions.add(mark.session_id)
        case _:
            assert_never(operation)


def _add_message(operation: PutMessage | GrowMessage | DeleteMessage, keys: Keys) -> None:
    match operation:
        case PutMessage(message=message):
            keys.messages.add(message.id)
            keys.sessions.add(message.session_id)
        case GrowMessage(growth=growth):
            keys.messages.update(item.message_id for item in growth)
        case DeleteMessage(message_id=message_id):
            keys.whole_messages.add(message_id)
        case _:
            assert_never(operation)


def _add_request(operation: Announce | CloseRequest, keys: Keys) -> None:
    event = operation.event
    if isinstance(event, PermissionRequestEvent | QuestionRequestEvent):
        keys.requests.add(event.change.object.id)
    else:
        keys.requests.add(closed_by(event))
