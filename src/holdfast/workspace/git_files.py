"""Reads files of git directories without running git: small regular files, never through a symbolic link."""

import os
import stat

from holdfast.workspace.beneath import stream_of

__all__ = ["MAX_FILE", "read_bytes", "read_path", "resolve_gitfile"]

MAX_FILE = 1 << 20
_PREFIX = b"gitdir: "


def read_bytes(path: str) -> bytes:
    """Return the content of a regular file. Raises `OSError`; a link, a device or a large file is an error too."""
    with stream_of(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a regular file", path)
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise OSError(0, "too large", path)
    return data


def read_path(path: str) -> str:
    """Return the path that a one-line file such as `commondir` or `gitdir` names."""
    data = read_bytes(path)
    return os.fsdecode(data.removesuffix(b"\n"))


def resolve_gitfile(path: str) -> str | None:
    """Return the directory that a `.git` file names, or None unless it has exactly the form git writes."""
    try:
        data = read_bytes(path)
    except OSError:
        return None
    target = data.removeprefix(_PREFIX).removesuffix(b"\n")
    if not data.startswith(_PREFIX) or not target or target != target.strip() or b"\n" in target or b"\0" in target:
        return None
    return os.path.realpath(os.path.join(os.path.dirname(path), os.fsdecode(target)))
