"""Copying a data directory to PostgreSQL: everything that can be read is the same afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.migrate import command
from holdfast.config.locations import locate_settings
from holdfast.config.saved_settings import ConfigStore
from holdfast.config.trust import TrustStore
from holdfast.domain.errors import BadRequest, DataDirectoryBusy, StorageError
from holdfast.domain.events import MessageDelta
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.store_operations import AddFile, GrowMessage, MarkRead, Snapshot
from holdfast.runtime.open_store import copy_to_postgres, open_postgres, open_shared_state
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


async def test_saved_settings_and_trust_are_copied(tmp_path: Path, address: StoreAddress) -> None:
    await _fill(tmp_path, 1)
    places = [locate_settings("/one", {}, data_dir=str(tmp_path), workspace_id=id_) for id_ in await _ids(tmp_path)]
    for number, place in enumerate(places):
        store = ConfigStore(*place.saved_settings)
        store.set(1, "permissions.allow", [f"bash:{number}"])
    store.set(0, "options.debug", value=True)
    store.set(0, "providers.mine", {"base_url": "http://a", "api_key": "sEcret"})
    store.set(1, "providers.other.api_key", "$FROM_ENVIRONMENT")
    TrustStore(places[0].trust_file).trust("/one", "digest", at=1.0)
    outcomes = [item.outcome for item in await copy_to_postgres(tmp_path, address)]
    assert outcomes == ["copied"] * 6

    ledger = await open_postgres(tmp_path, address, 0)
    documents = (await open_shared_state(ledger, "")).documents
    for number, place in enumerate(places):
        workspace = Path(place.saved_settings[1]).parent.name
        shared = locate_settings("/one", {}, data_dir=str(tmp_path), workspace_id=workspace, is_shared=True)
        found = ConfigStore(*shared.saved_settings, documents)
        assert found.read_scope(1)["permissions"] == {"allow": [f"bash:{number}"]}
        assert found.read_scope(0) == {"options": {"debug": True}, "providers": {"mine": {"base_url": "http://a"}}}
        assert TrustStore(shared.trust_file, documents).is_trusted("/one", "digest")
    assert found.read_scope(1)["providers"] == {"other": {"api_key": "$FROM_ENVIRONMENT"}}
    assert _keys(shared.keys_file) == ({"providers": {"mine": {"api_key": "sEcret"}}}, 0o600)
    rows = await ledger.pool.fetch("SELECT body FROM holdfast.documents")
    assert all(b"sEcret" not in row["body"] for row in rows)

    # What has changed in the database since is kept by a repeated call, and a removed key stays removed.
    user = ConfigStore(*shared.saved_settings, documents, keys_file=shared.keys_file)
    await asyncio.to_thread(user.remove, 0, "providers.mine")
    await ledger.close()
    outcomes = [item.outcome for item in await copy_to_postgres(tmp_path, address)]
    assert sorted(outcomes) == ["kept", *["present"] * 5]
    assert "sEcret" not in str(_keys(shared.keys_file))


@pytest.mark.parametrize("name", ["config.json", "trust.json"])
async def test_unreadable_settings_are_reported_before_anything_is_copied(
    name: str, tmp_path: Path, address: StoreAddress
) -> None:
    await _fill(tmp_path, 1)
    (tmp_path / name).write_text("[")
    with pytest.raises(BadRequest, match=f"{name} .*move it away"):
        await copy_to_postgres(tmp_path, address)
    (tmp_path / name).unlink()
    assert [item.outcome for item in await copy_to_postgres(tmp_path, address)] == ["copied"] * 2


async def test_documents_are_copied_together_or_not_at_all(
    tmp_path: Path, address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(tmp_path, 1)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "trust.json").write_text("{}")
    with monkeypatch.context() as patched:
        differs = "BEGIN NEW.body := 'x'; RETURN NEW; END"
        real = copy_sqlite.copy_documents

        async def spoil(connection: asyncpg.Connection, documents: Mapping[str, bytes]) -> list[copy_sqlite.Copied]:
            await connection.execute(
                f"CREATE FUNCTION pg_temp.spoil() RETURNS trigger LANGUAGE plpgsql AS $${differs}$$"
            )
            await connection.execute(
                "CREATE TRIGGER spoil BEFORE INSERT ON holdfast.documents FOR EACH ROW"
                " WHEN (NEW.name = 'trust.json') EXECUTE FUNCTION pg_temp.spoil()"
            )
            return await real(connection, documents)

        patched.setattr(copy_sqlite, "copy_documents", spoil)
        with pytest.raises(StorageError, match=r"trust.json differs from its source"):
            await copy_to_postgres(tmp_path, address)
    # The trigger was temporary, like its function.
    assert [item.outcome for item in await copy_to_postgres(tmp_path, address)] == [*["present"] * 2, *["copied"] * 2]


def _keys(path: str) -> tuple[object, int]:
    """Return the content of the file of the keys and its mode."""
    file = Path(path)
    return json.loads(file.read_bytes()), file.stat().st_mode & 0o777


async def _ids(data_dir: Path) -> list[str]:
    source = SqliteLedger(data_dir)
    found = await source.database.read(
        lambda database: [str(id_) for (id_,) in database.execute("SELECT id FROM workspaces ORDER BY key")]
    )
    await source.close()
    return found
