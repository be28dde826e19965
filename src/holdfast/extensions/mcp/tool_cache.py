"""Cache of the lists that MCP servers returned when they were last connected, on disk. A run that starts before its
servers can offer their tools.

The cache may be outdated: a call waits for the server, and the list of the connected server is authoritative.
"""

import asyncio
import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.atomic_files import replace_file
from holdfast.domain.errors import HoldfastError
from holdfast.domain.settings import McpSettings
from holdfast.extensions.mcp.mcp_types import ListName

__all__ = ["CachedTools", "ToolCache"]

_MAX_BYTES = 2 * 1024 * 1024


class CachedTools(msgspec.Struct, frozen=True):
    """Cached lists of one server. `mark` is a hash of its settings: entries of other settings are ignored."""

    mark: str
    lists: dict[ListName, tuple[dict[str, Any], ...]]
    instructions: str = ""


class ToolCache:
    """Cache of one workspace, in one file. Read and write errors are ignored, because the cache is optional."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "mcp.json")
        self._entries = self._read()
        self._is_dirty = False

    def get(self, name: str, settings: McpSettings) -> CachedTools | None:
        """Return the cached lists of a server, unless its settings have changed."""
        entry = self._entries.get(name)
        return entry if entry is not None and entry.mark == _settings_hash(settings) else None

    def update(
        self,
        name: str,
        settings: McpSettings,
        lists: Mapping[ListName, tuple[dict[str, Any], ...]],
        instructions: str,
    ) -> bool:
        """Store the lists in memory. Returns whether they have changed and have to be written."""
        new = CachedTools(_settings_hash(settings), dict(lists), instructions)
        if self._entries.get(name) == new:
            return False
        self._entries[name] = new
        self._is_dirty = True
        return True

    async def write(self, names: Collection[str]) -> None:
        """Write the cache if it has changed, with the entries of these servers only."""
        if self._is_dirty:
            self._is_dirty = False
            self._entries = {name: entry for name, entry in self._entries.items() if name in names}
            data = msgspec.json.encode(self._entries)
            await asyncio.to_thread(self._store, data if len(data) <= _MAX_BYTES else b"{}")

    def _store(self, data: bytes) -> None:
        with suppress(OSError, HoldfastError):
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            replace_file(self._path, data, mode=0o600)

    def _read(self) -> dict[str, CachedTools]:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(_MAX_BYTES), type=dict[str, CachedTools])
        except (OSError, msgspec.DecodeError, RecursionError):
            return {}


def _settings_hash(settings: McpSettings) -> str:
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:32]
