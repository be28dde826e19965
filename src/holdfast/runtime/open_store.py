"""The store of a server: SQLite in the data directory, or PostgreSQL if an address is given.

The data directory belongs to one server in both cases: it contains the socket, the logs and the id of its place.
"""

import asyncio
import logging
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from holdfast.atomic_files import replace_file
from holdfast.distribution_names import install_command
from holdfast.domain.errors import StoreMisconfigured
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.usage import Stats
from holdfast.engine.ports import Ledger
from holdfast.storage.data_directory import acquire_directory
from holdfast.storage.database import DATABASE_NAME
from holdfast.storage.postgres.store_address import StoreAddress

__all__ = ["PLACE_FILE", "ServerLedger", "open_postgres", "read_or_make_place"]

PLACE_FILE = "place"
"""The file of the id of the place: the disks that are reached from this data directory."""
_log = logging.getLogger("holdfast.server")


class ServerLedger(Ledger, Protocol):
    """The store of a server, with what only the server needs."""

    async def stats(self, workspace: WorkspaceId | None, zone: int = 0) -> Stats:
        """Return usage figures of one workspace or of all."""

    async def problem(self) -> str:
        """Return why nothing can be stored, or an empty string."""

    async def close(self) -> None:
        """Finish the submitted work, then close."""


async def open_postgres(data_dir: Path, address: StoreAddress, wait: float) -> ServerLedger:
    """Lock the data directory and return the store in PostgreSQL, which is tried for `wait` seconds.

    Raises `StoreMisconfigured`, `StoreUnreachable` and the errors of the data directory.
    """
    # Only a server with an address needs the package, and importing it takes longer than opening SQLite.
    try:
        from holdfast.storage.postgres.open_store import open_pool  # noqa: PLC0415 - see above
        from holdfast.storage.postgres.postgres_ledger import PostgresLedger  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise StoreMisconfigured(
            f"The store on PostgreSQL needs the package asyncpg: {install_command('postgres')}"
        ) from None
    with ExitStack() as stack:
        acquire_directory(data_dir, stack)
        if (data_dir / DATABASE_NAME).exists():
            _log.info("%s is not used: the store is %s", data_dir / DATABASE_NAME, address.shown)
        place = await asyncio.to_thread(read_or_make_place, data_dir)
        pool = await open_pool(address, wait)
        _log.info("the store is %s", address.shown)
        return PostgresLedger(pool, place, on_close=stack.pop_all().close)


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
