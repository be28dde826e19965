"""Listening sockets: bound here with safe permissions and passed to the HTTP server.

The directory has mode 0700 and the socket 0600. A lock file beside the socket distinguishes a running server from a
stale socket, which is removed; the socket of a running server is never replaced. The lock contains the data directory
of its server: a path that is used by a server of another data directory is skipped.
"""

import fcntl
import os
import select
import socket
import stat
import sys
from collections.abc import Sequence

from holdfast.domain.errors import HoldfastError

__all__ = [
    "AddressTaken",
    "TakenByOther",
    "UnixListener",
    "UnsafeDirectory",
    "bind_first",
    "bind_tcp",
    "is_hung_up",
    "is_our_own",
    "may_be_our_own",
    "peer_uid",
]

_MAX_PATH_BYTES = 104
_MAX_OWNER_BYTES = 8 * 1024
_BACKLOG = 2048


class AddressTaken(HoldfastError):
    """Another server listens there: use it, stop it, or choose another address."""


class TakenByOther(AddressTaken):
    """A server of another data directory listens there: use it, stop it, or choose another address."""


class UnsafeDirectory(HoldfastError):
    """The directory of the socket belongs to another user or is accessible to other users."""


class UnixListener:
    """A bound unix socket. Closing it removes the file, unless another server has created one at the same path.

    Connections are refused until the HTTP server listens on it, after the data directory has been locked.
    """

    def __init__(self, place: str | os.PathLike[str], data_dir: str | os.PathLike[str] = "") -> None:
        path = self.path = os.fspath(place)
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise UnsafeDirectory(
                f"{path} is longer than {_MAX_PATH_BYTES} bytes: choose a shorter path for the socket."
            )
        _secure(os.path.dirname(path) or ".")
        self._lock = _locked(path, os.fspath(data_dir))
        try:
            _remove(path)
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except BaseException:
            os.close(self._lock)
            raise
        try:
            self._identity = _bind(self.socket, path)
        except BaseException:
            self.socket.close()
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the socket, remove its file and release the lock."""
        self.socket.close()
        try:
            # The path may belong to another server by now; removing its socket would make that one unreachable.
            if os.stat(self.path).st_ino == self._identity:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        finally:
            os.close(self._lock)


def bind_first(paths: Sequence[str], data_dir: str) -> UnixListener:
    """Bind the first path that is not used by a server of another data directory. Raises `AddressTaken` if none is
    left, or if a server of this data directory uses one of them.
    """
    for path in paths[:-1]:
        try:
            return UnixListener(path, data_dir)
        except TakenByOther:
            continue
    return UnixListener(paths[-1], data_dir)


def bind_tcp(host: str, port: int) -> socket.socket:
    """Bind a TCP socket. Use loopback addresses unless the connection is tunnelled."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted server can bind while old connections are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressTaken(f"{host}:{port} cannot be used: {error.strerror}. Choose another host or port.") from error
    return listener


def peer_uid(connection: socket.socket) -> int | None:
    """Return the user id of the peer of a unix socket, or None if the system does not provide it."""
    if hasattr(socket, "SO_PEERCRED"):
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(data[4:8], "little")
    return None


def is_our_own(connection: socket.socket) -> bool:
    """Return True if the peer is our own user, or if the system does not provide the user."""
    try:
        uid = peer_uid(connection)
    except OSError:
        return False
    return uid is None or uid == os.getuid()


def is_hung_up(connection: socket.socket) -> bool | None:
    """Return True if the peer of a half-closed connection has disconnected, and None if that is unknown. Linux
    distinguishes the two on a unix socket; on TCP only a failed write reveals it.
    """
    if sys.platform != "linux":
        return None
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0)) or (False if connection.family == socket.AF_UNIX else None)


def may_be_our_own(client: tuple[str, int], port: int) -> bool:
    """Return True if the peer of a local TCP connection is our own user or root, or if the user is unknown."""
    uid = _tcp_uid(client, port)
    return uid is None or uid in (0, os.getuid())


def _tcp_uid(client: tuple[str, int], port: int) -> int | None:
    """Return the owner of the client's end of a local connection. The kernel's table contains both ends."""
    try:
        here = int.from_bytes(socket.inet_aton(client[0]), sys.byteorder)
        for table, form in (("tcp", "%08X"), ("tcp6", "0000000000000000FFFF0000%08X")):
            ends = [f"{form % here}:{client[1]:04X}", f"{form % here}:{port:04X}"]
            with open(f"/proc/self/net/{table}", encoding="ascii") as lines:
                for line in lines:
                    fields = line.split()
                    if fields[1:3] == ends:
                        return int(fields[7])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _secure(directory: str) -> None:
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UnsafeDirectory(f"{directory} is not a directory that you own: remove it or choose another path.")
    # A user who can write to the directory can replace the socket, whatever the mode of the socket.
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafeDirectory(f"{directory} is accessible to other users: restrict it with chmod 700.")


def _bind(listener: socket.socket, path: str) -> int:
    """Bind a socket that only its owner can use. Returns its inode; removes the file again on failure."""
    # The file gets its mode at creation: there is no moment in which another user can connect.
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    try:
        os.chmod(path, 0o600)
        return os.stat(path).st_ino
    except BaseException:
        _remove(path)
        raise


def _remove(path: str) -> None:
    """Remove the socket of a server that has ended. Any other file belongs to the user and is an error."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise UnsafeDirectory(f"{path} exists and is not a socket: choose another path for the socket.")
        os.unlink(path)
    except FileNotFoundError:
        return


def _locked(path: str, data_dir: str) -> int:
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Servers of earlier versions left the lock empty. If this one has our data directory, opening the store fails.
        try:
            owner = os.fsdecode(os.read(lock, _MAX_OWNER_BYTES))
        finally:
            os.close(lock)
        if owner and owner == data_dir:
            raise AddressTaken(
                f"The Holdfast server of {data_dir} still listens at {path}: use it, or stop it first."
            ) from None
        raise TakenByOther(
            f"A Holdfast server listens at {path}: use it, stop it, or choose another address."
        ) from None
    except BaseException:
        os.close(lock)
        raise
    try:
        os.ftruncate(lock, 0)
        os.write(lock, os.fsencode(data_dir))
    except OSError:
        # A full disk must not prevent the start. The lock of the store still allows one server only.
        pass
    return lock
