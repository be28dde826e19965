"""The store of a server: SQLite in the data directory, or PostgreSQL if an address is given.

The data directory belongs to one server in both cases: it contains the socket, the logs and the id of its place.
"""

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Coroutine
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from holdfast.atomic_files import FILES, replace_file
from holdfast.config.locations import KEYS_FILE
from holdfast.distribution_names import install_command
from holdfast.domain.errors import BadRequest, StoreMisconfigured
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.usage import Stats
from holdfast.engine.ports import Ledger
from holdfast.storage.data_directory import acquire_directory
from holdfast.storage.database import DATABASE_NAME
from holdfast.storage.postgres.store_address import StoreAddress
from holdfast.storage.sqlite_ledger import SqliteLedger

if TYPE_CHECKING:
    from holdfast.config.sealed_documents import SealedDocument, SharedTokens
    from holdfast.runtime.server_services import ServerServices
    from holdfast.runtime.workspace_host import WorkspaceHost
    from holdfast.storage.postgres.connection_pool import Connection, Pool
    from holdfast.storage.postgres.copy_sqlite import Copied
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger
    from holdfast.storage.postgres.shared_documents import SharedDocuments

# fmt: off
__all__ = [
    "PLACE_FILE",
    "ServerLedger",
    "SharedState",
    "StoreReader",
    "copy_to_postgres",
    "open_host",
    "open_postgres",
    "open_shared_state",
    "read_or_make_place",
]
# fmt: on

PLACE_FILE = "place"
"""The file of the id of the place: the disks that are reached from this data directory."""
_log = logging.getLogger("holdfast.server")
T = TypeVar("T")


class ServerLedger(Ledger, Protocol):
    """The store of a server, with what only the server needs."""

    async def stats(self, workspace: WorkspaceId | None, zone: int = 0) -> Stats:
        """Return usage figures of one workspace or of all."""

    async def problem(self) -> str:
        """Return why nothing can be stored, or an empty string."""

    async def close(self) -> None:
        """Finish the submitted work, then close."""


class SharedState(msgspec.Struct, frozen=True):
    """What the servers of a cluster share beside the ledger. Tokens and sign-ins need a key file; without one they stay
    on their server.
    """

    documents: "SharedDocuments"
    tokens: "SharedTokens | None" = None
    sign_ins: "SealedDocument | None" = None
    directory: Path | None = None
    """A directory on the volume of the place, for outputs of commands; without it they are on the server's own disk."""

    def problem(self) -> str:
        """Return why tokens and sign-ins cannot be used, or an empty string."""
        return "" if self.tokens is None else self.tokens.problem()


async def open_shared_state(ledger: "PostgresLedger", key_file: str, directory: Path | None = None) -> SharedState:
    """Read the documents of the store. Raises `StorageError`. A key file that cannot be used is logged."""
    from holdfast.storage.postgres.shared_documents import SharedDocuments  # noqa: PLC0415 - needs the extra

    documents = SharedDocuments(ledger.pool)
    await documents.refresh()
    state = msgspec.structs.replace(_with_key(documents, key_file), directory=directory)
    if problem := await asyncio.to_thread(state.problem):
        _log.error("%s", problem)
    return state


def _with_key(documents: "SharedDocuments", key_file: str) -> SharedState:
    if not key_file:
        return SharedState(documents)
    # Only servers of a cluster import it.
    from holdfast.config.sealed_documents import KeyFile, SealedDocument, SharedTokens  # noqa: PLC0415

    key = KeyFile(os.path.expanduser(key_file))
    return SharedState(documents, SharedTokens(documents, key), SealedDocument(documents, "sign-ins", key))


class StoreReader:
    """The documents of a store for a command, without a server. Their connections have an event loop in a thread.

    The schema is not changed: servers of an earlier version may use it. Raises `StoreUnreachable` or
    `StoreMisconfigured`.
    """

    def __init__(self, address: StoreAddress) -> None:
        _require_asyncpg()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="store")
        self._thread.start()
        self._pool: Pool | None = None
        try:
            self.documents = self._run(self._open(address))
        except BaseException:
            self.close()
            raise

    def workspace_id(self, directory: str) -> str:
        """Return the id of the workspace of a directory; empty if there is none, or if several places have one."""
        assert self._pool is not None
        statement = "SELECT id FROM holdfast.workspaces WHERE path = $1"
        rows = self._run(self._pool.fetch(statement, os.fsencode(directory)))
        return str(rows[0]["id"]) if len(rows) == 1 else ""

    def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            self._run(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, address: StoreAddress) -> "SharedDocuments":
        from holdfast.storage.postgres.connection_pool import Pool  # noqa: PLC0415 - needs the extra
        from holdfast.storage.postgres.open_store import connect_options, raise_store_error  # noqa: PLC0415
        from holdfast.storage.postgres.shared_documents import SharedDocuments  # noqa: PLC0415 - needs the extra

        pool = Pool(connect_options(address), address.shown)
        try:
            await pool.open()
        except Exception as error:
            raise_store_error(address, error)
        self._pool = pool
        documents = SharedDocuments(pool)
        await documents.refresh()
        return documents


async def open_postgres(data_dir: Path, address: StoreAddress, wait: float, label: str = "") -> "PostgresLedger":
    """Lock the data directory and return the store in PostgreSQL, which is tried for `wait` seconds.

    `label` names the place of the directories that this server shares with others; the workspaces of its own disk move
    there. Raises `StoreMisconfigured`, `StoreUnreachable` and the errors of the data directory.
    """
    _require_asyncpg()
    from holdfast.cluster.postgres_cluster import PostgresCluster, application_name  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.open_store import open_pool  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger  # noqa: PLC0415 - needs the extra

    with ExitStack() as stack:
        acquire_directory(data_dir, stack)
        if (data_dir / DATABASE_NAME).exists():
            _log.info("%s is not used: the store is %s", data_dir / DATABASE_NAME, address.shown)
        place = await asyncio.to_thread(read_or_make_place, data_dir)
        # An eviction ends the connections of this process by their name.
        pool = await open_pool(address, wait, application_name(secrets.token_hex(8)))
        try:
            if label:
                await PostgresCluster(pool).label_place(place, label)
        except BaseException:
            await pool.close()
            raise
        _log.info("the store is %s", address.shown)
        return PostgresLedger(pool, label or place, on_close=stack.pop_all().close)


async def open_host(server: "ServerServices", ledger: "PostgresLedger", address: str = "") -> "WorkspaceHost":
    """Return the part of a server that belongs to the cluster. `address` is where other nodes reach the server."""
    from holdfast.cluster.postgres_cluster import PostgresCluster  # noqa: PLC0415 - needs the extra
    from holdfast.runtime.workspace_host import WorkspaceHost  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.connection_pool import Pool  # noqa: PLC0415 - needs the extra

    # Slow statements of the ledger must not delay heartbeats.
    pool = Pool(ledger.pool.options, ledger.pool.shown)
    await pool.open()
    return WorkspaceHost(server, ledger, PostgresCluster(pool), address=address, on_stop=pool.close)


async def copy_to_postgres(data_dir: Path, address: StoreAddress) -> "list[Copied]":
    """Copy the database of a data directory that no server uses, the settings that clients have saved, and trust.

    The workspaces get the place of the directory. Keys of providers go to its file for keys, not to the database.
    Raises `BadRequest` if saved settings cannot be read, `DataDirectoryBusy`, `StoreMisconfigured`, `StoreUnreachable`
    and other `StorageError`s.
    """
    _require_asyncpg()
    from holdfast.storage.postgres.copy_sqlite import copy_workspaces  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.open_store import (  # noqa: PLC0415 - needs the extra
        connect_options,
        connected,
        prepare_database,
    )

    source = SqliteLedger(data_dir)
    try:
        # First: an unreadable one is reported before anything is copied.
        saved = await asyncio.to_thread(_read_saved, data_dir)
        options = connect_options(address)
        await prepare_database(address, options, 0)
        place = await asyncio.to_thread(read_or_make_place, data_dir)
        async with connected(options | {"command_timeout": None}) as connection:
            workspaces = await copy_workspaces(source, connection, place)
            paths = {item.id: item.path for item in workspaces if item.outcome != "taken"}
            saved = [item for item in saved if not item.workspace or item.workspace in paths]
            results = await _copy_saved(data_dir, saved, connection)
            titles = [f"{paths[item.workspace]}: {item.title}" if item.workspace else item.title for item in saved]
            return [*workspaces, *(msgspec.structs.replace(r, path=t) for r, t in zip(results, titles, strict=True))]
    finally:
        await source.close()


class _Saved(msgspec.Struct, frozen=True):
    """A document of a data directory. `workspace` is an id, or empty for settings of all workspaces and for trust."""

    name: str
    title: str
    content: bytes
    workspace: str = ""
    keys: dict[str, Any] = {}


def _read_saved(data_dir: Path) -> list[_Saved]:
    # Only the command imports it.
    from holdfast.config.saved_settings import split_keys  # noqa: PLC0415
    from holdfast.config.trust import TrustStore  # noqa: PLC0415

    found = []
    for path in (data_dir / "config.json", *sorted(data_dir.glob("workspaces/*/config.json"))):
        if path.exists():
            content, keys = split_keys(str(path), FILES.read(str(path))[0])
            workspace = "" if path.parent == data_dir else path.parent.name
            title = "saved settings and rules" if workspace else "saved settings"
            found.append(_Saved(str(path.relative_to(data_dir)), title, content, workspace, keys))
    trust = data_dir / "trust.json"
    if trust.exists():
        if problems := TrustStore(str(trust)).problems():
            raise BadRequest(f"{trust} cannot be copied: {problems[0].text}")
        found.append(_Saved(trust.name, "trust", FILES.read(str(trust))[0]))
    return found


async def _copy_saved(data_dir: Path, saved: "list[_Saved]", connection: "Connection") -> "list[Copied]":
    from holdfast.config.saved_settings import add_keys, merge_trees  # noqa: PLC0415 - only the command imports it
    from holdfast.storage.postgres.copy_sqlite import (  # noqa: PLC0415 - needs the extra
        copy_documents,
        missing_documents,
    )

    missing = await missing_documents(connection, [item.name for item in saved])
    keys: dict[str, Any] = {}
    for item in saved:
        # Not those of documents that were copied before: a client may have removed a key since.
        keys = merge_trees(item.keys, keys) if item.name in missing else keys
    if keys:
        await asyncio.to_thread(add_keys, str(data_dir / KEYS_FILE), keys)
    return await copy_documents(connection, {item.name: item.content for item in saved})


def _require_asyncpg() -> None:
    """Raise `StoreMisconfigured` if the package is missing. Only a server with an address needs it, and importing it
    takes longer than opening SQLite.
    """
    if find_spec("asyncpg") is None:
        raise StoreMisconfigured(f"The store on PostgreSQL needs the package asyncpg: {install_command('postgres')}")


def read_or_make_place(data_dir: Path) -> str:
    """Return the id of the place, which is made once: a server that starts again on this disk has the same one."""
    path = data_dir / PLACE_FILE
    try:
        place = path.read_text("utf-8").strip()
    except FileNotFoundError:
        place = ""
    if not place:
        place = secrets.token_hex(16)
        replace_file(str(path), f"{place}\n".encode())
    return place
