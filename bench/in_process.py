"""Workspaces in this process for benchmarks of single parts: on the real disk, with scripted models. Bare SQLite."""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import apsw

from bench.repositories import temporary_directory
from holdfast.domain.events import LiveEvent, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.model_requests import ModelInfo, ModelRequest, StreamPart, TextDelta
from holdfast.domain.store_operations import Entry
from holdfast.engine.ports import Models, Outlet
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, ScriptedModels, Step
from holdfast.runtime.workspace import FixedServices, Workspace, open_workspace
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.storage.vacuum import WAL_SIZE_LIMIT

__all__ = [
    "BareStore",
    "HeldModels",
    "RunEnds",
    "WorkspaceUnderTest",
    "directory",
    "model_saying",
    "sessions",
    "words",
    "workspace_under_test",
]


@contextmanager
def directory() -> Iterator[Path]:
    """Create a directory on a disk; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=temporary_directory()) as path:
        yield Path(path)


def words(count: int) -> str:
    """Return a text with this many tokens."""
    return " ".join(f"w{number % 10_000:04}" for number in range(count))


def model_saying(text: str) -> ScriptedModel:
    """Return a model whose every response is this text."""
    return ScriptedModel(lambda _: Step((Say(text),)))


class HeldModels:
    """A model whose responses stop after a few words and never end. `begun` counts the responses so far."""

    def __init__(self, text: str = "one two three four") -> None:
        self._parts = [TextDelta(f" {word}") for word in text.split()]
        self.begun = 0
        self._changed = asyncio.Event()

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("bench", "held", context_window=200_000)

    async def large(self) -> "HeldModels":
        return self

    async def small(self) -> "HeldModels":
        return self

    async def renewed(self, _: object) -> None:
        return None

    async def stream(self, _request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        for part in self._parts:
            yield part
        self.begun += 1
        self._changed.set()
        await asyncio.get_running_loop().create_future()

    async def until(self, count: int) -> None:
        while self.begun < count:
            self._changed.clear()
            await self._changed.wait()


class RunEnds:
    """Records when the ends of runs are published, between engine and bus."""

    def __init__(self) -> None:
        self._outlet: Outlet | None = None
        self._waiting: dict[RunId, asyncio.Future[None]] = {}
        self.seen: dict[RunId, float] = {}

    def wrap_outlet(self, outlet: Outlet) -> Outlet:
        self._outlet = outlet
        return self

    def publish(self, entries: Iterable[Entry]) -> None:
        assert self._outlet is not None
        published = tuple(entries)
        self._outlet.publish(published)
        for entry in published:
            if isinstance(entry.event, RunCompleteEvent):
                self._note(entry.event.change.object.run_id)

    def publish_live(self, event: LiveEvent) -> None:
        assert self._outlet is not None
        self._outlet.publish_live(event)

    async def of(self, run: RunId) -> float:
        """Return when the end of a run was published, on the clock of `time.perf_counter`; wait for it if necessary."""
        if run not in self.seen:
            self._waiting[run] = asyncio.get_running_loop().create_future()
            await self._waiting[run]
        return self.seen[run]

    def _note(self, run: RunId) -> None:
        self.seen[run] = time.perf_counter()
        if run in self._waiting:
            self._waiting.pop(run).set_result(None)


class WorkspaceUnderTest:
    """An open workspace with its store."""

    def __init__(self, path: Path, ledger: SqliteLedger, workspace: Workspace, ends: RunEnds) -> None:
        self.path = path
        self.ledger = ledger
        self.workspace = workspace
        self.ends = ends


@asynccontextmanager
async def workspace_under_test(models: Models | ScriptedModel) -> AsyncIterator[WorkspaceUnderTest]:
    """Open a workspace without titles in a new directory."""
    with directory() as path:
        ledger = SqliteLedger(path / "data")
        ends = RunEnds()
        chosen = ScriptedModels(models) if isinstance(models, ScriptedModel) else models
        settings = EngineSettings(titles=False)
        workspace = await open_workspace(
            str(path), FixedServices(ledger, chosen, settings=settings, wrap_outlet=ends.wrap_outlet)
        )
        try:
            yield WorkspaceUnderTest(path, ledger, workspace, ends)
        finally:
            await workspace.close()
            await ledger.close()


async def sessions(on: WorkspaceUnderTest, count: int) -> list[SessionId]:
    made = await asyncio.gather(*(on.workspace.sessions.create(f"Session {number}") for number in range(count)))
    return [session.id for session in made]


class BareStore:
    """SQLite alone, on the same disk and with the same pragmas."""

    def __init__(self, path: Path, row: bytes = b"a small row") -> None:
        self._connection = apsw.Connection(str(path / "bare.db"))
        self._connection.pragma("journal_mode", "WAL")
        self._connection.pragma("journal_size_limit", WAL_SIZE_LIMIT)
        self._connection.pragma("foreign_keys", 1)
        self._connection.pragma("secure_delete", 1)
        self._connection.pragma("synchronous", "FULL")
        self._connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        self._row = row

    def commit(self, rows: int = 1) -> float:
        """Return the seconds of one synced commit with this many rows."""
        began = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(rows):
            self._connection.execute("INSERT INTO rows (body) VALUES (?)", (self._row,))
        self._connection.execute("COMMIT")
        return time.perf_counter() - began

    def close(self) -> None:
        self._connection.close()
