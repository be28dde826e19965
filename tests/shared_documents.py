"""Documents in PostgreSQL for tests without an event loop: the loop of their connections runs in a thread."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.storage.postgres.connection_pool import Pool
from holdfast.storage.postgres.shared_documents import SharedDocuments
from postgres_server import database

__all__ = ["DocumentNodes", "shared_nodes"]

T = TypeVar("T")


class DocumentNodes:
    """The documents of one database as several nodes see them."""

    def __init__(self, dsn: str, loop: asyncio.AbstractEventLoop) -> None:
        self._dsn = dsn
        self._loop = loop
        self._pools: list[Pool] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine in the loop of the connections."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def node(self) -> SharedDocuments:
        """Return the documents as a new node sees them."""
        return self.run(self._connect())

    async def _connect(self) -> SharedDocuments:
        pool = Pool({"dsn": self._dsn})
        await pool.open()
        self._pools.append(pool)
        documents = SharedDocuments(pool)
        await documents.refresh()
        return documents

    def stored(self) -> bytes:
        """Return all names and contents as the database has them."""
        rows = self.run(self._pools[0].fetch("SELECT name, body FROM holdfast.documents"))
        return b"\n".join(row["name"].encode() + b" " + (row["body"] or b"") for row in rows)

    def execute(self, statement: str, *arguments: object) -> None:
        """Execute a statement in the database."""
        self.run(self._pools[0].write(statement, *arguments))

    def close(self) -> None:
        for pool in self._pools:
            self.run(pool.close())


@contextmanager
def shared_nodes() -> Iterator[DocumentNodes]:
    """Yield a new database."""
    with database() as dsn:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        nodes = DocumentNodes(dsn, loop)
        try:
            yield nodes
        finally:
            nodes.close()
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()
