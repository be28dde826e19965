"""A batch of writes, carried out within the writer's transaction."""

from collections.abc import Sequence

import apsw
import msgspec

from holdfast.domain.errors import OwnerChanged, StorageUnknown
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.ledger import Answer, Receipt, Refusal, Write
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
        answer = _perform(connection, write, rows, newest)
        if isinstance(answer, Receipt):
            newest += len(answer.entries)
        answers.append(answer)
    receipts = (answer for answer in answers if isinstance(answer, Receipt))
    rows.log.append((entry for receipt in receipts for entry in receipt.entries), at)
    said = newest - row.newest
    workspaces.advance(connection, row, said=said, ticket=batch.ticket, answers=pack(answers))
    return Committed(answers, row.key, row.newest, newest)


def _perform(connection: apsw.Connection, write: Write, rows: Rows, newest: int) -> Answer:
    """A refused operation has stored nothing itself, so only what came before it in the same write is undone.

    A savepoint costs a copy of every page that is changed after it: one for each of many writes is dear.
    """
    if len(write.operations) < 2:
        return execute(write, rows, newest)
    connection.execute("SAVEPOINT write")
    answer = execute(write, rows, newest)
    if isinstance(answer, Refusal):
        connection.execute("ROLLBACK TO write")
    connection.execute("RELEASE write")
    return answer
