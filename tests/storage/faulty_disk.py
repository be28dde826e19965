"""A file layer for SQLite that remembers what was synced, and can be told to fail."""

from collections.abc import Callable
from pathlib import Path

import apsw

__all__ = ["FaultyDisk"]


class FaultyDisk(apsw.VFS):
    """Passes everything on to the system. `synced` holds each file as it was when it was last synced.

    `on_write` and `on_sync` are called with the file's name before the deed; what they raise, SQLite gets. With
    `on_deed`, which is called with the kind of call and the file's name, also opening, reading, cutting and deleting
    a file are seen and may fail; then nothing waits for the real disk.
    """

    def __init__(self, name: str, on_deed: Callable[[str, str], None] | None = None) -> None:
        super().__init__(name, "")
        self.name = name
        self.synced: dict[str, bytes] = {}
        self.syncs: list[str] = []
        self.on_write: Callable[[str], None] = lambda _name: None
        self.on_sync: Callable[[str], None] = lambda _name: None
        self.on_deed = on_deed

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "apsw.VFSFile":
        if self.on_deed is None:
            return _File(self, name, flags)
        self.on_deed("open", _path(name).name)
        return _WatchedFile(self, name, flags, self.on_deed)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self.on_deed is not None:
            self.on_deed("delete", Path(filename).name)
        super().xDelete(filename, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = _path(name)
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


class _WatchedFile(_File):
    def __init__(
        self,
        disk: FaultyDisk,
        name: str | apsw.URIFilename | None,
        flags: list[int],
        on_deed: Callable[[str, str], None],
    ) -> None:
        self._on_deed = on_deed
        super().__init__(disk, name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._on_deed("read", self._path.name)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._on_deed("write", self._path.name)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._on_deed("truncate", self._path.name)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._on_deed("sync", self._path.name)


def _path(name: str | apsw.URIFilename | None) -> Path:
    return Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "")
