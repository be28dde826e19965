"""Copying a data directory to PostgreSQL: everything that can be read is the same afterwards."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.migrate import command
from holdfast.domain.errors import DataDirectoryBusy, StorageError
from holdfast.domain.events import MessageDelta
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.store_operations import AddFile, GrowMessage, MarkRead, Snapshot
from holdfast.runtime.open_store import copy_to_postgres, open_postgres
from holdfast.storage.postgres import copy_sqlite
from holdfast.storage.postgres.store_address import StoreAddress
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message
from postgres_server import database, new_database
from storage.write_generator import WriteGenerator, everything


@pytest.fixture
async def address() -> AsyncIterator[StoreAddress]:
    async with new_database(is_empty=True) as dsn:
        yield StoreAddress(dsn)


async def _fill(data_dir: Path, seed: int, *, is_clean: bool = True) -> list[list[object]]:
    """Fill two workspaces with random rows. Return everything that can be read about them."""
    source = SqliteLedger(data_dir)
    found = []
    for number, path in enumerate(("/one", "/bytes/\udcff")):
        owner = await WorkspaceOwner.open(source, path)
        generator = WriteGenerator(2 * seed + number)
        for _ in range(80):
            await owner.batch(*generator.batch())
        if is_clean:
            await source.close_workspace(owner.id, owner.epoch)
        found.append(_comparable(await everything(owner)))
    await source.close()
    return found


def _comparable(found: list[object]) -> list[object]:
    """Without the types of sequences, and without the epoch, which grows when the copy is opened."""
    items = [msgspec.structs.replace(item, epoch=0) if isinstance(item, Snapshot) else item for item in found]
    return [list(item) if isinstance(item, tuple) else item for item in items]


@pytest.mark.parametrize("seed", range(4))
async def test_copy_contains_the_same(seed: int, tmp_path: Path, address: StoreAddress) -> None:
    before = await _fill(tmp_path, seed)
    results = await copy_to_postgres(tmp_path, address)
    assert [(item.path, item.outcome) for item in results] == [("/one", "copied"), ("/bytes/\udcff", "copied")]
    again = await copy_to_postgres(tmp_path, address)
    assert [item.outcome for item in again] == ["present", "present"]
    ledger = await open_postgres(tmp_path, address, 0)
    for path, expected in zip(("/one", "/bytes/\udcff"), before, strict=True):
        owner = await WorkspaceOwner.open(ledger, path)
        assert _comparable(await everything(owner)) == expected
        # The copy is written to like any other workspace.
        for _ in range(5):
            await owner.batch(*WriteGenerator(99).batch())
    await ledger.close()


async def test_numbers_skip_ahead_if_the_source_ended_uncleanly(tmp_path: Path, address: StoreAddress) -> None:
    ((_, bounds, *_), _) = await _fill(tmp_path, 1, is_clean=False)
    assert isinstance(bounds, list)
    await copy_to_postgres(tmp_path, address)
    ledger = await open_postgres(tmp_path, address, 0)
    record = await ledger.open_workspace("/one")
    assert record.newest == bounds[1] + 10_000
    await ledger.close()


async def test_live_source_is_refused(tmp_path: Path, address: StoreAddress) -> None:
    source = SqliteLedger(tmp_path)
    with pytest.raises(DataDirectoryBusy):
        await copy_to_postgres(tmp_path, address)
    await source.close()


async def test_copy_that_differs_is_rolled_back(
    tmp_path: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SqliteLedger(tmp_path)
    owner = await WorkspaceOwner.with_session(source)
    await owner.put(message("m", "text"))
    await owner.do(GrowMessage((MessageDelta(SessionId("s"), MessageId("m"), 0, 4, " and more"),)))
    await owner.admit("r")
    await owner.do(AddFile(FileVersion("f", SessionId("s"), "/a", "content", 0, 1, 1)))
    await owner.do(MarkRead(ReadMark(SessionId("s"), "/a", 1)))
    await source.close()
    real = copy_sqlite._verify
    for table in ("sessions", "messages", "growth", "runs", "events", "files", "contents", "read_marks"):

        async def spoil(
            connection: asyncpg.Connection, key: int, rows: copy_sqlite._Rows, path: str, table: str = table
        ) -> None:
            if rows.table == table:
                column = "content" if table == "contents" else "body"
                one = f"SELECT ctid FROM holdfast.{table} LIMIT 1"
                await connection.execute(f"UPDATE holdfast.{table} SET {column} = 'x' WHERE ctid = ({one})")
            await real(connection, key, rows, path)

        with monkeypatch.context() as patched:
            patched.setattr(copy_sqlite, "_verify", spoil)
            with pytest.raises(StorageError, match=f"differs from its source in {table}"):
                await copy_to_postgres(tmp_path, address)
    results = await copy_to_postgres(tmp_path, address)
    assert [item.outcome for item in results] == ["copied"]


async def test_directory_that_was_used_in_the_database_is_not_overwritten(
    tmp_path: Path, address: StoreAddress
) -> None:
    await _fill(tmp_path, 3)
    ledger = await open_postgres(tmp_path, address, 0)
    await ledger.open_workspace("/one")
    await ledger.close()
    assert [item.outcome for item in await copy_to_postgres(tmp_path, address)] == ["taken", "copied"]


def test_command_reports_each_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio  # noqa: PLC0415 - this test has no loop of its own

    asyncio.run(_fill(tmp_path, 1))
    run = CliRunner().invoke
    with database() as dsn:
        for lines in (["/one: copied", "\\udcff: copied"], ["/one: is already there"]):
            done = run(command, ["--from", str(tmp_path), "--to", dsn])
            assert done.exit_code == 0, done.output
            assert all(line in done.output for line in lines), done.output
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    for arguments, code, text in (
        (["--to", "postgresql://a:sEcret@h/d"], 2, "PGPASSFILE"),
        ([], 2, "--to or in HOLDFAST_STORE"),
        (["--to", "postgresql://a@127.0.0.1:1/d"], 4, "cannot be reached"),
    ):
        done = run(command, ["--from", str(tmp_path), *arguments])
        assert (done.exit_code, text in done.output, "sEcret" in done.output) == (code, True, False), done.output
    done = run(command, ["--from", str(tmp_path / "none"), "--to", "postgresql://a@127.0.0.1:1/d"])
    assert done.exit_code == 2
    assert "contains no holdfast.db" in done.output
