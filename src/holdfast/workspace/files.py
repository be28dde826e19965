"""File access that is safe against replaced links: links are resolved once, before a path is checked.

A path is resolved to its real path, which is then opened component by component without following links. A link that
is created in between causes an error instead of an escape. Only plain files are read or written.
"""

import contextlib
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.halves import encodable
from holdfast.workspace.beneath import entries_of, open_beneath, stream_of
from holdfast.workspace.paths import is_within, joined, shown, similar

__all__ = [
    "Digest",
    "Place",
    "Seen",
    "descend",
    "digest_of",
    "locate",
    "look",
    "opened",
    "read",
    "read_within",
    "replaced",
    "require",
    "too_large",
    "weigh",
]

_STRANGE = ("/proc", "/sys", "/dev")
_FINE = ("/dev/shm",)
_NAME_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_CHUNK = 1 << 20


class Place(msgspec.Struct, frozen=True):
    """A resolved path: `path` is real, without links; `is_inside` is whether it is in the workspace."""

    given: str
    path: str
    root: str
    is_inside: bool

    @property
    def name(self) -> str:
        """Name for a model: relative inside the workspace; a link is shown with its target."""
        real = shown(self.root, self.path)
        plain = os.path.normpath(self.given)
        return self.given if plain in (real, self.path) else f"{self.given} (which is {real})"


class Seen(msgspec.Struct, frozen=True):
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


def too_large(name: str, size: int, most: int) -> ToolError:
    """Return the error for a file that is too large."""
    return ToolError(f"{name} has {size:,} bytes; at most {most:,} are taken. Use a smaller section, or bash.")


def replaced(folder: str) -> ToolError:
    """Return the error for a directory that was replaced while in use."""
    return ToolError(f"The directory {folder} was replaced by another one just now. Try again.")


def require(root: str) -> None:
    """Raise `ToolError` if the workspace directory was moved or removed."""
    if not os.path.isdir(root):
        raise ToolError(
            f"The directory of this workspace, {root}, is gone: it was moved or removed. Nothing can be done in it"
            " until it is back. Say so to the user, who can put it back, or start Holdfast where it is now."
        )


def locate(root: str, given: str, home: str = "") -> Place:
    """Resolve the links of a path. The path need not exist."""
    real_root = os.path.realpath(root)
    try:
        path = os.path.realpath(joined(real_root, given, home))
    except (OSError, ValueError) as error:
        raise ToolError(f"{given} cannot be resolved: {_why(error)}.") from None
    if encodable(path) != path:
        # Such a path cannot be represented in messages, logs or the database.
        raise ToolError(f"{encodable(path)} has a name that is not valid UTF-8. Rename it with bash first.")
    return Place(given, path, real_root, is_within(real_root, path))


def look(place: Place) -> os.stat_result | None:
    """Return the status of a place without following links; None if it does not exist."""
    try:
        with _parent(place) as (folder, name):
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _explained(error, place) from None


def read_within(path: str, tops: Sequence[str], most: int) -> tuple[bytes, os.stat_result]:
    """Read the beginning of a plain file, which may be a link to a path below one of `tops`. Raises `OSError`. The
    checked path is the one that is opened: a link created in between is not followed.
    """
    real = os.path.realpath(path)
    if not any(is_within(os.path.realpath(top), real) for top in tops):
        raise PermissionError(errno.EPERM, "leads out of the project")
    folder, name = os.path.split(real)
    handle = descend(folder)
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)
    with stream_of(file) as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(errno.EPERM, "is not a plain file")
        return stream.read(most), status


@contextlib.contextmanager
def opened(place: Place) -> Iterator[tuple[int, os.stat_result]]:
    """Open the plain file at a place for reading. Raises `ToolError` for anything else."""
    _refuse_strange(place)
    try:
        with _parent(place) as (folder, name):
            # Opening a device or a pipe can have effects: check before opening, and again afterwards.
            _refuse_unless_plain(place, os.stat(name, dir_fd=folder, follow_symlinks=False))
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise ToolError(f"There is no file {place.name}.{_others(place)}") from None
    except OSError as error:
        raise _explained(error, place) from None
    try:
        status = os.fstat(file)
        _refuse_unless_plain(place, status)
        yield file, status
    finally:
        os.close(file)


def read(place: Place, most: int) -> Seen:
    """Read a whole file of at most `most` bytes."""
    with opened(place) as (file, status):
        if status.st_size > most:
            raise too_large(place.name, status.st_size, most)
        pieces: list[bytes] = []
        size = 0
        while piece := os.read(file, _CHUNK):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise too_large(place.name, size, most)
        data = b"".join(pieces)
        return Seen(data, digest_of(data), status)


def weigh(place: Place) -> tuple[Digest, os.stat_result]:
    """Return digest and status of a file of any size."""
    with opened(place) as (file, status):
        digest = Digest()
        while piece := os.read(file, _CHUNK):
            digest.add(piece)
        return digest, status


@contextlib.contextmanager
def _parent(place: Place) -> Iterator[tuple[int, str]]:
    """Open the parent directory of a place without following links; yields it with the name of the file."""
    folder, name = os.path.split(place.path)
    handle = descend(folder)
    try:
        yield handle, name or "."
    finally:
        os.close(handle)


def descend(folder: str) -> int:
    """Open a directory by its real path. Raises `OSError`: ELOOP or ENOTDIR if a component is a link by now."""
    top = os.open("/", _NAME_ONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        handle = open_beneath(top, folder, _NAME_ONLY | os.O_DIRECTORY)
    finally:
        os.close(top)
    try:
        _check_still_there(handle, folder)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_still_there(handle: int, folder: str) -> None:
    """Raise `OSError` if the directory was moved while it was being opened: it is not the checked one."""
    if sys.platform != "linux":
        return
    try:
        now = os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return
    if now != (folder or "/"):
        raise OSError(errno.ELOOP, "the directory was moved")


def _refuse_strange(place: Place) -> None:
    if any(is_within(top, place.path) for top in _STRANGE) and not any(is_within(top, place.path) for top in _FINE):
        raise ToolError(f"{place.name} belongs to the system, not to a disk: use bash to look at it.")


def _refuse_unless_plain(place: Place, status: os.stat_result) -> None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise ToolError(f"{place.name} is a directory, not a file. Use ls to see what is in it.")
    kinds = ((stat.S_ISLNK, "a link that was just made"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    kind = next((word for test, word in kinds if test(mode)), "a device")
    raise ToolError(f"{place.name} is {kind}, not a plain file.")


def _others(place: Place) -> str:
    """Suggest up to three similar names in the same directory."""
    folder, name = os.path.split(place.path)
    with contextlib.suppress(OSError):
        handle = descend(folder)
        try:
            known = [other for other, *_ in entries_of(handle, ".")]
        finally:
            os.close(handle)
        if names := similar(name, known):
            paths = [shown(place.root, os.path.join(folder, other)) for other in names]
            return f" Did you mean {', '.join(paths)}?"
    return ""


def _explained(error: OSError, place: Place) -> ToolError:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return ToolError(f"{place.name} was changed while it was being opened. Try again.")
    if isinstance(error, NotADirectoryError):
        return ToolError(f"{place.name} cannot be reached: a part of the path is a file, not a directory.")
    return ToolError(f"{place.name} cannot be opened: {_why(error)}.")


def _why(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
