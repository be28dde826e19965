"""A batch of writes, carried out within the writer's transaction."""

from collections.abc import Sequence

import apsw
import msgspec

from holdfast.domain.errors import OwnerChanged, StorageUnknown
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.ledger import Answer, Refusal, Write
from holdfast.storage import workspaces
from holdfast.storage.answers import pack, unpack
from holdfast.storage.operations import execute
from holdfast.storage.rows import Rows

__all__ = ["Batch", "Committed", "commit_batch"]


class Batch(msgspec.Struct, frozen=True):
    workspace: WorkspaceId
    epoch: int
    ticket: int
    writes: tuple[Write, ...]


class Committed(msgspec.Struct, frozen=True):
    """What a batch was answered, and how far it took the numbering of the workspace with this key."""

    answers: Sequence[Answer]
    key: int
    before: int
    newest: int


def commit_batch(connection: apsw.Connection, batch: Batch, at: int) -> Committed:
    """Do the batch, or answer again what was answered when this ticket came first.

    A workspace that was closed in good order is no longer owned: a write that is not synced could be lost with its
    numbers, and the next owner would not know that they were seen.
    """
    row = workspaces.owned(connection, batch.workspace, batch.epoch)
    if row.clean:
        raise OwnerChanged("The workspace was closed: open it again before writing to it.")
    rows = Rows(connection, row.key)
    if batch.ticket == row.ticket:
        return Committed(unpack(row.answers, rows.log, rows.runs), row.key, row.newest, row.newest)
    if batch.ticket < row.ticket:
        raise StorageUnknown("A later batch was written already; what became of this one is no longer known.")
    answers: list[Answer] = []
    newest = row.newest
    for write in batch.writes:
        connection.execute("SAVEPOINT write")
        answer = execute(write, rows, newest)
        if isinstance(answer, Refusal):
            connection.execute("ROLLBACK TO write")
        else:
            rows.log.append(answer.entries, at)
            newest += len(answer.entries)
        connection.execute("RELEASE write")
        answers.append(answer)
    said = newest - row.newest
    workspaces.advance(connection, row, said=said, ticket=batch.ticket, answers=pack(answers))
    return Committed(answers, row.key, row.newest, newest)
