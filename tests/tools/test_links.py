"""Somebody swaps a path for a link while tools work on it: nothing outside of the workspace is written or read."""

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
from tools.desk import Desk

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
    """Exchange the two as often as one processor can, without a pause."""
    racer = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", _RACER, str(one), str(two))
    try:
        await until(Path(f"{one}.begun").exists)
        yield
    finally:
        racer.kill()
        await racer.wait()


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("outside")
    (place / "f.txt").write_text(SECRET)
    (place / "deep").mkdir()
    return place


def no_way_out(desk: Desk) -> None:
    """Nobody allows anything outside; inside everything is."""

    def is_outside(permit: Permit) -> bool:
        return not permit.path.startswith(f"{desk.root}/")

    desk.porter.refuses = is_outside


def state_of(place: Path) -> dict[str, str]:
    paths = sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_text() for path in paths} | {"": str(sorted(os.listdir(place)))}


async def results(desk: Desk, tool: str, arguments: dict[str, object]) -> list[ToolResult]:
    return [
        await desk.call(tool, **{**arguments, "content": str(at)} if tool == "write" else arguments)
        for at in range(_TIMES)
    ]


async def seen_both_ways(desk: Desk, path: str) -> list[ToolResult]:
    """View it until the attack was one: once the file was seen, once the link was run into."""
    found = await results(desk, "view", {"file_path": path})
    while {result.is_error for result in found} != {True, False}:
        assert len(found) < 1_000, found[-1]
        found.append(await desk.call("view", file_path=path))
    return found


async def test_a_directory_becomes_a_link(desk: Desk, outside: Path) -> None:
    no_way_out(desk)
    desk.put("d/f.txt", b"inside\n")
    (desk.root / "l").symlink_to(outside)
    await desk.does("view", file_path="d/f.txt")
    before = state_of(outside)
    async with swapping(desk.root / "d", desk.root / "l"):
        written = await results(desk, "write", {"file_path": "d/new.txt"})
        written += await results(desk, "write", {"file_path": "d/deep/er/new.txt"})
        edited = await results(
            desk, "edit", {"file_path": "d/f.txt", "old_string": "inside", "new_string": "inside\nx"}
        )
        seen = await seen_both_ways(desk, "d/f.txt")
    assert state_of(outside) == before
    assert not any(SECRET.strip() in result.content for result in (*written, *edited, *seen))


async def test_a_file_becomes_a_link(desk: Desk, outside: Path) -> None:
    no_way_out(desk)
    desk.put("f.txt", b"inside\n")
    (desk.root / "l.txt").symlink_to(outside / "f.txt")
    await desk.does("view", file_path="f.txt")
    before = state_of(outside)
    async with swapping(desk.root / "f.txt", desk.root / "l.txt"):
        seen = await seen_both_ways(desk, "f.txt")
        # A link that is written to is replaced, not followed: from then on there are two files.
        written = await results(desk, "write", {"file_path": "f.txt"})
        edited = await results(desk, "edit", {"file_path": "f.txt", "old_string": "i", "new_string": "ii"})
    assert state_of(outside) == before
    assert not any(SECRET.strip() in result.content for result in (*written, *edited, *seen))
