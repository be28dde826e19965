"""A file layer for SQLite that records what was synced and can fail on request."""

from collections.abc import Callable
from pathlib import Path

import apsw

__all__ = ["FaultyDisk"]


class FaultyDisk(apsw.VFS):
    """Passes every call to the system. `synced` contains each file as it was at its last sync.

    `on_write` and `on_sync` are called with the file's name before the operation; SQLite receives their exceptions.
    `on_operation`, called with the kind of call and the file's name, also covers opening, reading, truncating and
    deleting a file; with it nothing waits for the real disk.
    """

    def __init__(self, name: str, on_operation: Callable[[str, str], None] | None = None) -> None:
        super().__init__(name, "")
        self.name = name
        self.synced: dict[str, bytes] = {}
        self.syncs: list[str] = []
        self.on_write: Callable[[str], None] = lambda _name: None
        self.on_sync: Callable[[str], None] = lambda _name: None
        self.on_operation = on_operation

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "apsw.VFSFile":
        if self.on_operation is None:
            return _File(self, name, flags)
        self.on_operation("open", _path(name).name)
        return _WatchedFile(self, name, flags, self.on_operation)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self.on_operation is not None:
            self.on_operation("delete", Path(filename).name)
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
        # A new database is renamed when it is complete: data synced under its first name counts for the last.
        self._disk.synced[self._path.name.removesuffix(".new")] = self._path.read_bytes()


class _WatchedFile(_File):
    def __init__(
        self,
        disk: FaultyDisk,
        name: str | apsw.URIFilename | None,
        flags: list[int],
        on_operation: Callable[[str, str], None],
    ) -> None:
        self._on_deed = on_operation
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
