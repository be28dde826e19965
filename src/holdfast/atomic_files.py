"""Small files that several programs read and write: settings, credentials, trust, tokens.

This is the only implementation of an atomic write of such a file. The content is written to a draft in the same
directory, synced, and renamed over the old file; then the directory is synced. A crash at any point leaves the old file
or the new one, never a part of one, and after the call has returned a power cut does not bring the old one back.

Two writers have reasons to differ. `storage.schema` lets SQLite write the draft of a new database. `workspace.files`
edits files of users, which must keep their hard links, owners and modes and be written only if they did not change.

No call blocks indefinitely: a path may be a pipe without a writer, a device, or a file of another user.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.domain.documents import Edit, Signature
from holdfast.domain.errors import Conflict, HoldfastError, StorageUnavailable

__all__ = [
    "FILES",
    "MAX_FILE_SIZE",
    "FileUnreadable",
    "FileUnwritable",
    "Files",
    "Signature",
    "directory_lock",
    "file_signature",
    "has_changed",
    "read_file",
    "read_secret_file",
    "replace_file",
    "replace_private_file",
    "sync_directory",
]

MAX_FILE_SIZE = 256 * 1024
"""Maximum size in bytes. A larger file cannot be settings, and is not read."""

_LOCK_TIMEOUT = 10.0
_RETRY_INTERVAL = 0.01


class FileUnreadable(HoldfastError):
    """The file cannot be read."""


class FileUnwritable(StorageUnavailable):
    """The file cannot be written."""


def file_signature(path: str) -> Signature:
    """Return a value that changes whenever the file does: its modification and change time, size and inode. Costs one
    stat call.
    """
    try:
        return _signature(os.stat(path))
    except (OSError, ValueError):
        return None


def has_changed(path: str, seen: Signature) -> bool:
    """Return True if the file no longer has the signature `seen`."""
    if seen is None:
        # Most settings files do not exist, and each run checks them all: `access` is cheaper than a failing stat.
        return os.access(path, os.F_OK)
    return file_signature(path) != seen


def read_file(path: str) -> tuple[bytes, Signature]:
    """Return the content of a file and the signature that it had.

    Raises `FileNotFoundError` if there is none, and `FileUnreadable` if it is not a readable regular file of at most
    `MAX_FILE_SIZE` bytes.
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
            raise FileUnreadable(f"{path} is not a regular file: move it away or replace it by a file.")
        data = _read(descriptor)
    except OSError as error:
        raise FileUnreadable(f"{path} cannot be read: {_reason(error)}.") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_SIZE:
        raise FileUnreadable(f"{path} is larger than {MAX_FILE_SIZE // 1024} KiB, the limit for such a file.")
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
    return "its path is not valid"


def read_secret_file(path: str, what: str, min_length: int) -> str:
    """Return the text of a file with a secret, without surrounding white space.

    Raises `FileUnreadable` with one sentence if it cannot be read, if other users can read it, or if it is too short.
    """
    try:
        data = read_file(path)[0]
        state = os.stat(path)
    except (FileNotFoundError, OSError):
        raise FileUnreadable(f"The {what} {path} does not exist: create it, or correct its path.") from None
    except FileUnreadable as error:
        raise FileUnreadable(f"The {what} is not usable: {error}") from None
    if state.st_mode & 0o077 or state.st_uid not in (os.getuid(), 0):
        raise FileUnreadable(
            f"The {what} {path} can be read or changed by other users (mode {stat.S_IMODE(state.st_mode):o}): "
            f"make it yours, and use chmod 600 {path}."
        )
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if len(text) < min_length or not text.isprintable() or " " in text:
        problem = "is empty" if not data.strip() else f"does not contain one word of at least {min_length} characters"
        raise FileUnreadable(f"The {what} {path} {problem}: write one with openssl rand -base64 33 > {path}")
    return text


@contextmanager
def directory_lock(directory: str) -> Iterator[None]:
    """Exclude other writers in `directory`, in all processes. The directory itself is locked, so no lock file remains.

    Raises `Conflict` after 10 seconds, and `FileUnwritable` if the directory cannot be created or opened.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except (OSError, ValueError) as error:
        raise FileUnwritable(f"No file can be written in {directory}: {_reason(error)}.") from error
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
    """Replace a file atomically and durably, or create it. If `path` is a symbolic link, its target is replaced.

    For files that a user may keep elsewhere, for example in a repository of dotfiles. Raises `FileUnwritable`.
    """
    _replace(path, os.path.realpath(path), data, mode, is_durable=True)


def replace_private_file(path: str, data: bytes, *, is_durable: bool = True) -> None:
    """Replace a file that only its owner may read, or create it. A symbolic link at `path` is replaced, not followed.

    For secrets, which must not be written to a place that another user has chosen. A file that can be created again
    need not be durable: after a power cut it may be empty. Raises `FileUnwritable`.
    """
    _replace(path, path, data, 0o600, is_durable=is_durable)


def _replace(path: str, target: str, data: bytes, mode: int, *, is_durable: bool) -> None:
    directory = os.path.dirname(target)
    # Unique among concurrent writers, so that none of them writes to the draft of another.
    draft = os.path.join(directory, f".{os.path.basename(target)}.{os.getpid()}.{threading.get_ident():x}.new")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        # A process with the same id may have crashed here. O_EXCL: never write to a file that was prepared by another
        # user.
        with suppress(FileNotFoundError):
            os.unlink(draft)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        os.replace(draft, target)
        if is_durable:
            sync_directory(directory)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft)
        raise FileUnwritable(f"{path} cannot be written: {_reason(error)}.") from error


def sync_directory(directory: str) -> None:
    """Make renames in the directory durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


class Files:
    """Documents that are files, by their paths. See `domain.documents.Documents`."""

    signature = staticmethod(file_signature)
    has_changed = staticmethod(has_changed)
    read = staticmethod(read_file)

    def update(self, name: str, edit: Edit) -> None:
        """Change a file under the lock of its directory."""
        with directory_lock(os.path.dirname(name)):
            try:
                present: bytes | None = read_file(name)[0]
            except FileNotFoundError:
                present = None
            if (new := edit(present)) is not None:
                replace_file(name, new)


FILES = Files()
