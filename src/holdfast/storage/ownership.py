"""Claims that keep a second server away from a data directory whose lock file is gone or was replaced.

The lock file protects a directory only as long as it is the file that the first server has locked. A claim is an
abstract unix socket (Linux), bound by the server for its lifetime: the kernel releases it with the process, it is in
no directory that could be moved, removed or covered, and binding it a second time fails. A server claims the path of
its data directory, as given and with links resolved, and the identity of directory and database, so that neither the
old path nor the moved files can be opened a second time.

Not covered: other systems than Linux, and a second server in another network namespace; the lock file remains there.
"""

import hashlib
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from holdfast.domain.errors import DataDirectoryBusy

__all__ = ["Claims"]

_CREDENTIALS = struct.Struct("3i")


class Claims:
    """The claims of one server on one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._held: dict[bytes, socket.socket] = {}

    def claim_path(self) -> None:
        """Claim the path, before anything is created there. Raises `DataDirectoryBusy`."""
        place = (_identity("/"), _identity("/proc/self/ns/mnt"))
        for path in (os.path.abspath(self._data_dir), os.path.realpath(self._data_dir)):
            self._claim("path", place, path)

    def claim_file(self, path: Path) -> None:
        """Claim an existing directory or file, whatever its path. Raises `DataDirectoryBusy`."""
        self._claim("file", _identity(path))

    def release(self) -> None:
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _claim(self, *key: object) -> None:
        if sys.platform != "linux":
            return
        digest = hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()
        name = f"\0holdfast/{os.getuid()}/{digest}".encode()
        if name in self._held:
            return
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(name)
            claim.listen(8)
        except OSError:
            claim.close()
            self._refuse_unless_foreign(name)
        else:
            self._held[name] = claim

    def _refuse_unless_foreign(self, name: bytes) -> None:
        """A name that another user has bound says nothing about our servers."""
        owner, uid = _holder(name)
        if uid not in (None, os.getuid()):
            return
        raise DataDirectoryBusy(
            f"The data directory {self._data_dir} is used by another Holdfast server (process {owner}), although it is "
            "not locked: it was moved, made again or covered while that server ran. Stop that server first."
        )


def _identity(path: str | Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _holder(name: bytes) -> tuple[str, int | None]:
    """Process and user that have bound the name, as far as the kernel tells."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        probe.connect(name)
        process, uid, _ = _CREDENTIALS.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return str(process), uid
    return "unknown", None
