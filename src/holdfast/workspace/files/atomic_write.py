"""Atomic writes: a file gets its whole new content or stays unchanged.

A draft is a hidden temporary file beside its target: `open`, `add` and `finish` create, fill and sync it, in a thread.
Until `publish` it has no effect and can be discarded at any time. Publishing is one system call and never half done:

- A replacement is renamed over its target, which must still be the file that was examined.
- A new file is linked to its name. Linking fails if the name exists by now, where renaming would overwrite it.
- A file with several hard links, or in a directory that is not writable, cannot be replaced: its content is overwritten
  in place. This is the only case in which a crash can leave a part of the new content.

`revert` restores the old content of a change that could not be recorded. `set_aside` removes a file in such a way that
it can be restored: it is renamed to a temporary name until `restore` or `discard`.

All paths are opened component by component without following links (`safe_open`), and every decision is made on an
open directory, so that a link or file that is exchanged meanwhile causes an error and never a change elsewhere.

A process that is killed leaves its temporary files behind. Each process holds a lock on those that it uses, which the
kernel releases at its death; `remove_abandoned` removes the files whose lock is free. Rejected: unnamed files
(O_TMPFILE), which cannot replace an existing file and which not every file system has.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator

from holdfast.domain.errors import ToolError
from holdfast.workspace.files.safe_open import FileLocation, entries_of, open_directory

__all__ = ["AtomicWrite", "remove_abandoned"]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TEMPORARY = re.compile(r"\.holdfast-[0-9a-f]{16}\.tmp")


class AtomicWrite:
    """New content for a file, not yet published. `old` is the status of the file when its content was examined, None
    for a new file: if the file has changed since, publishing is refused.
    """

    def __init__(self, location: FileLocation, old: os.stat_result | None) -> None:
        self._location = location
        self._old = old
        self._lock = threading.Lock()
        self._folder = -1
        self._file = -1
        self._name = ""
        self._created: list[str] = []
        self._published: os.stat_result | None = None
        """Status of the published file."""
        self._published_folders: tuple[str, ...] = ()
        """Directories created for the file."""
        self._is_in_place = False
        self._is_discarded = False
        self._is_busy = False
        self.size = 0

    def open(self) -> None:
        """Create missing directories and the empty draft. Blocks. Raises `ToolError`."""
        with self._in_use():
            try:
                self._open()
            except OSError as error:
                raise _to_tool_error(error, self._location) from None

    def add(self, data: bytes) -> None:
        """Append to the draft. Blocks."""
        with self._in_use():
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._file, view) :]
            except OSError as error:
                raise _to_tool_error(error, self._location) from None
            self.size += len(data)

    def finish(self) -> None:
        """Give the draft its mode and owner, and sync it. Blocks."""
        with self._in_use():
            try:
                if self._old is not None:
                    _copy_attributes(self._file, self._old, self._folder, os.path.basename(self._location.path))
                os.fsync(self._file)
            except OSError as error:
                raise _to_tool_error(error, self._location) from None

    def publish(self) -> None:
        """Publish the draft. Short, so it is called synchronously. Raises `ToolError`."""
        folder, name = self._folder, os.path.basename(self._location.path)
        try:
            self._refuse_if_changed(folder, name)
            self._is_in_place = self._old is not None and (self._old.st_nlink > 1 or not self._name)
            if self._old is None:
                # Linking fails if the name exists by now; renaming would overwrite it.
                self._link(folder, name)
            elif self._is_in_place:
                self._overwrite(folder, name)
            else:
                os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
                self._name = ""
            if not self._is_in_place:
                self._published = os.fstat(self._file)
        except OSError as error:
            raise _to_tool_error(error, self._location) from None
        self._published_folders = tuple(self._created)
        self._created.clear()
        self.discard()

    def sync(self) -> None:
        """Sync the published or removed file and its directories. Blocks. Failures to sync are ignored."""
        path = self._location.path
        if self._is_in_place:
            _sync(path)
        for folder in dict.fromkeys(map(os.path.dirname, (path, *reversed(self._published_folders)))):
            _sync(folder)

    def revert(self, old: bytes | None) -> None:
        """Restore the old content, or remove the new file and its directories if there was none. Blocks.

        For a change that could not be recorded. Raises `ToolError` if the file has changed since.
        """
        if old is None:
            AtomicWrite(self._location, self._published).remove()
            for folder in reversed(self._published_folders):
                with contextlib.suppress(OSError):
                    _remove_directory(folder)
            return
        write = AtomicWrite(self._location, self._published)
        try:
            write.open()
            write.add(old)
            write.finish()
            write.publish()
        finally:
            write.discard()

    def remove(self) -> None:
        """Remove the file instead of replacing it. Blocks. Raises `ToolError` if it is not the examined one."""
        try:
            self.set_aside()
        finally:
            self.discard()

    def set_aside(self) -> None:
        """Rename the file to a temporary name, until it is either put back or, by giving up, removed. Blocks."""
        name, aside = os.path.basename(self._location.path), _temporary_name()
        with self._in_use():
            try:
                self._folder = open_directory(os.path.dirname(self._location.path))
                self._refuse_if_changed(self._folder, name)
                self._lock_by_name(name)
                os.rename(name, aside, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                self._name = aside
            except OSError as error:
                raise _to_tool_error(error, self._location) from None

    def restore(self) -> None:
        """Restore the name of the file that was set aside, unless the name exists by now. Blocks."""
        try:
            self._link(self._folder, os.path.basename(self._location.path))
        except OSError as error:
            # Keep it under a name that `remove_abandoned` does not remove: it must not be lost.
            kept = self._name.removesuffix(".tmp") + ".kept"
            with contextlib.suppress(OSError):
                os.rename(self._name, kept, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._name = ""
            raise _to_tool_error(error, self._location) from None

    def discard(self) -> None:
        """Remove the draft and everything created for it. If a thread is working on it, that thread cleans up at the
        end.
        """
        with self._lock:
            self._is_discarded = True
            self._clean_up_if_discarded()

    def _open(self) -> None:
        folder = os.path.dirname(self._location.path)
        self._folder = self._open_or_create(folder)
        name = os.path.basename(self._location.path)
        if self._old is not None and not os.access(name, os.W_OK, dir_fd=self._folder):
            raise ToolError(f"{self._location.name} is read-only: it is protected, or belongs to another user.")
        try:
            # A new file gets the mode 0666 restricted by the umask. A replacement stays private until it has its
            # final mode.
            self._create_draft(0o666 if self._old is None else 0o600)
        except PermissionError:
            if self._old is None:
                raise
            # The file is writable but its directory is not: the draft is stored elsewhere and copied in place.
            with tempfile.TemporaryFile() as elsewhere:
                self._file = os.dup(elsewhere.fileno())

    def _create_draft(self, mode: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            self._name = ""
            name = _temporary_name()
            self._file = os.open(name, flags, mode, dir_fd=self._folder)
            self._name = name
            _flock(self._file, fcntl.LOCK_EX)
            if os.fstat(self._file).st_nlink:
                return
            # `remove_abandoned` of another server has removed it between its creation and the lock.
            os.close(self._file)
            self._file = -1

    def _open_or_create(self, folder: str) -> int:
        try:
            return open_directory(folder)
        except FileNotFoundError:
            parent, name = os.path.split(folder)
            handle = self._open_or_create(parent)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
                    self._created.append(folder)
            finally:
                os.close(handle)
            return open_directory(folder)

    def _lock_by_name(self, name: str) -> None:
        """Lock a file before it gets a temporary name. One that cannot be read cannot be removed as abandoned."""
        with contextlib.suppress(OSError):
            self._file = os.open(name, _READ, dir_fd=self._folder)
            # Another program may hold a lock on its own file for a long time: do not wait for it.
            _flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _refuse_if_changed(self, folder: int, name: str) -> None:
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            if self._old is not None:
                raise ToolError(
                    f"{self._location.name} was removed meanwhile. Read it again before you write."
                ) from None
            return
        self._refuse_unless_examined(now)

    def _refuse_unless_examined(self, now: os.stat_result) -> None:
        if self._old is None or _identity(now) != _identity(self._old):
            raise ToolError(f"{self._location.name} was changed by another program just now. Use view again.")

    def _link(self, folder: int, name: str) -> None:
        try:
            os.link(self._name, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
            self._name = ""

    def _overwrite(self, folder: int, name: str) -> None:
        """Overwrite the content in place, so that all hard links keep referring to the same file."""
        # O_NONBLOCK: the file may have been replaced by a pipe without a reader, on which opening would block.
        target = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            self._refuse_unless_examined(os.fstat(target))
            location = 0
            while piece := os.pread(self._file, 1 << 20, location):
                location += os.write(target, piece)
            os.ftruncate(target, location)
            self._published = os.fstat(target)
        finally:
            os.close(target)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            if self._is_discarded:
                raise ToolError("The write was aborted.")
            self._is_busy = True
        try:
            yield
        finally:
            with self._lock:
                self._is_busy = False
                self._clean_up_if_discarded()

    def _clean_up_if_discarded(self) -> None:
        if not self._is_discarded or self._is_busy:
            return
        if self._name and self._folder >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        for folder in reversed(self._created):
            with contextlib.suppress(OSError):
                _remove_directory(folder)
        for handle in (self._file, self._folder):
            if handle >= 0:
                os.close(handle)
        self._name, self._created, self._file, self._folder = "", [], -1, -1


def remove_abandoned(folder: str) -> None:
    """Remove the temporary files that killed processes have left in a directory. Blocks. Failures are ignored."""
    with contextlib.suppress(OSError):
        handle = open_directory(folder)
        try:
            for name, _, is_file, _ in entries_of(handle, "."):
                if is_file and _TEMPORARY.fullmatch(name):
                    _remove_if_unlocked(handle, name)
        finally:
            os.close(handle)


def _remove_if_unlocked(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        file = os.open(name, _READ, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The name may have been removed, or given to another file, before the lock was acquired.
            if os.path.samestat(os.fstat(file), os.stat(name, dir_fd=folder, follow_symlinks=False)):
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(file)


def _flock(file: int, operation: int) -> None:
    """Lock a file until it is closed. File systems without locks are accepted: no file can be removed there either."""
    with contextlib.suppress(OSError):
        fcntl.flock(file, operation)


def _temporary_name() -> str:
    return f".holdfast-{secrets.token_hex(8)}.tmp"


def _sync(path: str) -> None:
    """Sync a file or directory by its current name without following links. Best effort."""
    with contextlib.suppress(OSError):
        folder = open_directory(os.path.dirname(path))
        try:
            handle = os.open(os.path.basename(path) or ".", _READ, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_directory(folder: str) -> None:
    """Remove an empty directory without following a link that may have replaced one above it."""
    parent, name = os.path.split(folder)
    handle = open_directory(parent)
    try:
        os.rmdir(name, dir_fd=handle)
    finally:
        os.close(handle)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _copy_attributes(file: int, old: os.stat_result, folder: int, name: str) -> None:
    """Copy mode, owner and extended attributes of the replaced file, as far as permitted."""
    now = os.fstat(file)
    mode = stat.S_IMODE(old.st_mode)
    if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(file, old.st_uid, old.st_gid)
        except OSError:
            # With another owner, the set-uid and set-gid bits would grant other rights.
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    if sys.platform == "linux":
        path = f"/proc/self/fd/{folder}/{name}"
        with contextlib.suppress(OSError):
            for label in os.listxattr(path, follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.setxattr(file, label, os.getxattr(path, label, follow_symlinks=False))
    os.fchmod(file, mode)


def _to_tool_error(error: OSError, location: FileLocation) -> ToolError:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return ToolError(f"{location.name} was changed while it was being written. Try again.")
    if isinstance(error, NotADirectoryError):
        return ToolError(f"{location.name} cannot be written: a part of the path is a file, not a directory.")
    return ToolError(f"{location.name} cannot be written: {(error.strerror or 'the system refused').lower()}.")
