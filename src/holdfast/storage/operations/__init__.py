"""The rows and events of each operation, defined once for all stores. Pure: rows are accessed through `Tables`.

SQLite's tables and the memory store of `holdfast.testing` both implement `Tables`, so the two cannot differ in meaning.
"""

from typing import assert_never, get_args

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
    Input,
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

__all__ = [
    "FileRows",
    "LogRows",
    "MessageRows",
    "RequestRows",
    "RunRows",
    "SessionRows",
    "Tables",
    "check_inputs",
    "execute",
]

_INPUTS: tuple[type, ...] = get_args(Input)


def execute(write: Write, tables: Tables, newest: int, *, is_input: bool = False) -> Answer:
    """Apply the operations of a write. Their events are numbered from `newest` + 1; the caller stores them.

    Each operation checks everything before it changes a row. After a `Refusal`, the refused operation has therefore
    changed nothing, but earlier operations of the write have: the caller rolls them back and reuses the numbers.

    `is_input`: the write comes from a node that need not own the workspace. Its cancels are binding (`must_cancel`),
    because the owner learns of them only later. Raises `ValueError` for an operation that is no `Input`.
    """
    if is_input:
        check_inputs(write)
    context = Context(tables, newest, is_input=is_input)
    try:
        for operation in write.operations:
            _apply(operation, context)
    except Refused as refused:
        return Refusal(refused.reason)
    return context.receipt()


def check_inputs(write: Write) -> None:
    """Raise `ValueError` if a node that does not own the workspace may not store the write."""
    for operation in write.operations:
        is_of_run = isinstance(operation, PutMessage) and operation.message.run_id != ""
        if is_of_run or not isinstance(operation, _INPUTS):
            raise ValueError(f"Only the owner of a workspace may store {type(operation).__name__}.")


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
