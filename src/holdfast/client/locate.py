"""Finds the server of a data directory, or starts it. Blocking, and without an event loop: commands are short.

The lock file of the data directory names the socket; `identity.py` checks that the right server listens there. Several
clients may find no server at the same moment: a lock beside the socket lets one of them start it while the others wait.
"""

import fcntl
import os
import pwd
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

from holdfast.client import launch
from holdfast.client.age import gives_way
from holdfast.client.errors import ClientError, StartFailed, Unreachable, UnsafePlace
from holdfast.client.identity import describe, is_server_of
from holdfast.client.places import (
    data_directory,
    default_data_directory,
    parse_host,
    socket_directories,
    socket_names,
    socket_path,
)
from holdfast.client.thin import Thin
from holdfast.client.wire import Address
from holdfast.lockfile import LockOwner, directory_id, read_owner

__all__ = [
    "TAKEN",
    "ListenPlaces",
    "Where",
    "find",
    "find_or_start",
    "listen_places",
    "locate",
    "secure_directory",
    "serve_command",
    "unreachable",
]

_IN_THE_WAY = "A server that does not answer is in the way; it may be leaving. Try again later, and see holdfast logs."
TAKEN = 75
"""The exit code of a server that a client starts and that finds another in its place: that one may be leaving."""

_BETWEEN_TRIES = 0.005
_BETWEEN_STARTS = 0.1
_PATIENCE = 10.0


class Where(NamedTuple):
    """Where a server is or will be. One that was named as a host is somebody's own: it is not started for them."""

    address: Address
    data_dir: str
    can_be_started: bool
    directories: tuple[str, ...] = ()
    """Where a server that is started from this environment may have its socket."""
    again: Callable[[], None] | None = None
    """Opens the way to a server on another machine anew. The directories there are not ours."""
    directory: str = ""
    """Where the work is over there, if the host says so."""

    @property
    def log(self) -> str:
        """Where a server that a client starts writes to."""
        return _log_of(self.data_dir)

    @property
    def usual(self) -> str:
        """The socket of a server that is started from this environment, unless another server has that name."""
        if not self.directories:
            return self.address.path
        return socket_path(next(socket_names(self.data_dir, _usual_data_directory())), self.directories)

    @property
    def can_come_back(self) -> bool:
        """Whether something can be done here about a server that does not answer any more."""
        return self.can_be_started or self.again is not None


class ListenPlaces(NamedTuple):
    """Where a server has its data, and where it listens: at the first of the sockets that is free, and over TCP."""

    data_dir: str
    sockets: tuple[str, ...]
    tcp: tuple[str, int] | None

    @property
    def log(self) -> str:
        return _log_of(self.data_dir)


def locate(host: str | None = None, data_dir: str | None = None, environment: Mapping[str, str] | None = None) -> Where:
    """Return which server is meant, by command line and environment, and by the lock file of the data directory."""
    known = os.environ if environment is None else environment
    chosen = _chosen_directory(data_dir, known)
    named = host or known.get("HOLDFAST_HOST")
    if named and named.startswith("ssh:"):
        return _forwarded(named, Where(Address(), chosen, can_be_started=False), known)
    if named:
        token = _token(chosen) if named.startswith("tcp:") else ""
        return Where(parse_host(named, token), chosen, can_be_started=False)
    where = Where(Address(), chosen, can_be_started=True, directories=socket_directories(known, os.getuid()))
    owner = read_owner(chosen)
    path = owner.socket if owner is not None and _is_socket(owner.socket) else where.usual
    return where._replace(address=Address(path=path, data_id=directory_id(chosen)))


def listen_places(host: str | None, data_dir: str | None, environment: Mapping[str, str]) -> ListenPlaces:
    """Return where a server listens. A TCP host is additional: the unix socket is always there."""
    chosen = _chosen_directory(data_dir, environment)
    named = host or environment.get("HOLDFAST_HOST")
    address = parse_host(named) if named else Address()
    if address.path:
        return ListenPlaces(chosen, (address.path,), None)
    directories = socket_directories(environment, os.getuid())
    sockets = tuple(socket_path(name, directories) for name in socket_names(chosen, _usual_data_directory()))
    return ListenPlaces(chosen, sockets, (address.host, address.port) if address.host else None)


def _chosen_directory(data_dir: str | None, environment: Mapping[str, str]) -> str:
    home = environment.get("HOME") or os.path.expanduser("~")
    return os.path.realpath(data_directory(data_dir, environment, home))


def _usual_data_directory() -> str:
    """Return the default data directory below the home of the password database; nothing if it has no such user."""
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""
    return os.path.realpath(default_data_directory({}, home)) if home.startswith("/") else ""


def _log_of(data_dir: str) -> str:
    return os.path.join(data_dir, "logs", "server.log")


def _is_socket(path: str) -> bool:
    try:
        return bool(path) and stat.S_ISSOCK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _forwarded(host: str, where: Where, environment: Mapping[str, str]) -> Where:
    # Few commands need it, and all of them load this module.
    forward = import_module("holdfast.client.forward")
    target = forward.parse_target(host)
    way = forward.Forward(target, environment)
    way.open()
    return where._replace(address=Address(path=way.path), again=way.open, directory=target.directory)


def find(where: Where, patience: float = _PATIENCE) -> Thin | None:
    """Return a client with an open connection to the running server, or None if there is none.

    A server that was named as a host is taken as it is. Any other has to prove that it has the data directory. Raises
    `TimedOut` if a server accepts the connection and does not answer.
    """
    if not where.can_be_started:
        thin = _connected(where.address)
        if thin is None and where.again is not None:
            where.again()
            thin = _connected(where.address)
        return thin
    owner = read_owner(where.data_dir)
    data_id = directory_id(where.data_dir)
    for path in _candidates(where, owner):
        thin = _connected(Address(path=path, data_id=data_id)) if _is_secure(path) else None
        if thin is None:
            continue
        try:
            thin.server = describe(thin, patience)
            if is_server_of(thin, where.data_dir, owner):
                return thin
        except BaseException:
            thin.close()
            raise
        thin.close()
    return None


def _candidates(where: Where, owner: LockOwner | None) -> Iterator[str]:
    """Yield the sockets on which the server may listen: the one in the lock file, then the usual one.

    A server of an earlier version wrote its socket to a file of its own, and used the name `server.sock` for every
    default data directory.
    """
    seen = {""}
    if owner is not None and owner.socket:
        seen.add(owner.socket)
        yield owner.socket
    usual = where.usual
    earlier = [] if owner is None or owner.socket else [_noted(where.data_dir), _beside(usual, "server.sock")]
    for path in (usual, *earlier):
        if path not in seen:
            seen.add(path)
            yield path


def _noted(data_dir: str) -> str:
    try:
        with open(os.path.join(data_dir, "socket"), encoding="utf-8") as file:
            return file.read(1024)
    except (OSError, UnicodeDecodeError):
        return ""


def _beside(path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name)


def _is_secure(path: str) -> bool:
    """Return whether a socket is in a directory of our own, into which no other user could have put it."""
    directory = os.path.dirname(path)
    if "\0" in directory or not os.path.isdir(directory):
        return False
    try:
        secure_directory(directory)
    except UnsafePlace:
        return False
    return True


def find_or_start(
    where: Where,
    *,
    command: Sequence[str] | None = None,
    patience: float = _PATIENCE,
    meanwhile: Callable[[], None] = lambda: None,
) -> Thin:
    """Return a client with an open connection to the server, which is started if need be and possible. `meanwhile` is
    called while it starts.

    Raises `Unreachable` if no server answers and it must not be started, `StartFailed` with the end of its log
    if it does not get ready.
    """
    thin = find(where, patience)
    if thin is not None:
        try:
            if not (where.can_be_started and gives_way(thin)):
                return thin
        except BaseException:
            thin.close()
            raise
    if not where.can_be_started:
        raise unreachable(where)
    secure_directory(os.path.dirname(where.usual))
    deadline = time.monotonic() + patience
    with _starter(where, deadline) as thin:
        if thin is not None:
            return thin
        return _start(where, command or serve_command(where), deadline, meanwhile)


def unreachable(where: Where) -> Unreachable:
    """Return the error for a server that is not there and must not be started."""
    return Unreachable(
        f"No Holdfast server answers at {where.address}: look at the address, or start it there: holdfast serve."
    )


def serve_command(where: Where) -> list[str]:
    """How a client starts a server. `-P` keeps Python from importing what lies in the current directory, which may
    be anybody's.
    """
    return [sys.executable, "-P", "-m", "holdfast", "serve", "--started-by-client", "--data-dir", where.data_dir]


def secure_directory(directory: str) -> None:
    """Make it if it is missing; refuse one that others own or can enter: they could take the server's place."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError as error:
        raise UnsafePlace(f"The directory {directory} cannot be made: {error.strerror}.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UnsafePlace(f"{directory} is not a directory of yours: remove it, or set XDG_RUNTIME_DIR.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafePlace(f"{directory} is open to others: make it yours alone with chmod 700.")


def _token(data_dir: str) -> str:
    try:
        with open(os.path.join(data_dir, "token"), encoding="ascii") as file:
            return file.read(1024).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _connected(address: Address) -> Thin | None:
    thin = Thin(address)
    try:
        thin.connect()
    except Unreachable:
        return None
    return thin


@contextmanager
def _starter(where: Where, deadline: float) -> Iterator[Thin | None]:
    """Hold the lock of the client that starts the server. Yields a client if the server is there by then."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    path = f"{where.usual}.start"
    try:
        lock = os.open(path, flags, 0o600)
    except OSError as error:
        raise UnsafePlace(f"The file {path} cannot be opened: {error.strerror}.") from None
    try:
        thin = None
        while not _is_taken(lock):
            if not _pause(deadline):
                raise StartFailed("Another client is starting the server and does not get ready: try again later.")
            thin = _ready(where, deadline)
            if thin is not None:
                break
        yield thin or _ready(where, deadline)
    finally:
        os.close(lock)


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(where: Where, command: Sequence[str], deadline: float, meanwhile: Callable[[], None]) -> Thin:
    """Start the server and wait until it is ready: it listens as soon as it has its lock and its store.

    A server that does not get ready in time is left alone: it may yet. One that finds another in its place, which does
    not answer, is started again: a server that leaves ends its work first.
    """
    launch.prepare(where.data_dir, where.log)
    process, begin = launch.spawn(command, where.log)
    meanwhile()
    taken = ""
    while True:
        thin = _ready(where, deadline)
        if thin is not None:
            return thin
        code = launch.exit_code(process)
        if code is not None:
            # It may have lost to a server that was started without our lock.
            thin = _ready(where, deadline)
            if thin is not None:
                return thin
            if code != TAKEN:
                raise StartFailed(f"The server stopped while it was starting.{launch.last_lines(where.log, begin)}")
            taken = f"{_IN_THE_WAY}{launch.last_lines(where.log, begin)}"
            if _pause(deadline, _BETWEEN_STARTS):
                process, begin = launch.spawn(command, where.log)
                continue
        if not _pause(deadline):
            raise StartFailed(taken or f"The server did not get ready in time.{launch.last_lines(where.log, begin)}")


def _ready(where: Where, deadline: float) -> Thin | None:
    try:
        return find(where, max(0.001, deadline - time.monotonic()))
    except ClientError:
        # It went away again; the next try tells more.
        return None


def _pause(deadline: float, seconds: float = _BETWEEN_TRIES) -> bool:
    """A short wait between two tries: there is nothing to wait for that could be waited for. False if time is up."""
    if time.monotonic() >= deadline:
        return False
    select.select([], [], [], seconds)
    return True
