"""Documents that all nodes of a cluster share, in PostgreSQL. The port is `domain.documents.Documents`.

Every node keeps a copy of all documents, which are few and small, so that reading them takes no request. `refresh`
reads what has changed since: after a notification, and once a second in any case. A change compares the revision of the
document that it was made from; if another node was faster, it is made again from the new content, so no change is lost.

`update` is called in a thread and waits there for the event loop of the connections. Other names than those of the
store are files.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from holdfast.atomic_files import FILES, Files
from holdfast.domain.documents import STORE_PREFIX, Edit, Signature
from holdfast.domain.errors import Conflict, StorageUnknown
from holdfast.storage.postgres.asyncpg_errors import ERRORS, unreachable
from holdfast.storage.postgres.connection_pool import Pool
from holdfast.storage.postgres.open_store import connected

__all__ = ["SharedDocuments"]

_MAX_ATTEMPTS = 50
_LOCK_SECONDS = 45.0
_LOCK_CLASS = 1213039695
"""First key of the advisory locks of documents."""
_READ = "SELECT name, revision, body FROM holdfast.documents WHERE revision > $1 ORDER BY revision"
_PUT = "SELECT holdfast.document_put($1, $2, $3)"


class SharedDocuments:
    """The documents of the store as one node sees them. `refresh` must be called first."""

    def __init__(self, pool: Pool, files: Files = FILES) -> None:
        self._pool = pool
        self._files = files
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._documents: dict[str, tuple[int, bytes | None]] = {}
        self._newest = 0
        self._last_change: asyncio.Future[None] | None = None
        self.on_update: Callable[[], None] = lambda: None
        """Called after a change by this node, to notify the others."""
        self.listeners: list[Callable[[], None]] = []
        """Called after a change by another node was read."""

    def signature(self, name: str) -> Signature:
        """Return the signature of a document."""
        if not name.startswith(STORE_PREFIX):
            return self._files.signature(name)
        revision, body = self._documents.get(name, (0, None))
        return None if body is None else (revision,)

    def has_changed(self, name: str, seen: Signature) -> bool:
        """Return True if a document no longer has the signature `seen`."""
        if not name.startswith(STORE_PREFIX):
            return self._files.has_changed(name, seen)
        return self.signature(name) != seen

    def read(self, name: str) -> tuple[bytes, Signature]:
        """Return the content and the signature of a document."""
        if not name.startswith(STORE_PREFIX):
            return self._files.read(name)
        revision, body = self._documents.get(name, (0, None))
        if body is None:
            raise FileNotFoundError(name)
        return body, (revision,)

    def update(self, name: str, edit: Edit) -> None:
        """Change a document. Must not be called in the event loop, which it waits for."""
        if not name.startswith(STORE_PREFIX):
            self._files.update(name, edit)
            return
        assert threading.get_ident() != self._thread, "it would wait for itself"
        asyncio.run_coroutine_threadsafe(self._update(name, edit), self._loop).result()

    async def refresh(self) -> bool:
        """Read the documents that have changed. Return whether there are any. Raises `StorageError`."""
        has_changed = False
        for row in await self._pool.fetch(_READ, self._newest):
            has_changed |= self._apply(f"{STORE_PREFIX}{row['name']}", row["revision"], row["body"])
            # Only here: the revision of a change by this node may follow those of others that are still unread.
            self._newest = max(self._newest, row["revision"])
        for listener in self.listeners if has_changed else ():
            listener()
        return has_changed

    @asynccontextmanager
    async def exclusive(self, name: str) -> AsyncIterator[None]:
        """Exclude all other nodes from the same block, then read the newest documents. PostgreSQL releases the lock if
        this process or its connection ends. Raises `Conflict` if it is not free in time.
        """
        async with AsyncExitStack() as stack:
            options = {**self._pool.options, "command_timeout": _LOCK_SECONDS}
            try:
                connection = await stack.enter_async_context(connected(options))
                await connection.execute("SELECT pg_advisory_lock($1, hashtext($2))", _LOCK_CLASS, name)
            except TimeoutError:
                raise Conflict(f"Another server has been at work on it for {_LOCK_SECONDS:.0f} s.") from None
            except ERRORS:
                raise unreachable() from None
            await self.refresh()
            yield

    def _apply(self, name: str, revision: int, body: bytes | None) -> bool:
        if revision <= self._documents.get(name, (0, None))[0]:
            return False
        self._documents[name] = (revision, body)
        return True

    async def _update(self, name: str, edit: Edit) -> None:
        """Change a document after the earlier changes of this node, which would only compete with each other."""
        earlier, self._last_change = self._last_change, self._loop.create_future()
        done = self._last_change
        try:
            if earlier is not None:
                await asyncio.shield(earlier)
            await self._change(name, edit)
        finally:
            done.set_result(None)

    async def _change(self, name: str, edit: Edit) -> None:
        for _ in range(_MAX_ATTEMPTS):
            revision, present = self._documents.get(name, (0, None))
            new = edit(present)
            if new is None or new == present:
                # The copy may be a second old.
                if await self.refresh() and self._documents.get(name, (0, None))[0] != revision:
                    continue
                return
            if await self._put(name, revision, new):
                return
            await self.refresh()
        raise Conflict("Other servers change the same settings all the time: try again.")

    async def _put(self, name: str, revision: int, new: bytes) -> bool:
        """Store a content that was made from a revision. Return False if there is a newer one."""
        try:
            row = await self._pool.write(_PUT, name.removeprefix(STORE_PREFIX), revision, new)
        except StorageUnknown:
            # It may be stored, and even be replaced again: only the same content proves that it is.
            await self.refresh()
            if self._documents.get(name, (0, None))[1] != new:
                raise
        else:
            assert row is not None
            if (number := int(row[0])) == 0:
                return False
            self._apply(name, number, new)
        self.on_update()
        return True
