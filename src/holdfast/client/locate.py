"""Finds the server of a data directory, or starts it. Blocking, and without an event loop: commands are short.

Several clients may find that nobody answers at the same moment. A lock beside the socket lets one of them
start the server; the others wait and find it.
"""

import fcntl
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

from holdfast.client.age import gives_way
from holdfast.client.errors import ClientError, StartFailed, Unreachable, UnsafePlace
from holdfast.client.places import (
    data_directory,
    default_data_directory,
    parse_host,
    socket_directories,
    socket_name,
    socket_path,
)
from holdfast.client.thin import Thin
from holdfast.client.wire import Address

__all__ = ["TAKEN", "Where", "find_or_start", "locate", "secure_directory", "serve_command"]

_IN_THE_WAY = "A server that does not answer is in the way; it may be leaving. Try again later, and see holdfast logs."
TAKEN = 75
"""The exit code of a server that a client starts and that finds another in its place: that one may be leaving."""

_ELSEWHERE = "Another place can be chosen with --data-dir or HOLDFAST_DATA_DIR."
_BETWEEN_TRIES = 0.005
_BETWEEN_STARTS = 0.1
_LAST_LINES = 12
_MOST_OF_LOG = 16 * 1024


class Where(NamedTuple):
    """Where a server is or will be. One that was named as a host is somebody's own: it is not started for them."""

    address: Address
    data_dir: str
    can_be_started: bool
    is_default: bool = True
    """Whether the data directory is the default one, which a server finds by itself."""
    again: Callable[[], None] | None = None
    """Opens the way to a server on another machine anew. The directories there are not ours."""
    directory: str = ""
    """Where the work is over there, if the host says so."""
    is_elsewhere: bool = False
    """Whether it listens where this environment would not have it: it was started from another."""

    @property
    def log(self) -> str:
        """Where a server that a client starts writes to."""
        return os.path.join(self.data_dir, "logs", "server.log")

    @property
    def can_come_back(self) -> bool:
        """Whether something can be done here about a server that does not answer any more."""
        return self.can_be_started or self.again is not None


def locate(host: str | None = None, data_dir: str | None = None, environment: Mapping[str, str] | None = None) -> Where:
    """Which server is meant, by command line and environment, and by what the one that runs has noted."""
    known = os.environ if environment is None else environment
    home = known.get("HOME") or os.path.expanduser("~")
    default = os.path.realpath(default_data_directory(known, home))
    chosen = os.path.realpath(data_directory(data_dir, known, home))
    named = host or known.get("HOLDFAST_HOST")
    if named and named.startswith("ssh:"):
        return _forwarded(named, Where(Address(), chosen, can_be_started=False, is_default=chosen == default), known)
    if named:
        token = _token(chosen) if named.startswith("tcp:") else ""
        return Where(parse_host(named, token), chosen, can_be_started=False, is_default=chosen == default)
    usual = socket_path(socket_name(chosen, default), socket_directories(known, os.getuid()))
    path = _noted(chosen, usual) or usual
    is_default = chosen == default
    return Where(Address(path=path), chosen, can_be_started=True, is_default=is_default, is_elsewhere=path != usual)


def _noted(data_dir: str, usual: str) -> str | None:
    """Where the one server of this data directory says that it listens, if it does so and not at the usual place.

    What cron starts has no XDG_RUNTIME_DIR; a session of the desktop has.
    """
    try:
        with open(os.path.join(data_dir, "socket"), encoding="utf-8") as file:
            path = file.read(1024)
    except (OSError, UnicodeDecodeError):
        return None
    if path == usual or not os.path.isdir(os.path.dirname(path)):
        return None
    try:
        secure_directory(os.path.dirname(path))
    except UnsafePlace:
        return None
    thin = _connected(Address(path=path))
    if thin is None:
        return None
    thin.close()
    return path


def _forwarded(host: str, where: Where, environment: Mapping[str, str]) -> Where:
    # Few commands need it, and all of them load this module.
    forward = import_module("holdfast.client.forward")
    target = forward.parse_target(host)
    way = forward.Forward(target, environment)
    way.open()
    return where._replace(address=Address(path=way.path), again=way.open, directory=target.directory)


def find_or_start(
    where: Where,
    *,
    command: Sequence[str] | None = None,
    patience: float = 10.0,
    meanwhile: Callable[[], None] = lambda: None,
) -> Thin:
    """A client with an open connection to the server, which is started if need be and possible. `meanwhile` is what
    can be done while it starts.

    Raises `Unreachable` if nobody answers and it must not be started, `StartFailed` with the end of its log
    if it does not get ready.
    """
    if where.can_be_started:
        # Before anything is said to whoever listens there.
        secure_directory(os.path.dirname(where.address.path))
    thin = _connected(where.address)
    if thin is None and where.again is not None:
        where.again()
        thin = _connected(where.address)
    if thin is not None and not (where.can_be_started and gives_way(thin, patience)):
        return thin
    if not where.can_be_started:
        raise Unreachable(
            f"No Holdfast server answers at {where.address}: look at the address, or start it there: holdfast serve."
        )
    deadline = time.monotonic() + patience
    with _starter(where.address, deadline) as thin:
        if thin is not None:
            return thin
        return _start(where, command or serve_command(where), deadline, meanwhile)


def serve_command(where: Where) -> list[str]:
    """How a client starts a server. `-P` keeps Python from importing what lies in the current directory, which may
    be anybody's.
    """
    command = [sys.executable, "-P", "-m", "holdfast", "serve", "--started-by-client"]
    if where.is_elsewhere:
        command += ["--host", f"unix://{where.address.path}"]
    return command if where.is_default else [*command, "--data-dir", where.data_dir]


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
def _starter(address: Address, deadline: float) -> Iterator[Thin | None]:
    """Hold the lock of who starts the server. Whoever finds the server meanwhile needs no lock and gets a client."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        lock = os.open(f"{address.path}.start", flags, 0o600)
    except OSError as error:
        raise UnsafePlace(f"The file {address.path}.start cannot be opened: {error.strerror}.") from None
    try:
        thin = None
        while not _is_taken(lock):
            if not _pause(deadline):
                raise StartFailed("Another client is starting the server and does not get ready: try again later.")
            thin = _connected(address)
            if thin is not None:
                break
        yield thin or _connected(address)
    finally:
        os.close(lock)


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(where: Where, command: Sequence[str], deadline: float, meanwhile: Callable[[], None]) -> Thin:
    """Start the server and wait until it is ready: it says who it is when it has loaded everything.

    One that does not get ready in time is left alone: it may yet. One that finds another in its place, which does not
    answer, is started again: a server that leaves ends its work first.
    """
    _make_room(where)
    process, begin = _begun(where, command)
    meanwhile()
    taken = ""
    while True:
        thin = _ready(where.address, deadline)
        if thin is not None:
            return thin
        code = _ended(process)
        if code is not None:
            # It may have lost to a server that somebody started without our lock.
            thin = _ready(where.address, deadline)
            if thin is not None:
                return thin
            if code != TAKEN:
                raise StartFailed(f"The server stopped while it was starting.{_tail(where.log, begin)}")
            taken = f"{_IN_THE_WAY}{_tail(where.log, begin)}"
            if _pause(deadline, _BETWEEN_STARTS):
                process, begin = _begun(where, command)
                continue
        if not _pause(deadline):
            raise StartFailed(taken or f"The server did not get ready in time.{_tail(where.log, begin)}")


def _begun(where: Where, command: Sequence[str]) -> tuple[int, int]:
    """Its process, and where in the log its words begin."""
    try:
        begin = os.path.getsize(where.log) if os.path.exists(where.log) else 0
        if begin and not os.access(where.log, os.W_OK):
            raise StartFailed(f"The server's log {where.log} cannot be written: make it yours, or remove it.")
        return _spawn(command, where.log), begin
    except OSError as error:
        raise StartFailed(f"The server could not be started: {error.strerror or error}.") from None


def _make_room(where: Where) -> None:
    """For the log: without it the server cannot even say what is missing."""
    try:
        for directory in (where.data_dir, os.path.dirname(where.log)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        why = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise StartFailed(f"The data directory {where.data_dir} cannot be used: {why}. {_ELSEWHERE}") from None


def _spawn(command: Sequence[str], log: str) -> int:
    """Detached: in a session of its own, with nothing of this process but the environment."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
    )


def _ended(process: int) -> int | None:
    """Its exit code, or None while it runs."""
    try:
        found, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        # Somebody else collects the children of this process. The deadline must do.
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def _ready(address: Address, deadline: float) -> Thin | None:
    thin = _connected(address)
    if thin is None:
        return None
    try:
        status, _ = thin.request("GET", "/v1/version", timeout=max(0.001, deadline - time.monotonic()))
    except ClientError:
        # It went away again; the next try tells more.
        status = 0
    if 200 <= status < 300:
        return thin
    thin.close()
    return None


def _pause(deadline: float, seconds: float = _BETWEEN_TRIES) -> bool:
    """A short wait between two tries: there is nothing to wait for that could be waited for. False if time is up."""
    if time.monotonic() >= deadline:
        return False
    select.select([], [], [], seconds)
    return True


def _tail(log: str, begin: int) -> str:
    """The last lines this start wrote, for a message."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin if begin <= size else 0, size - _MOST_OF_LOG))
            lines = file.read(_MOST_OF_LOG).decode("utf-8", "replace").strip().splitlines()
        is_full = not os.statvfs(os.path.dirname(log)).f_bavail
    except OSError:
        lines, is_full = [], False
    if not lines and is_full:
        return f" The disk of {log} is full: free some space. {_ELSEWHERE}"
    if not lines:
        return f" It said nothing; {log} has no more."
    return " Its last lines:\n" + "\n".join(lines[-_LAST_LINES:])
