"""File access that is safe against replaced links: links are resolved once, before a path is checked.

A path is resolved to its real path, which is then opened component by component without following links. A link that
is created in between causes an error instead of an escape. Only plain files are read or written.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.surrogates import replace_surrogates
from holdfast.workspace.files.path_strings import display_path, is_within, join_path, similar_names

__all__ = [
    "Digest",
    "FileContent",
    "FileLocation",
    "digest_file",
    "digest_of",
    "directory_beneath",
    "entries_of",
    "locate",
    "open_beneath",
    "open_directory",
    "open_plain_file",
    "read_whole_file",
    "read_within",
    "replaced_error",
    "require_workspace",
    "status_beneath",
    "status_of",
    "stream_of",
    "too_large_error",
]

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_O_PATH = getattr(os, "O_PATH", os.O_RDONLY)
_UNSUPPORTED = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG)
"""Errors of an older kernel, or of a container that forbids unknown system calls."""

_libc = ctypes.CDLL(None, use_errno=True)
_VIRTUAL_FILE_SYSTEMS = ("/proc", "/sys", "/dev")
_ORDINARY_DIRECTORIES = ("/dev/shm",)
_CHUNK = 1 << 20


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open a relative path without `..`. Raises `OSError`: ELOOP or ENOTDIR if a component is a link.

    Always adds O_NOFOLLOW and O_CLOEXEC. For directories and existing files only.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise OSError(errno.EXDEV, "leads out of the directory")
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if sys.platform == "linux":
        with contextlib.suppress(NotImplementedError):
            return _openat2(folder, "/".join(names) or ".", flags)
    return _open_by_component(folder, names or ["."], flags)


def _openat2(folder: int, path: str, flags: int) -> int:
    how = _OpenHow(flags, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    while True:
        handle = int(_libc.syscall(_OPENAT2, ctypes.c_int(folder), os.fsencode(path), ctypes.byref(how), size))
        if handle >= 0:
            return handle
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            raise NotImplementedError
        if number not in (errno.EAGAIN, errno.EINTR):
            raise OSError(number, os.strerror(number), path)


def _open_by_component(folder: int, names: list[str], flags: int) -> int:
    *above, last = names
    handle = folder
    try:
        for name in above:
            below = os.open(name, _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            if handle != folder:
                os.close(handle)
            handle = below
        return os.open(last, flags, dir_fd=handle)
    finally:
        if handle != folder:
            os.close(handle)


def status_beneath(folder: int, path: str) -> os.stat_result | None:
    """Return the status of a relative path without following links; None if it is missing or a component is a link."""
    above, _, name = path.rpartition("/")
    try:
        with directory_beneath(folder, above) as handle:
            return os.stat(name, dir_fd=handle, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def stream_of(handle: int) -> BinaryIO:
    """Return a stream that reads an open file and closes it. Raises `OSError` for a directory, which is closed too."""
    try:
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


@contextlib.contextmanager
def directory_beneath(folder: int, path: str) -> Iterator[int]:
    """Open a directory below another one for the duration of the block."""
    handle = open_beneath(folder, path, _O_PATH | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def entries_of(folder: int, path: str) -> list[tuple[str, bool, bool, str]]:
    """Return the sorted entries of a directory below another one: name, is a directory, is a plain file, and the
    target if it is a link.
    """
    found: list[tuple[str, bool, bool, str]] = []
    handle = open_beneath(folder, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(handle) as items:
            for item in items:
                is_folder = item.is_dir(follow_symlinks=False)
                target = ""
                if item.is_symlink():
                    with contextlib.suppress(OSError):
                        target = os.readlink(item.name, dir_fd=handle)
                found.append((item.name, is_folder, item.is_file(follow_symlinks=False), target))
    finally:
        os.close(handle)
    return sorted(found)


class FileLocation(msgspec.Struct, frozen=True):
    """A resolved path: `path` is real, without links; `is_inside` is whether it is in the workspace."""

    given: str
    path: str
    root: str
    is_inside: bool

    @property
    def name(self) -> str:
        """Name for a model: relative inside the workspace; a link is shown with its target."""
        real = display_path(self.root, self.path)
        plain = os.path.normpath(self.given)
        return self.given if plain in (real, self.path) else f"{self.given} (which is {real})"


class FileContent(msgspec.Struct, frozen=True):
    """Content, digest and status of a file at the time it was read."""

    data: bytes
    digest: str
    status: os.stat_result


class Digest:
    """Incremental content hash."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32)
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._hash.update(data)
        self.size += len(data)

    @property
    def text(self) -> str:
        """Hexadecimal digest of the bytes added so far."""
        return self._hash.hexdigest()


def digest_of(data: bytes) -> str:
    """Return the digest of some bytes."""
    digest = Digest()
    digest.add(data)
    return digest.text


def too_large_error(name: str, size: int, limit: int) -> ToolError:
    """Return the error for a file that is too large."""
    return ToolError(f"{name} has {size:,} bytes; the limit is {limit:,}. Use a smaller section, or bash.")


def replaced_error(folder: str) -> ToolError:
    """Return the error for a directory that was replaced while in use."""
    return ToolError(f"The directory {folder} was replaced by another one just now. Try again.")


def require_workspace(root: str) -> None:
    """Raise `ToolError` if the workspace directory was moved or removed."""
    if not os.path.isdir(root):
        raise ToolError(
            f"The directory of this workspace, {root}, is gone: it was moved or removed. Nothing can be done in it"
            " until it is back. Tell the user, who can restore it, or start Holdfast in its new location."
        )


def locate(root: str, given: str, home: str = "") -> FileLocation:
    """Resolve the links of a path. The path need not exist."""
    real_root = os.path.realpath(root)
    try:
        path = os.path.realpath(join_path(real_root, given, home))
    except (OSError, ValueError) as error:
        raise ToolError(f"{given} cannot be resolved: {_reason(error)}.") from None
    if replace_surrogates(path) != path:
        # Such a path cannot be represented in messages, logs or the database.
        raise ToolError(f"{replace_surrogates(path)} has a name that is not valid UTF-8. Rename it with bash first.")
    return FileLocation(given, path, real_root, is_within(real_root, path))


def status_of(location: FileLocation) -> os.stat_result | None:
    """Return the status of a place without following links; None if it does not exist."""
    try:
        with _open_parent(location) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _to_tool_error(error, location) from None


def read_within(path: str, tops: Sequence[str], limit: int) -> tuple[bytes, os.stat_result]:
    """Read the beginning of a plain file, which may be a link to a path below one of `tops`. Raises `OSError`. The
    checked path is the one that is opened: a link created in between is not followed.
    """
    real = os.path.realpath(path)
    if not any(is_within(os.path.realpath(top), real) for top in tops):
        raise PermissionError(errno.EPERM, "leads out of the project")
    folder, name = os.path.split(real)
    handle = open_directory(folder)
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)
    with stream_of(file) as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(errno.EPERM, "is not a plain file")
        return stream.read(limit), status


@contextlib.contextmanager
def open_plain_file(location: FileLocation) -> Iterator[tuple[int, os.stat_result]]:
    """Open the plain file at a place for reading. Raises `ToolError` for anything else."""
    _refuse_virtual(location)
    try:
        with _open_parent(location) as (folder, name):
            # Opening a device or a pipe can have effects: check before opening, and again afterwards.
            _refuse_unless_plain(location, os.stat(name, dir_fd=folder, follow_symlinks=False))
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise ToolError(f"There is no file {location.name}.{_suggestions(location)}") from None
    except OSError as error:
        raise _to_tool_error(error, location) from None
    try:
        status = os.fstat(file)
        _refuse_unless_plain(location, status)
        yield file, status
    finally:
        os.close(file)


def read_whole_file(location: FileLocation, limit: int) -> FileContent:
    """Read a whole file of at most `limit` bytes."""
    with open_plain_file(location) as (file, status):
        if status.st_size > limit:
            raise too_large_error(location.name, status.st_size, limit)
        pieces: list[bytes] = []
        size = 0
        while piece := os.read(file, _CHUNK):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise too_large_error(location.name, size, limit)
        data = b"".join(pieces)
        return FileContent(data, digest_of(data), status)


def digest_file(location: FileLocation) -> tuple[Digest, os.stat_result]:
    """Return digest and status of a file of any size."""
    with open_plain_file(location) as (file, status):
        digest = Digest()
        while piece := os.read(file, _CHUNK):
            digest.add(piece)
        return digest, status


@contextlib.contextmanager
def _open_parent(location: FileLocation) -> Iterator[tuple[int, str]]:
    """Open the parent directory of a place without following links; yields it with the name of the file."""
    folder, name = os.path.split(location.path)
    handle = open_directory(folder)
    try:
        yield handle, name or "."
    finally:
        os.close(handle)


def open_directory(folder: str) -> int:
    """Open a directory by its real path. Raises `OSError`: ELOOP or ENOTDIR if a component is a link by now."""
    top = os.open("/", _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        handle = open_beneath(top, folder, _O_PATH | os.O_DIRECTORY)
    finally:
        os.close(top)
    try:
        _check_not_moved(handle, folder)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_not_moved(handle: int, folder: str) -> None:
    """Raise `OSError` if the directory was moved while it was being opened: it is not the checked one."""
    if sys.platform != "linux":
        return
    try:
        now = os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return
    if now != (folder or "/"):
        raise OSError(errno.ELOOP, "the directory was moved")


def _refuse_virtual(location: FileLocation) -> None:
    if any(is_within(top, location.path) for top in _VIRTUAL_FILE_SYSTEMS) and not any(
        is_within(top, location.path) for top in _ORDINARY_DIRECTORIES
    ):
        raise ToolError(f"{location.name} is a virtual file of the system: use bash to read it.")


def _refuse_unless_plain(location: FileLocation, status: os.stat_result) -> None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise ToolError(f"{location.name} is a directory, not a file. Use ls to list it.")
    kinds = ((stat.S_ISLNK, "a link that was just created"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    kind = next((word for test, word in kinds if test(mode)), "a device")
    raise ToolError(f"{location.name} is {kind}, not a plain file.")


def _suggestions(location: FileLocation) -> str:
    """Suggest up to three similar names in the same directory."""
    folder, name = os.path.split(location.path)
    with contextlib.suppress(OSError):
        handle = open_directory(folder)
        try:
            known = [other for other, *_ in entries_of(handle, ".")]
        finally:
            os.close(handle)
        if names := similar_names(name, known):
            paths = [display_path(location.root, os.path.join(folder, other)) for other in names]
            return f" Did you mean {', '.join(paths)}?"
    return ""


def _to_tool_error(error: OSError, location: FileLocation) -> ToolError:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return ToolError(f"{location.name} was changed while it was being opened. Try again.")
    if isinstance(error, NotADirectoryError):
        return ToolError(f"{location.name} cannot be reached: a part of the path is a file, not a directory.")
    return ToolError(f"{location.name} cannot be opened: {_reason(error)}.")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
