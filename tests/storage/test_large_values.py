"""R11: large values do not stay in memory once they are stored or read."""

import weakref
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from holdfast.domain.events import MessageDelta
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.runs import Attachment
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    CreateSession,
    EndRun,
    GrowMessage,
    Operation,
    PatchSession,
    PutMessage,
    StartRun,
)
from holdfast.storage.database import Database
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from holdfast.testing.gates import until

HUGE = "x" * 20_000_000
MAX_GROWTH = 10_000_000
"""The caches of all connections together need about six."""

STORED: list[Operation] = [
    CreateSession(msgspec.structs.replace(session("t"), title=HUGE)),
    PatchSession(SessionPatch(SessionId("s"), 1, title=HUGE)),
    PatchSession(SessionPatch(SessionId("s"), 1, title="short")),
    Admit(run("prompt", prompt=HUGE), b"hash"),
    Admit(run("file"), b"hash", attachments=(Attachment(HUGE.encode(), "a", "a", "text/plain"),)),
    StartRun(RunId("file"), 1),
    PutMessage(message("m", HUGE)),
    PutMessage(message("m", HUGE, updated_at=200)),
    PutMessage(message("m", HUGE, run="file", updated_at=300)),
    PutMessage(message("n")),
    GrowMessage((MessageDelta(SessionId("s"), MessageId("n"), 0, 0, HUGE),)),
    AddFile(FileVersion("f", SessionId("s"), "a.txt", HUGE, 0, 1, 1)),
    EndRun(RunId("file"), "completed", 1, error=HUGE, text=HUGE),
]


async def test_r11_no_statement_keeps_its_bound_values(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path)
    owner = await WorkspaceOwner.with_session(ledger)
    for operation in STORED:
        await owner.do(operation)
        assert apsw.memory_used() < MAX_GROWTH, type(operation).__name__
    await ledger.snapshot(owner.id, SessionId("s"))
    await ledger.events_after(owner.id, 0, 100)
    assert apsw.memory_used() < MAX_GROWTH
    await ledger.close()


class TrackedResult:
    """A result whose deletion can be observed."""


@pytest.mark.parametrize("writes", [True, False])
async def test_r11_no_thread_keeps_its_last_result(tmp_path: Path, *, writes: bool) -> None:
    with closing(Database.open(tmp_path)) as database:

        def work(_: apsw.Connection) -> TrackedResult:
            return TrackedResult()

        answer = weakref.ref(await (database.write(work, sync=False) if writes else database.read(work)))
        # The reply arrives before the thread is done with the job.
        await until(lambda: answer() is None)
