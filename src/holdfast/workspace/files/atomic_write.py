"""Atomic writes: a file gets its whole new content or stays unchanged.

A draft is a hidden temporary file beside its target. It is prepared in a thread and can be abandoned at any time
without effect. Publishing it is one system call, so it is never half done. The exceptions are files with several hard
links and files in read-only directories, whose content is overwritten in place.
"""

import contextlib
import errno
import os
import secrets
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator

from holdfast.domain.errors import ToolError
from holdfast.workspace.files.open_files import FileLocation, descend

__all__ = ["AtomicWrite"]


class AtomicWrite:
    """New content for a place, not yet published. `old` is the status of the file when its content was examined, None
    for a new file: if the file has changed since, publishing is refused.
    """

    def __init__(self, place: FileLocation, old: os.stat_result | None) -> None:
        self._place = place
        self._old = old
        self._guard = threading.Lock()
        self._folder = -1
        self._file = -1
        self._name = ""
        self._made: list[str] = []
        self._put: os.stat_result | None = None
        """Status of the published file."""
        self._put_folders: tuple[str, ...] = ()
        """Directories created for the file."""
        self._is_poured = False
        self._is_given_up = False
        self._is_busy = False
        self.size = 0

    def open(self) -> None:
        """Create missing directories and the empty draft. Blocks. Raises `ToolError`."""
        with self._working():
            try:
                self._open()
            except OSError as error:
                raise _explained(error, self._place) from None

    def add(self, data: bytes) -> None:
        """Append to the draft. Blocks."""
        with self._working():
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._file, view) :]
            except OSError as error:
                raise _explained(error, self._place) from None
            self.size += len(data)

    def finish(self) -> None:
        """Give the draft its mode and owner, and sync it. Blocks."""
        with self._working():
            try:
                if self._old is not None:
                    _dress(self._file, self._old, self._folder, os.path.basename(self._place.path))
                os.fsync(self._file)
            except OSError as error:
                raise _explained(error, self._place) from None

    def put(self) -> None:
        """Publish the draft. Short, so it is called synchronously. Raises `ToolError`."""
        folder, name = self._folder, os.path.basename(self._place.path)
        try:
            self._refuse_a_stranger(folder, name)
            self._is_poured = self._old is not None and (self._old.st_nlink > 1 or not self._name)
            if self._old is None:
                # Linking fails if the name exists by now; renaming would overwrite it.
                self._link_new(folder, name)
            elif self._is_poured:
                self._pour(folder, name)
            else:
                os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
                self._name = ""
            if not self._is_poured:
                self._put = os.fstat(self._file)
        except OSError as error:
            raise _explained(error, self._place) from None
        self._put_folders = tuple(self._made)
        self._made.clear()
        self.give_up()

    def sync(self) -> None:
        """Sync the published or removed file and its directories. Blocks. Failures to sync are ignored."""
        path = self._place.path
        if self._is_poured:
            _sync(path)
        for folder in dict.fromkeys(map(os.path.dirname, (path, *reversed(self._put_folders)))):
            _sync(folder)

    def take_back(self, old: bytes | None) -> None:
        """Restore the old content, or remove the new file and its directories if there was none. Blocks.

        For a change that could not be recorded. Raises `ToolError` if the file has changed since.
        """
        if old is None:
            AtomicWrite(self._place, self._put).remove()
            for folder in reversed(self._put_folders):
                with contextlib.suppress(OSError):
                    _unmake(folder)
            return
        draft = AtomicWrite(self._place, self._put)
        try:
            draft.open()
            draft.add(old)
            draft.finish()
            draft.put()
        finally:
            draft.give_up()

    def remove(self) -> None:
        """Remove the file instead of replacing it. Blocks. Raises `ToolError` if it is not the examined one."""
        try:
            self.set_aside()
        finally:
            self.give_up()

    def set_aside(self) -> None:
        """Rename the file to a temporary name, until it is either put back or, by giving up, removed. Blocks."""
        name, aside = os.path.basename(self._place.path), _draft_name()
        with self._working():
            try:
                self._folder = descend(os.path.dirname(self._place.path))
                self._refuse_a_stranger(self._folder, name)
                os.rename(name, aside, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                self._name = aside
            except OSError as error:
                raise _explained(error, self._place) from None

    def put_back(self) -> None:
        """Restore the name of the file that was set aside, unless the name exists by now. Blocks."""
        try:
            self._link_new(self._folder, os.path.basename(self._place.path))
        except OSError as error:
            # Keep it under its temporary name: it must not be lost.
            self._name = ""
            raise _explained(error, self._place) from None

    def give_up(self) -> None:
        """Remove the draft and everything created for it. If a thread is working on it, that thread cleans up at the
        end.
        """
        with self._guard:
            self._is_given_up = True
            self._clear_if_given_up()

    def _open(self) -> None:
        folder = os.path.dirname(self._place.path)
        self._folder = self._make_way(folder)
        name = os.path.basename(self._place.path)
        if self._old is not None and not os.access(name, os.W_OK, dir_fd=self._folder):
            raise ToolError(f"{self._place.name} is read-only: it is protected, or belongs to somebody else.")
        draft = _draft_name()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            # A new file gets the mode 0666 restricted by the umask. A replacement stays private until it has its
            # final mode.
            self._file = os.open(draft, flags, 0o666 if self._old is None else 0o600, dir_fd=self._folder)
            self._name = draft
        except PermissionError:
            if self._old is None:
                raise
            # The file is writable but its directory is not: the draft is stored elsewhere and copied in place.
            with tempfile.TemporaryFile() as elsewhere:
                self._file = os.dup(elsewhere.fileno())

    def _make_way(self, folder: str) -> int:
        try:
            return descend(folder)
        except FileNotFoundError:
            parent, name = os.path.split(folder)
            handle = self._make_way(parent)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
                    self._made.append(folder)
            finally:
                os.close(handle)
            return descend(folder)

    def _refuse_a_stranger(self, folder: int, name: str) -> None:
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            if self._old is not None:
                raise ToolError(f"{self._place.name} was removed meanwhile. Look again before you write.") from None
            return
        self._refuse_unless_judged(now)

    def _refuse_unless_judged(self, now: os.stat_result) -> None:
        if self._old is None or _state(now) != _state(self._old):
            raise ToolError(f"{self._place.name} was changed by somebody else just now. Use view again.")

    def _link_new(self, folder: int, name: str) -> None:
        try:
            os.link(self._name, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
            self._name = ""

    def _pour(self, folder: int, name: str) -> None:
        """Overwrite the content in place, so that all hard links keep referring to the same file."""
        # O_NONBLOCK: the file may have been replaced by a pipe without a reader, on which opening would block.
        target = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            self._refuse_unless_judged(os.fstat(target))
            place = 0
            while piece := os.pread(self._file, 1 << 20, place):
                place += os.write(target, piece)
            os.ftruncate(target, place)
            self._put = os.fstat(target)
        finally:
            os.close(target)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        with self._guard:
            if self._is_given_up:
                raise ToolError("The write was given up.")
            self._is_busy = True
        try:
            yield
        finally:
            with self._guard:
                self._is_busy = False
                self._clear_if_given_up()

    def _clear_if_given_up(self) -> None:
        if not self._is_given_up or self._is_busy:
            return
        if self._name and self._folder >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                _unmake(folder)
        for handle in (self._file, self._folder):
            if handle >= 0:
                os.close(handle)
        self._name, self._made, self._file, self._folder = "", [], -1, -1


def _draft_name() -> str:
    return f".holdfast-{secrets.token_hex(8)}.tmp"


def _sync(path: str) -> None:
    """Sync a file or directory by its current name without following links. Best effort."""
    with contextlib.suppress(OSError):
        folder = descend(os.path.dirname(path))
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(os.path.basename(path) or ".", flags, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _unmake(folder: str) -> None:
    """Remove an empty directory without following a link that may have replaced one above it."""
    parent, name = os.path.split(folder)
    handle = descend(parent)
    try:
        os.rmdir(name, dir_fd=handle)
    finally:
        os.close(handle)


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _dress(file: int, old: os.stat_result, folder: int, name: str) -> None:
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


def _explained(error: OSError, place: FileLocation) -> ToolError:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return ToolError(f"{place.name} was changed while it was being written. Try again.")
    if isinstance(error, NotADirectoryError):
        return ToolError(f"{place.name} cannot be written: a part of the path is a file, not a directory.")
    return ToolError(f"{place.name} cannot be written: {(error.strerror or 'the system refused').lower()}.")
