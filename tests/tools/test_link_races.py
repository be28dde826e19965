"""A path is exchanged for a link while tools use it: nothing outside the workspace is read or written."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.domain.messages import ToolResult
from holdfast.domain.tools import Permit
from holdfast.testing.gates import until
from tools.tool_runner import ToolRunner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="exchanges two names, which takes Linux")

_RACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
one, two = (os.fsencode(path) for path in sys.argv[1:])
open(one + b".begun", "w").close()
while True:
    libc.renameat2(-100, one, -100, two, 2)
"""
_TIMES = 12
SECRET = "what is outside\n"


@asynccontextmanager
async def swapping(one: Path, two: Path) -> AsyncIterator[None]:
    """Exchange the two paths in a tight loop of another process."""
    racer = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", _RACER, str(one), str(two))
    try:
        await until(Path(f"{one}.begun").exists)
        yield
    finally:
        racer.kill()
        await racer.wait()


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outside")
    (directory / "f.txt").write_text(SECRET)
    (directory / "deep").mkdir()
    return directory


def deny_outside(runner: ToolRunner) -> None:
    """Deny every request for a path outside the workspace; allow the others."""

    def is_outside(permit: Permit) -> bool:
        return not permit.path.startswith(f"{runner.root}/")

    runner.approver.denies = is_outside


def contents_of(directory: Path) -> dict[str, str]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text() for path in paths} | {
        "": str(sorted(os.listdir(directory)))
    }


async def results(runner: ToolRunner, tool: str, arguments: dict[str, object]) -> list[ToolResult]:
    return [
        await runner.call(tool, **{**arguments, "content": str(at)} if tool == "write" else arguments)
        for at in range(_TIMES)
    ]


async def view_until_both_results(runner: ToolRunner, path: str) -> list[ToolResult]:
    """View the path until both results have occurred: the file, and the refusal of the link."""
    found = await results(runner, "view", {"file_path": path})
    while {result.is_error for result in found} != {True, False}:
        assert len(found) < 1_000, found[-1]
        found.append(await runner.call("view", file_path=path))
    return found


async def test_directory_exchanged_for_a_link_leads_nowhere(runner: ToolRunner, outside: Path) -> None:
    deny_outside(runner)
    runner.write_file("d/f.txt", b"inside\n")
    (runner.root / "l").symlink_to(outside)
    await runner.call_ok("view", file_path="d/f.txt")
    before = contents_of(outside)
    async with swapping(runner.root / "d", runner.root / "l"):
        written = await results(runner, "write", {"file_path": "d/new.txt"})
        written += await results(runner, "write", {"file_path": "d/deep/er/new.txt"})
        edited = await results(
            runner, "edit", {"file_path": "d/f.txt", "old_string": "inside", "new_string": "inside\nx"}
        )
        seen = await view_until_both_results(runner, "d/f.txt")
    assert contents_of(outside) == before
    assert not any(SECRET.strip() in result.content for result in (*written, *edited, *seen))


async def test_file_exchanged_for_a_link_leads_nowhere(runner: ToolRunner, outside: Path) -> None:
    deny_outside(runner)
    runner.write_file("f.txt", b"inside\n")
    (runner.root / "l.txt").symlink_to(outside / "f.txt")
    await runner.call_ok("view", file_path="f.txt")
    before = contents_of(outside)
    async with swapping(runner.root / "f.txt", runner.root / "l.txt"):
        seen = await view_until_both_results(runner, "f.txt")
        # A link that is written to is replaced, not followed: two files exist from then on.
        written = await results(runner, "write", {"file_path": "f.txt"})
        edited = await results(runner, "edit", {"file_path": "f.txt", "old_string": "i", "new_string": "ii"})
    assert contents_of(outside) == before
    assert not any(SECRET.strip() in result.content for result in (*written, *edited, *seen))
