"""Killed servers and full disks, with real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner
from scratch import new_directory

COMMON = """
import asyncio, os, resource, signal, sys
from pathlib import Path
from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message

data_dir = Path(sys.argv[1])
"""

ADMIT_FOREVER = """
async def main():
    owner = await WorkspaceOwner.with_session(SqliteLedger(data_dir))
    print(owner.id, flush=True)
    index = 0
    while True:
        await owner.admit(f"r{index}")
        print(index, flush=True)
        index += 1

asyncio.run(main())
"""

DIE_AT = """
armed = False

def probe(point):
    if armed and point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    global armed
    owner = await WorkspaceOwner.with_session(SqliteLedger(data_dir, probe=probe))
    await owner.admit("before")
    print(owner.id, flush=True)
    armed = True
    await owner.admit("during")

asyncio.run(main())
"""

FILE_SIZE_LIMIT = """
async def main():
    ledger = SqliteLedger(data_dir)
    owner = await WorkspaceOwner.with_session(ledger)
    size = (data_dir / "holdfast.db-wal").stat().st_size
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300_000, hard))
    stored = 0
    failures = 0
    while failures < 3:
        try:
            await owner.put(message(f"m{stored}", "x" * 20_000))
        except (StorageUnavailable, StorageUnknown):
            failures += 1
            ticket, _ = await ledger.last_batch(owner.id, owner.epoch)
            assert ticket == owner.ticket - 1, (ticket, owner.ticket)
            owner.ticket = ticket
        else:
            stored += 1
    assert stored > 1
    assert len(await owner.events()) == stored + 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await owner.put(message(f"m{stored}", "x" * 20_000))
    assert len(await owner.events()) == stored + 2
    await ledger.close()
    print("done", flush=True)

asyncio.run(main())
"""


def _start(script: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", COMMON + script, *arguments], stdout=subprocess.PIPE)


async def test_acknowledged_writes_survive_a_kill(tmp_path: Path) -> None:
    with _start(ADMIT_FOREVER, str(tmp_path)) as server:
        assert server.stdout is not None
        workspace = WorkspaceId(server.stdout.readline().decode().strip())
        for _ in range(25):
            answered = int(server.stdout.readline())
        server.kill()
        answered = max([answered, *(int(line) for line in server.stdout)])
    ledger = SqliteLedger(tmp_path)
    found = [run.run_id for run in await ledger.open_runs(workspace)]
    await ledger.close()
    assert found[: answered + 1] == [f"r{index}" for index in range(answered + 1)]
    assert len(found) <= answered + 2


@pytest.mark.parametrize(("point", "survives"), [("before", False), ("executed", False), ("committed", True)])
async def test_kill_at_each_write_point_keeps_acknowledged_writes(
    point: str, *, survives: bool, tmp_path: Path
) -> None:
    with _start(DIE_AT, str(tmp_path), point) as server:
        assert server.stdout is not None
        workspace = WorkspaceId(server.stdout.read().decode().strip())
    assert server.returncode == -signal.SIGKILL
    ledger = SqliteLedger(tmp_path)
    assert await ledger.run(workspace, RunId("before")) is not None
    assert (await ledger.run(workspace, RunId("during")) is not None) == survives
    assert len(await ledger.events_after(workspace, 0, 10)) == 2 + survives
    await ledger.close()


async def test_file_size_limit_loses_nothing(tmp_path: Path) -> None:
    with _start(FILE_SIZE_LIMIT, str(tmp_path)) as server:
        assert server.stdout is not None
        assert server.stdout.read() == b"done\n"
    assert server.returncode == 0


@contextmanager
def _small_disk() -> Iterator[Path]:
    # In the session's directory, whose mounts are removed even if this process is killed.
    path = new_directory()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    try:
        is_mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    if not is_mounted:
        pytest.skip("mounting a small disk needs root; the test with a file limit covers the same code")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


async def test_full_disk_refuses_writes_and_recovers() -> None:
    with _small_disk() as disk:
        ledger = SqliteLedger(disk / "data")
        owner = await WorkspaceOwner.with_session(ledger)
        ballast = disk / "ballast"
        before = await owner.all()
        _fill(ballast)
        while (refusal := await _try_to_admit(owner)) is None:
            before = await owner.all()
        assert "disk is full" in str(refusal)
        for _ in range(3):
            assert await _try_to_admit(owner) is not None
            assert await owner.all() == before
        ballast.unlink()
        await owner.admit("r-after")
        assert len(await owner.events()) == len(await ledger.open_runs(owner.id)) + 1
        await ledger.close()
        again = SqliteLedger(disk / "data")
        assert await again.run(owner.id, RunId("r-after")) is not None
        await again.close()


async def _try_to_admit(owner: WorkspaceOwner) -> StorageUnavailable | None:
    try:
        await owner.admit(f"r{owner.ticket}")
    except StorageUnavailable as error:
        return error
    return None


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return
