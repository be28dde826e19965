"""The data directory: made for its owner alone, used by one server at a time."""

import fcntl
import os
from pathlib import Path

from holdfast.domain.errors import DataDirectoryBusy, StorageUnavailable

__all__ = ["DirectoryLock", "prepare", "unusable"]

_ELSEWHERE = "Another data directory can be chosen with --data-dir or HOLDFAST_DATA_DIR."


def prepare(data_dir: Path) -> None:
    """Create the directory if it is missing. An existing directory keeps its mode, which the user may have chosen."""
    if not _is_utf8(str(data_dir)):
        raise StorageUnavailable(f"The name of the data directory {data_dir} is not valid UTF-8. {_ELSEWHERE}")
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(data_dir, error) from None


class DirectoryLock:
    """Lock of the data directory, held while the server runs; the kernel releases it however the process ends.
    The file is never removed: otherwise two servers could lock two files of the same name.
    """

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(path, error) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            try:
                # The socket follows on the second line.
                owner = os.read(self._descriptor, 32).partition(b"\n")[0].decode("ascii", "replace").strip()
            finally:
                self.release()
            raise DataDirectoryBusy(
                f"The data directory {data_dir} is used by another Holdfast server (process {owner or 'unknown'}): "
                "connect to that one, stop it, or choose another data directory."
            ) from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
        except OSError:
            # The server adds its socket when it listens. A full disk must not keep it from starting.
            return

    def release(self) -> None:
        """Release the lock. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def unusable(path: Path, error: OSError) -> StorageUnavailable:
    """Return the error for a path that is not accessible, for a reason other than a full disk."""
    return StorageUnavailable(f"{path} cannot be used: {error.strerror}. {_ELSEWHERE}")


def _is_utf8(name: str) -> bool:
    """Return True if the name is valid UTF-8; SQLite accepts no other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
