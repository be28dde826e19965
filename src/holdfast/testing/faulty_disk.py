"""A file layer for SQLite that remembers what was synced, and can be told to fail."""

from collections.abc import Callable
from pathlib import Path

import apsw

__all__ = ["FaultyDisk"]


class FaultyDisk(apsw.VFS):
    """Passes everything on to the system. `synced` holds each file as it was when it was last synced.

    `on_write` and `on_sync` are called with the file's name before the deed; what they raise, SQLite gets.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.synced: dict[str, bytes] = {}
        self.syncs: list[str] = []
        self.on_write: Callable[[str], None] = lambda _name: None
        self.on_sync: Callable[[str], None] = lambda _name: None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "apsw.VFSFile":
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "")
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.on_write(self._path.name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.on_sync(self._path.name)
        super().xSync(flags)
        self._disk.syncs.append(self._path.name)
        # A new database is renamed when it is whole: what is synced under its first name counts for the last.
        self._disk.synced[self._path.name.removesuffix(".new")] = self._path.read_bytes()
