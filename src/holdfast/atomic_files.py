"""Small files that others may change at any moment: read whole or not at all, replaced whole, one writer at a time.

Nothing here waits for ever: a path may be a pipe nobody writes to, a device, or a file of another user.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from holdfast.domain.errors import Conflict, HoldfastError, StorageUnavailable

__all__ = [
    "MAX_FILE_SIZE",
    "FileUnreadable",
    "FileUnwritable",
    "Signature",
    "directory_lock",
    "file_signature",
    "has_changed",
    "read_file",
    "replace_file",
    "sync_directory",
]

MAX_FILE_SIZE = 256 * 1024
"""More than anybody writes by hand. What is larger is no configuration, and is not read."""

Signature: TypeAlias = tuple[int, int, int, int] | None
"""When a file changed, how large it is, which one it is; None if there is none."""

_LOCK_TIMEOUT = 10.0
_RETRY_INTERVAL = 0.01


class FileUnreadable(HoldfastError):
    """The file cannot be read."""


class FileUnwritable(StorageUnavailable):
    """The file cannot be written."""


def file_signature(path: str) -> Signature:
    """What changes when the file does. Costs one look at the directory."""
    try:
        return _signature(os.stat(path))
    except (OSError, ValueError):
        return None


def has_changed(path: str, seen: Signature) -> bool:
    """Whether the file is another than it was. Asked before every run, and mostly of files that are not there."""
    if seen is None:
        return os.access(path, os.F_OK)
    return file_signature(path) != seen


def read_file(path: str) -> tuple[bytes, Signature]:
    """The whole file and the signature it had. `FileNotFoundError` if there is none, `Unreadable` if it is no file
    one can read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(path) from error
    except (OSError, ValueError) as error:
        raise FileUnreadable(f"{path} cannot be read: {_reason(error)}.") from error
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise FileUnreadable(f"{path} is not a file: move it away, or put a file in its place.")
        data = _read(descriptor)
    except OSError as error:
        raise FileUnreadable(f"{path} cannot be read: {_reason(error)}.") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_SIZE:
        raise FileUnreadable(f"{path} is larger than {MAX_FILE_SIZE // 1024} KiB: that is no configuration.")
    return data, _signature(state)


def _read(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    left = MAX_FILE_SIZE + 1
    while left > 0 and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _signature(state: os.stat_result) -> Signature:
    return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        if error.errno == errno.ELOOP:
            return "it is a link that leads back to itself"
        return (error.strerror or "the system refused").lower()
    return "its path is not a valid one"


@contextmanager
def directory_lock(directory: str) -> Iterator[None]:
    """The only writer in `directory`, among all processes. The lock is on the directory itself: it leaves no file."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except (OSError, ValueError) as error:
        raise FileUnwritable(f"Nothing can be written in {directory}: {_reason(error)}.") from error
    try:
        _acquire(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, directory: str) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT
    pause = threading.Event()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Conflict(f"Another process is writing in {directory}: try again.") from None
            pause.wait(_RETRY_INTERVAL)
        else:
            return


def replace_file(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """A crash leaves the old file or the new one, never half of one. A link stays a link: its target is replaced."""
    target = os.path.realpath(path)
    directory = os.path.dirname(target)
    draft = os.path.join(directory, f".{os.path.basename(target)}.{os.getpid()}.{threading.get_ident():x}.new")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
        sync_directory(directory)
    except OSError as error:
        with _ignored():
            os.unlink(draft)
        raise FileUnwritable(f"{path} cannot be written: {_reason(error)}.") from error


def sync_directory(directory: str) -> None:
    """Make a rename in it last: without this, a power cut may bring the old file back."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have no such thing.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _ignored() -> Iterator[None]:
    try:
        yield
    except OSError:
        return
