"""The rows and events of each operation, defined once for all stores. Pure: rows are accessed through `Tables`.

SQLite's tables and the memory store of `holdfast.testing` both implement `Tables`, so the two cannot differ in meaning.
"""

from typing import assert_never

from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    Announce,
    Answer,
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
    Refusal,
    RemoveRun,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.storage.operations import approvals, cancels, messages, queue, runs, sessions
from holdfast.storage.operations.write_context import (
    Context,
    FileRows,
    LogRows,
    MessageRows,
    Refused,
    RequestRows,
    RunRows,
    SessionRows,
    Tables,
)

__all__ = ["FileRows", "LogRows", "MessageRows", "RequestRows", "RunRows", "SessionRows", "Tables", "execute"]


def execute(write: Write, tables: Tables, newest: int) -> Answer:
    """Apply the operations of a write. Their events are numbered from `newest` + 1; the caller stores them.

    Each operation checks everything before it changes a row. After a `Refusal`, the refused operation has therefore
    changed nothing, but earlier operations of the write have: the caller rolls them back and reuses the numbers.
    """
    context = Context(tables, newest)
    try:
        for operation in write.operations:
            _apply(operation, context)
    except Refused as refused:
        return Refusal(refused.reason)
    return context.receipt()


def _apply(operation: Operation, context: Context) -> None:
    match operation:
        case Admit() | RemoveRun() | Reorder() | Redeliver():
            queue.perform(operation, context)
        case StartRun() | FoldRun() | StepRun() | EndRun():
            runs.perform(operation, context)
        case CancelSession() | CancelRun() | ClearQueue():
            cancels.perform(operation, context)
        case PutMessage() | GrowMessage() | DeleteMessage():
            messages.perform(operation, context)
        case CreateSession() | PatchSession() | DeleteSession() | AddFile() | MarkRead():
            sessions.perform(operation, context)
        case Announce() | CloseRequest():
            approvals.perform(operation, context)
        case _:
            assert_never(operation)
