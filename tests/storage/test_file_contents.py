"""Stored file versions: every version is kept, each distinct content once."""

from pathlib import Path

import apsw

from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import AddFile, CreateSession, DeleteSession, Operation, Write
from holdfast.storage.sqlite_ledger import SqliteLedger


def session(name: str) -> Operation:
    return CreateSession(Session(SessionId(name), SessionId(""), "", 0, 0, 0, MessageId(""), 0.0, 1, 1, False, 0))


def version(name: str, path: str, content: str) -> Operation:
    return AddFile(FileVersion(f"{name}{path}{content[:3]}", SessionId(name), path, content, 0, 1, 1))


def count_rows(data: Path) -> tuple[int, int]:
    connection = apsw.Connection(str(data / "holdfast.db"), flags=apsw.SQLITE_OPEN_READONLY)
    [(files,)] = connection.execute("SELECT count(*) FROM files")
    [(contents,)] = connection.execute("SELECT count(*) FROM contents")
    connection.close()
    return files, contents


async def test_content_is_stored_once_and_deleted_with_its_last_version(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "data")
    record = await ledger.open_workspace("/project")
    tickets = iter(range(1, 100))

    async def do(*operations: Operation) -> None:
        await ledger.commit(record.id, record.epoch, next(tickets), [Write(operations)])

    big, other = "x" * 100_000, "y" * 100_000
    await do(session("s"), session("t"))
    await do(*(version("s", "/a", content) for content in (big, other, big, other)))
    await do(version("t", "/b", big))
    assert count_rows(tmp_path / "data") == (5, 2)
    assert [file.content for file in await ledger.files(record.id, SessionId("s"))] == [big, other, big, other]
    await do(DeleteSession(SessionId("s")))
    assert count_rows(tmp_path / "data") == (1, 1)
    assert [file.content for file in await ledger.files(record.id, SessionId("t"))] == [big]
    await do(DeleteSession(SessionId("t")))
    assert count_rows(tmp_path / "data") == (0, 0)
    await ledger.close()
