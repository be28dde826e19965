"""The file system a sandboxed command sees, built in its own mount namespace. Runs in the guard process.

The whole tree becomes read-only first, recursively: unlike Landlock, a read-only mount also refuses chmod, chown,
utime and extended attributes. The listed mounts are then applied in order. Their sources are opened before anything is
mounted, so that a directory may be bound from below a path that an earlier mount covers.

`Mount` operations, as (operation, path, source):

* ``tmpfs``: an empty writable directory; ``seal`` makes it read-only once its mount points exist.
* ``bind``: a writable bind mount; ``read``: a read-only one. Both are recursive, without devices and set-uid programs.
* ``mask``: an empty unreadable file in place of a file or a socket.
* ``freeze``: a read-only bind mount of a path onto itself, created when its turn is reached.
"""

import ctypes
import os
import stat
from collections.abc import Sequence

__all__ = ["build_view"]

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 0x1000, 0x4000, 0x40000,
)  # fmt: skip
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE, _AT_SYMLINK_NOFOLLOW = -100, 0x1000, 0x8000, 0x100
_CLONE, _CLOEXEC, _FROM_EMPTY_PATH = 1, os.O_CLOEXEC, 0x4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int, what: str, *arguments: object) -> int:
    return _check(int(_libc.syscall(ctypes.c_long(number), *arguments)), what)


def build_view(mounts: Sequence[Sequence[str]]) -> None:
    """Apply the mounts. The caller is in a new mount and PID namespace and has mounted its own `/proc`."""
    _mount("", "/", "", _MS_REC | _MS_PRIVATE)
    trees = [_clone(source) if source else -1 for _, _, source in mounts]
    devices = {name: _clone(f"/dev/{name}") for name in _DEVICES if os.path.exists(f"/dev/{name}")}
    _set("/", _ATTR_RDONLY)
    _make_devices(devices)
    for (operation, path, _), tree in zip(mounts, trees, strict=True):
        _apply(operation, path, tree)


def _apply(operation: str, path: str, tree: int) -> None:
    match operation:
        case "tmpfs":
            os.makedirs(path, exist_ok=True)
            _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
        case "bind" | "read":
            _attach(tree, path)
            _set(path, _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if operation == "read" else 0))
        case "mask":
            _attach(_clone(os.devnull), path)
            _set(path, _ATTR_RDONLY | _ATTR_NODEV)
        case "freeze":
            _attach(_clone(path), path)
            _set(path, _ATTR_RDONLY)
        case "seal":
            _mount("", path, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
        case _:
            raise OSError(0, f"unknown mount operation {operation}")


def _make_devices(devices: dict[str, int]) -> None:
    """Mount a `/dev` without the terminals, disks and shared memory of the machine."""
    _mount("tmpfs", "/dev", "tmpfs", _MS_NOSUID | _MS_NOEXEC, "mode=755")
    for name, tree in devices.items():
        _attach(tree, f"/dev/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}")
    _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
    for name, target in _DEVICE_LINKS:
        os.symlink(target, f"/dev/{name}")


def _clone(path: str) -> int:
    """Return a detached copy of the mount tree at a path."""
    flags = _CLONE | _CLOEXEC | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
    return _syscall(_OPEN_TREE, f"open {path}", ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags))


def _attach(tree: int, path: str) -> None:
    try:
        _make_mount_point(path, is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
        target = (ctypes.c_int(_AT_FDCWD), os.fsencode(path))
        _syscall(_MOVE_MOUNT, f"mount {path}", ctypes.c_int(tree), b"", *target, ctypes.c_uint(_FROM_EMPTY_PATH))
    finally:
        os.close(tree)


def _make_mount_point(path: str, *, is_directory: bool) -> None:
    if os.path.lexists(path):
        return
    if is_directory:
        os.makedirs(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _set(path: str, attributes: int) -> None:
    """Add mount attributes to a path and everything mounted below it."""
    wanted = _Attributes(attributes, 0, 0, 0)
    target = (ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(_AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW))
    _syscall(_MOUNT_SETATTR, f"protect {path}", *target, ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)))


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")
