"""A failing step of the writer's maintenance is logged; the writer continues and repeats the work."""

import asyncio
import logging
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.store_operations import CreateSession
from holdfast.storage import database, writer_thread
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, session
from holdfast.testing.gates import until

ERRORS = (apsw.FullError("full"), OSError(28, "full"))


class FailingVacuum:
    """A vacuum with one page to release, whose first step fails."""

    def __init__(self, step: str, error: Exception) -> None:
        self.fails: str | None = step
        self.error = error
        self.calls: list[str] = []

    def has_work(self, _: apsw.Connection) -> bool:
        self._call("has_work")
        return self.calls.count("step") < 2

    def step(self, _: apsw.Connection) -> None:
        self._call("step")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails == name:
            self.fails = None
            raise self.error


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["has_work", "step"])
async def test_writer_survives_a_failing_vacuum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, error: Exception
) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast.storage")
    monkeypatch.setattr(writer_thread, "_IDLE_SECONDS", 0.001)
    vacuum = FailingVacuum(step, error)
    monkeypatch.setattr(writer_thread, "IncrementalVacuum", lambda: vacuum)
    ledger = SqliteLedger(tmp_path)
    async with asyncio.timeout(20):
        owner = await WorkspaceOwner.open(ledger)
        await until(lambda: vacuum.fails is None)
        await owner.do(CreateSession(session("s")))
        await until(lambda: vacuum.calls.count("step") > 1)
        assert await ledger.session(owner.id, session("s").id) is not None
    await ledger.close()


@pytest.mark.parametrize("error", [*ERRORS, StorageUnavailable("full")], ids=lambda error: type(error).__name__)
async def test_writer_survives_failing_maintenance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast.storage")
    failures = [error]

    def maintain(connection: apsw.Connection) -> None:
        if failures:
            connection.execute("BEGIN IMMEDIATE; CREATE TABLE half_done (x)")
            raise failures.pop()

    opened = database.Database.open(tmp_path, maintenance=maintain)
    async with asyncio.timeout(20):
        await opened.write(lambda _: None, sync=True)
        await until(lambda: not failures)
        names = "SELECT count(*) FROM sqlite_schema WHERE name = 'half_done'"
        assert await opened.write(lambda connection: connection.execute(names).fetchall(), sync=True) == [(0,)]
    await asyncio.to_thread(opened.close)
