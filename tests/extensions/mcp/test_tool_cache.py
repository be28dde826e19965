"""The cache of MCP lists on disk: bounded, private, and never a reason to fail."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.settings import McpSettings
from holdfast.extensions.mcp import tool_cache
from holdfast.extensions.mcp.tool_cache import ToolCache

ONE, OTHER = McpSettings(command="one"), McpSettings(command="other")
LISTS: Any = {"tools": ({"name": "go"},), "prompts": (), "resources": ()}


def written(folder: Path, *names: str) -> ToolCache:
    cache = ToolCache(folder)
    for name in names:
        assert cache.update(name, ONE, LISTS, "Be kind.")
    asyncio.run(cache.write(names))
    return cache


def test_lists_are_read_back_for_the_same_settings(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    file = folder / "mcp.json"
    assert not written(folder, "s", "t").update("s", ONE, LISTS, "Be kind."), "nothing has changed"
    read = ToolCache(folder)
    found = read.get("s", ONE)
    assert found is not None
    assert (found.lists["tools"][0]["name"], found.instructions) == ("go", "Be kind.")
    assert read.get("s", OTHER) is None
    assert read.get("u", ONE) is None
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert read.update("s", ONE, LISTS, "Be quick.")
    asyncio.run(read.write(["s"]))
    assert ToolCache(folder).get("t", ONE) is None, "a server that is no longer there"
    before = os.stat(file).st_mtime_ns
    os.utime(file, ns=(before - 5, before - 5))
    asyncio.run(read.write(["s"]))
    assert os.stat(file).st_mtime_ns == before - 5, "an unchanged cache is not written"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"s": 5}', b"\xff", b"[" * 100_000])
def test_an_unreadable_cache_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mcp.json").write_bytes(content)
    assert ToolCache(tmp_path).get("s", ONE) is None


def test_a_cache_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file")
    assert written(tmp_path / "d", "s").get("s", ONE) is not None
    (tmp_path / "mcp.json").mkdir()
    assert written(tmp_path, "s").get("s", ONE) is not None


def test_a_cache_that_is_too_large_is_not_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "s")
    size = (tmp_path / "mcp.json").stat().st_size
    for bound, is_kept in ((size, True), (size - 1, False)):
        monkeypatch.setattr(tool_cache, "_MAX_BYTES", bound)
        (tmp_path / "mcp.json").unlink()
        written(tmp_path, "s")
        assert (ToolCache(tmp_path).get("s", ONE) is not None) is is_kept
