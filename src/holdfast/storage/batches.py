"""A batch of writes, carried out within the writer's transaction."""

from collections.abc import Sequence
from itertools import groupby

import apsw
import msgspec

from holdfast.domain.errors import OwnerChanged, StorageUnknown
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.ledger import Admit, Answer, Receipt, Refusal, Write
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
        packed = workspaces.answers(connection, row)
        return Committed(unpack(packed, row.newest, rows.log, rows.runs), row.key, row.newest, row.newest)
    if batch.ticket < row.ticket:
        raise StorageUnknown("A later batch was written already; what became of this one is no longer known.")
    answers = _carry_out(connection, batch.writes, rows, row.newest)
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    entries = [entry for receipt in receipts for entry in receipt.entries]
    rows.log.append(entries, at)
    workspaces.advance(connection, row, said=len(entries), ticket=batch.ticket, answers=pack(answers))
    return Committed(answers, row.key, row.newest, row.newest + len(entries))


def _carry_out(connection: apsw.Connection, writes: Sequence[Write], rows: Rows, newest: int) -> list[Answer]:
    """Each write in its turn. Accepts that follow upon each other share what they have to look up."""
    answers: list[Answer] = []
    for are_accepts, stretch in groupby(writes, _is_plain_accept):
        alike = list(stretch)
        if are_accepts and len(alike) > 1:
            rows.runs.foresee([admit for write in alike for admit in write.operations if isinstance(admit, Admit)])
        for write in alike:
            answer = _perform(connection, write, rows, newest)
            if isinstance(answer, Receipt):
                newest += len(answer.entries)
            answers.append(answer)
        rows.runs.settle()
    return answers


def _is_plain_accept(write: Write) -> bool:
    """An accept that changes no other run."""
    if len(write.operations) != 1:
        return False
    operation = write.operations[0]
    return isinstance(operation, Admit) and operation.run.delivery != "interrupt"


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
        rows.forget()
    connection.execute("RELEASE write")
    return answer
