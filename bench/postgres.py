"""The store on PostgreSQL beside bare asyncpg statements on the same server: accepts, events, and resumes.

The server is started from Debian's binaries with its files on the disk of TMPDIR, and stopped at the end.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench.figures import Figure, Goal
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.runs import Run
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import Admit, CreateSession, PatchSession, Write
from holdfast.storage.postgres.store_address import StoreAddress

__all__ = ["LedgerSubject", "measure"]

ROUNDS = 200
TOGETHER = 50
EVENTS = 10_000
_BARE = "INSERT INTO bare (body) VALUES ($1)"


class LedgerSubject:
    """A ledger with one workspace, and a bare connection to the same database."""

    def __init__(self, ledger: Any, bare: Any, workspace: WorkspaceId, epoch: int) -> None:  # noqa: ANN401
        self.ledger = ledger
        self.bare = bare
        self.workspace = workspace
        self.epoch = epoch
        self.ticket = 0
        self._runs = 0

    async def commit(self, *writes: Write) -> None:
        self.ticket += 1
        await self.ledger.commit(self.workspace, self.epoch, self.ticket, writes)

    async def accept(self) -> None:
        self._runs += 1
        run = Run(RunId(f"r{self._runs}"), SessionId("s"), "waiting", "queue", 1, prompt="Say in one sentence why.")
        await self.ledger.accept(self.workspace, [Write((Admit(run, b"hash" * 8),))])

    async def statement(self) -> None:
        await self.bare.execute(_BARE, b"x" * 400)


async def _paired(one: Callable[[], Awaitable[None]], other: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return the medians of both in milliseconds, measured alternately."""
    pairs = [(await _ms(one), await _ms(other)) for _ in range(ROUNDS)]
    return median(value for value, _ in pairs), median(limit for _, limit in pairs)


async def _ms(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1e3


async def _figures(on: LedgerSubject) -> list[Figure]:
    patch = Write((PatchSession(SessionPatch(SessionId("s"), 1)),))
    await on.commit(Write((CreateSession(_session()),)))
    for _ in range(30):
        await on.commit(patch)
        await on.accept()
        await on.statement()
    beside = "one bare INSERT"
    event, bare = await _paired(lambda: on.commit(patch), on.statement)
    found = [Figure("event, stored and synced", event, "ms", bare, beside)]
    accept, bare = await _paired(on.accept, on.statement)
    found.append(Figure("accept", accept, "ms", bare, beside, Goal(2.0)))
    together = median([await _ms(lambda: asyncio.gather(*(on.accept() for _ in range(TOGETHER)))) for _ in range(20)])
    found.append(Figure(f"accept, {TOGETHER} at once", together, "ms", bare, beside, Goal(5.0)))
    while (await on.ledger.bounds(on.workspace))[1] < EVENTS:
        await on.commit(*([patch] * 100))
    query = "SELECT number, body FROM holdfast.events WHERE number > $1 ORDER BY number LIMIT $2"
    resume = median([await _ms(lambda: on.ledger.events_after(on.workspace, 0, EVENTS)) for _ in range(15)])
    rows = median([await _ms(lambda: on.bare.fetch(query, 0, EVENTS)) for _ in range(15)])
    found.append(Figure(f"resume of {EVENTS:,} events", resume, "ms", rows, "one bare SELECT", Goal(50.0)))
    return found


def _session() -> Any:  # noqa: ANN401
    from holdfast.testing.conformance import session  # noqa: PLC0415 - only for the benchmark

    return session("s")


async def _measure(dsn: str) -> list[Figure]:
    import asyncpg  # noqa: PLC0415 - an extra

    from holdfast.storage.postgres.open_store import open_pool  # noqa: PLC0415 - needs the extra
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger  # noqa: PLC0415 - needs the extra

    ledger = PostgresLedger(await open_pool(StoreAddress(dsn), 5), "here")
    bare = await asyncpg.connect(dsn)
    try:
        await bare.execute("CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)")
        record = await ledger.open_workspace("/w")
        return await _figures(LedgerSubject(ledger, bare, record.id, record.epoch))
    finally:
        await bare.close()
        await ledger.close()


def measure() -> list[Figure]:
    """Measure with a server of its own."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from postgres_server import PostgresServer  # noqa: PLC0415 - the path is set above

    with tempfile.TemporaryDirectory(prefix="hf") as place:
        Path(place).chmod(0o711)
        directory = Path(place) / "p"
        directory.mkdir()
        server = PostgresServer(directory, {})
        server.create()
        server.start()
        try:
            return uvloop.run(_measure(server.dsn()))
        finally:
            server.stop()
