"""What every operation stores and says, once, for every store. Pure: rows come through `Tables`."""

from typing import assert_never

from holdfast.domain.ledger import (
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
from holdfast.storage.operations.context import (
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
    """Do the write. Its events are numbered from `newest` + 1; storing them is the caller's part.

    After a `Refusal` the tables may hold half of it: the caller undoes that, and gives the numbers out again.
    An operation looks before it stores: the refused one has stored nothing, those before it have.
    """
    context = Context(tables, newest)
    try:
        for operation in write.operations:
            _perform(operation, context)
    except Refused as refused:
        return Refusal(refused.reason)
    return context.receipt()


def _perform(operation: Operation, context: Context) -> None:
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
