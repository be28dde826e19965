"""Finds the server of a data directory, or starts it. Blocking, without an event loop, because commands are
short-lived.

The lock file of the data directory names the socket; `server_check.py` checks that the right server listens there.
Several clients may find no server at the same moment: a lock beside the socket lets one of them start it while the
others wait.
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

from holdfast.client.errors import (
    ClientError,
    ConnectionLost,
    ServerProblem,
    StartFailed,
    Unreachable,
    UnsafePath,
    message_of,
)
from holdfast.client.failover import Round, can_move_on
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_check import describe, is_server_of, replace_outdated
from holdfast.client.server_paths import (
    BadHost,
    data_directory,
    default_data_directory,
    parse_host,
    socket_directories,
    socket_names,
    socket_path,
    split_hosts,
)
from holdfast.client.sync_client import SyncClient
from holdfast.lock_owner import LockOwner, directory_id, read_owner

__all__ = [
    "EXIT_ADDRESS_IN_USE",
    "ListenAddresses",
    "ServerLocation",
    "connect_to",
    "exit_code",
    "find",
    "find_or_start",
    "last_lines",
    "listen_addresses",
    "locate",
    "prepare",
    "secure_directory",
    "serve_command",
    "spawn",
    "unreachable",
]

_OTHER_DIRECTORY_HINT = "Another data directory can be chosen with --data-dir or HOLDFAST_DATA_DIR."
_LAST_LINES = 12
_MAX_LOG_TAIL = 16 * 1024
_BLOCKED = (
    "A server that does not respond uses the socket; it may be shutting down. Try again later, or see holdfast logs."
)
EXIT_ADDRESS_IN_USE = 75
"""Exit code of a server started by a client that finds another server in its place, which may be shutting down."""
_RETRY_INTERVAL = 0.005
_START_RETRY_DELAY = 0.1
_START_TIMEOUT = 10.0
_ALTERNATIVE_TIMEOUT = 3.0
"""Maximum seconds for a connection to one of several servers and for its first response. The next one is used then."""


def prepare(data_dir: str, log: str) -> None:
    """Create the data and log directories. Without a log the server could not report why it does not start."""
    try:
        for directory in (data_dir, os.path.dirname(log)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        why = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise StartFailed(f"The data directory {data_dir} cannot be used: {why}. {_OTHER_DIRECTORY_HINT}") from None


def spawn(command: Sequence[str], log: str) -> tuple[int, int]:
    """Start the process. Returns its id, and the offset in the log at which its output begins."""
    try:
        begin = os.path.getsize(log) if os.path.exists(log) else 0
        if begin and not os.access(log, os.W_OK):
            raise StartFailed(f"The server's log {log} cannot be written: become its owner, or remove it.")
        return _spawn(command, log), begin
    except OSError as error:
        raise StartFailed(f"The server could not be started: {error.strerror or error}.") from None


def _spawn(command: Sequence[str], log: str) -> int:
    """Start detached: in a new session, inheriting only the environment."""
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


def exit_code(process: int) -> int | None:
    """Return the exit code of a child, or None while it runs."""
    try:
        found, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        # Another part of this process reaps its children; rely on the deadline.
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def last_lines(log: str, begin: int) -> str:
    """Return the last log lines of this start, for an error message."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin if begin <= size else 0, size - _MAX_LOG_TAIL))
            lines = file.read(_MAX_LOG_TAIL).decode("utf-8", "replace").strip().splitlines()
        is_full = not os.statvfs(os.path.dirname(log)).f_bavail
    except OSError:
        lines, is_full = [], False
    if not lines and is_full:
        return f" The disk of {log} is full: free some space. {_OTHER_DIRECTORY_HINT}"
    if not lines:
        return f" It printed no message, and {log} has none."
    return " Its last lines:\n" + "\n".join(lines[-_LAST_LINES:])


class ServerLocation(NamedTuple):
    """Location of a server. A server given as a host is managed by its user: clients do not start it."""

    address: ServerAddress
    data_dir: str
    can_be_started: bool
    directories: tuple[str, ...] = ()
    """Directories in which a server started from this environment may have its socket."""
    again: Callable[[], None] | None = None
    """Reopens the connection to a remote server. Set only for remote servers, whose directories are not local."""
    directory: str = ""
    """The remote working directory, if the host contains one."""
    alternatives: tuple["ServerLocation", ...] = ()
    """All locations, if several hosts of one cluster were given. `address` is then that of the preferred one."""

    @property
    def is_local(self) -> bool:
        """True if the server is certainly on this machine, so that its environment and paths apply there."""
        known = self.alternatives or (self,)
        return all(bool(item.address.path) and item.again is None for item in known)

    @property
    def addresses(self) -> tuple[ServerAddress, ...]:
        """All addresses, in the order of the list."""
        return tuple(item.address for item in self.alternatives) or (self.address,)

    def others(self, address: ServerAddress) -> tuple[ServerAddress, ...]:
        """Return the other addresses, in the order in which they follow this one."""
        known = self.addresses
        place = known.index(address) if address in known else len(known)
        return (*known[place + 1 :], *(known[:place] if address in known else ()))

    def at(self, address: ServerAddress) -> "ServerLocation":
        """Return the location of one of the addresses."""
        return next((item for item in self.alternatives if item.address == address), self)

    @property
    def log(self) -> str:
        """The log file of a server started by a client."""
        return _log_of(self.data_dir)

    @property
    def usual(self) -> str:
        """The socket of a server started from this environment, unless another server uses that name."""
        if not self.directories:
            return self.address.path
        return socket_path(next(socket_names(self.data_dir, _usual_data_directory())), self.directories)

    @property
    def can_be_restored(self) -> bool:
        """True if this client can restore a server that does not respond."""
        return self.can_be_started or any(item.again is not None for item in self.alternatives or (self,))


class ListenAddresses(NamedTuple):
    """The data directory of a server, and its listeners: the first free one of the sockets, and optionally TCP."""

    data_dir: str
    sockets: tuple[str, ...]
    tcp: tuple[str, int] | None

    @property
    def log(self) -> str:
        """The log file of the server."""
        return _log_of(self.data_dir)


def locate(
    host: str | None = None, data_dir: str | None = None, environment: Mapping[str, str] | None = None
) -> ServerLocation:
    """Determine the server from the arguments, the environment, and the lock file of the data directory."""
    known = os.environ if environment is None else environment
    chosen = _chosen_directory(data_dir, known)
    named = host or known.get("HOLDFAST_HOST")
    if named and len(hosts := split_hosts(named)) > 1:
        return _locate_several(hosts, chosen, known)
    if named and named.startswith("ssh:"):
        return _locate_remote(named, ServerLocation(ServerAddress(), chosen, can_be_started=False), known)
    if named:
        return _locate_named(named, chosen)
    location = ServerLocation(
        ServerAddress(), chosen, can_be_started=True, directories=socket_directories(known, os.getuid())
    )
    owner = read_owner(chosen)
    path = owner.socket if owner is not None and _is_socket(owner.socket) else location.usual
    return location._replace(address=ServerAddress(path=path, data_id=directory_id(chosen)))


def listen_addresses(host: str | None, data_dir: str | None, environment: Mapping[str, str]) -> ListenAddresses:
    """Determine where a server listens. A TCP host is additional: the unix socket always exists."""
    chosen = _chosen_directory(data_dir, environment)
    named = host or environment.get("HOLDFAST_HOST")
    if named and len(split_hosts(named)) > 1:
        raise BadHost("A server listens at one address: give one with --host, for clients several are allowed.")
    address = parse_host(named) if named else ServerAddress()
    if address.path:
        return ListenAddresses(chosen, (address.path,), None)
    directories = socket_directories(environment, os.getuid())
    sockets = tuple(socket_path(name, directories) for name in socket_names(chosen, _usual_data_directory()))
    return ListenAddresses(chosen, sockets, (address.host, address.port) if address.host else None)


def _chosen_directory(data_dir: str | None, environment: Mapping[str, str]) -> str:
    home = environment.get("HOME") or os.path.expanduser("~")
    return os.path.realpath(data_directory(data_dir, environment, home))


def _usual_data_directory() -> str:
    """Return the default data directory below the home of the password database, or nothing without such a user."""
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


def _locate_named(host: str, data_dir: str) -> ServerLocation:
    token = _token(data_dir) if host.startswith("tcp:") else ""
    return ServerLocation(parse_host(host, token), data_dir, can_be_started=False)


def _locate_remote(
    host: str, location: ServerLocation, environment: Mapping[str, str], *, opens: bool = True
) -> ServerLocation:
    # Imported on demand: every command loads this module, and few need ssh.
    forward = import_module("holdfast.client.ssh")
    target = forward.parse_target(host)
    tunnel = forward.SshForward(target, environment)
    if opens:
        tunnel.open()
    port = f":{target.port}" if target.port else ""
    address = ServerAddress(path=tunnel.path, name="" if opens else f"ssh://{target.name}{port}")
    return location._replace(address=address, again=tunnel.open, directory=target.directory)


def _locate_several(hosts: Sequence[str], data_dir: str, environment: Mapping[str, str]) -> ServerLocation:
    """Return the location of a cluster. Connections over ssh are opened when they are needed. Raises `BadHost`."""
    bare = ServerLocation(ServerAddress(), data_dir, can_be_started=False)
    found: list[ServerLocation] = []
    for number, host in enumerate(hosts, 1):
        try:
            is_remote = host.startswith("ssh:")
            found.append(
                _locate_remote(host, bare, environment, opens=False) if is_remote else _locate_named(host, data_dir)
            )
        except BadHost as error:
            raise BadHost(f"Host {number} of the list is not valid. {error}") from None
        if str(found[-1].address) in (str(item.address) for item in found[:-1]):
            raise BadHost(f"The list of hosts names {found[-1].address} twice: give each address once.")
    if len({item.directory for item in found}) > 1:
        raise BadHost("The hosts of a list must name the same directory, which only an ssh:// address can name.")
    return found[0]._replace(alternatives=tuple(found))


def find(location: ServerLocation, timeout: float = _START_TIMEOUT) -> SyncClient | None:
    """Return a client with an open connection to the running server, or None if there is none.

    A server given as a host is accepted as it is. Any other server has to prove that it has the data directory. Raises
    `TimedOut` if a server accepts the connection and does not respond. Of several hosts the first one is used whose
    server is ready; raises `AllFailed` if there is none.
    """
    if location.alternatives:
        return _find_ready(location, timeout)
    if not location.can_be_started:
        client = _connect(location.address)
        if client is None and location.again is not None:
            location.again()
            client = _connect(location.address)
        return client
    owner = read_owner(location.data_dir)
    data_id = directory_id(location.data_dir)
    for path in _candidates(location, owner):
        client = _connect(ServerAddress(path=path, data_id=data_id)) if _is_secure(path) else None
        if client is None:
            continue
        try:
            client.server = describe(client, timeout)
            if is_server_of(client, location.data_dir, owner):
                return client
        except BaseException:
            client.close()
            raise
        client.close()
    return None


def _find_ready(location: ServerLocation, timeout: float) -> SyncClient:
    attempts = Round(location.addresses, location.address)
    while True:
        try:
            return connect_to(location.at(attempts.address), timeout)
        except ClientError as error:
            if not can_move_on(error, can_repeat=True):
                raise
            attempts.fail(error)


def connect_to(location: ServerLocation, timeout: float = _ALTERNATIVE_TIMEOUT) -> SyncClient:
    """Return a client of one server of a cluster, which is ready. Raises `ClientError` with the reason otherwise."""
    timeout = min(timeout, _ALTERNATIVE_TIMEOUT)
    try:
        return _connect_if_healthy(location.address, timeout)
    except (Unreachable, ConnectionLost):
        if location.again is None:
            raise
    # A forwarded connection was not opened yet, or has broken.
    location.again()
    return _connect_if_healthy(location.address, timeout)


def _connect_if_healthy(address: ServerAddress, timeout: float) -> SyncClient:
    client = SyncClient(address)
    try:
        client.connect(timeout)
        status, body = client.request("GET", "/v1/health", timeout=timeout)
        if status == 503:
            raise ServerProblem(status, message_of(body))
    except BaseException:
        client.close()
        raise
    return client


def _candidates(location: ServerLocation, owner: LockOwner | None) -> Iterator[str]:
    """Yield the sockets on which the server may listen: the one in the lock file, then the default one.

    A server of an earlier version wrote its socket to a separate file, and used the name `server.sock` for every
    default data directory.
    """
    seen = {""}
    if owner is not None and owner.socket:
        seen.add(owner.socket)
        yield owner.socket
    usual = location.usual
    earlier = (
        [] if owner is None or owner.socket else [_recorded_socket(location.data_dir), _sibling(usual, "server.sock")]
    )
    for path in (usual, *earlier):
        if path not in seen:
            seen.add(path)
            yield path


def _recorded_socket(data_dir: str) -> str:
    try:
        with open(os.path.join(data_dir, "socket"), encoding="utf-8") as file:
            return file.read(1024)
    except (OSError, UnicodeDecodeError):
        return ""


def _sibling(path: str, name: str) -> str:
    return os.path.join(os.path.dirname(path), name)


def _is_secure(path: str) -> bool:
    """Return whether a socket is in a directory that belongs to us and that no other user can write to."""
    directory = os.path.dirname(path)
    if "\0" in directory or not os.path.isdir(directory):
        return False
    try:
        secure_directory(directory)
    except UnsafePath:
        return False
    return True


def find_or_start(
    location: ServerLocation,
    *,
    command: Sequence[str] | None = None,
    timeout: float = _START_TIMEOUT,
    meanwhile: Callable[[], None] = lambda: None,
) -> SyncClient:
    """Return a client with an open connection to the server, which is started if necessary and possible. `meanwhile` is
    called while it starts.

    Raises `Unreachable` if no server responds and it must not be started, and `StartFailed` with the end of its log if
    it does not become ready.
    """
    client = find(location, timeout)
    if client is not None:
        try:
            if not (location.can_be_started and replace_outdated(client)):
                return client
        except BaseException:
            client.close()
            raise
    if not location.can_be_started:
        raise unreachable(location)
    secure_directory(os.path.dirname(location.usual))
    deadline = time.monotonic() + timeout
    with _hold_start_lock(location, deadline) as client:
        if client is not None:
            return client
        return _start(location, command or serve_command(location), deadline, meanwhile)


def unreachable(location: ServerLocation) -> Unreachable:
    """Return the error for a server that does not respond and must not be started."""
    return Unreachable(
        f"No Holdfast server answers at {location.address}: check the address, or start it there: holdfast serve."
    )


def serve_command(location: ServerLocation) -> list[str]:
    """Return the command that starts a server. `-P` prevents imports from the current directory, which may be
    untrusted.
    """
    return [sys.executable, "-P", "-m", "holdfast", "serve", "--started-by-client", "--data-dir", location.data_dir]


def secure_directory(directory: str) -> None:
    """Create the directory if it is missing. Raises `UnsafePath` if other users own it or can access it, because they
    could impersonate the server.
    """
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError as error:
        raise UnsafePath(f"The directory {directory} cannot be created: {error.strerror}.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UnsafePath(f"{directory} is not a directory that you own: remove it, or set XDG_RUNTIME_DIR.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafePath(f"{directory} is accessible to other users: restrict it with chmod 700.")


def _token(data_dir: str) -> str:
    try:
        with open(os.path.join(data_dir, "token"), encoding="ascii") as file:
            return file.read(1024).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _connect(address: ServerAddress) -> SyncClient | None:
    client = SyncClient(address)
    try:
        client.connect()
    except Unreachable:
        return None
    return client


@contextmanager
def _hold_start_lock(location: ServerLocation, deadline: float) -> Iterator[SyncClient | None]:
    """Hold the lock of the client that starts the server. Yields a client if the server is available by then."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    path = f"{location.usual}.start"
    try:
        lock = os.open(path, flags, 0o600)
    except OSError as error:
        raise UnsafePath(f"The file {path} cannot be opened: {error.strerror}.") from None
    try:
        client = None
        while not _try_lock(lock):
            if not _pause(deadline):
                raise StartFailed("Another client is starting the server, which is not ready yet: try again later.")
            client = _connect_if_ready(location, deadline)
            if client is not None:
                break
        yield client or _connect_if_ready(location, deadline)
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    """Return whether the lock could be acquired."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(
    location: ServerLocation, command: Sequence[str], deadline: float, meanwhile: Callable[[], None]
) -> SyncClient:
    """Start the server and wait until it is ready: it listens as soon as it holds its lock and has opened its store.

    A server that is not ready in time keeps running and may still become ready. A server that exits because another
    one, which does not respond, is in its place is started again: the other one may be shutting down.
    """
    prepare(location.data_dir, location.log)
    process, begin = spawn(command, location.log)
    meanwhile()
    taken = ""
    while True:
        client = _connect_if_ready(location, deadline)
        if client is not None:
            return client
        code = exit_code(process)
        if code is not None:
            # The process may have exited because a server was started without our lock.
            client = _connect_if_ready(location, deadline)
            if client is not None:
                return client
            if code != EXIT_ADDRESS_IN_USE:
                raise StartFailed(f"The server stopped while it was starting.{last_lines(location.log, begin)}")
            taken = f"{_BLOCKED}{last_lines(location.log, begin)}"
            if _pause(deadline, _START_RETRY_DELAY):
                process, begin = spawn(command, location.log)
                continue
        if not _pause(deadline):
            raise StartFailed(taken or f"The server did not become ready in time.{last_lines(location.log, begin)}")


def _connect_if_ready(location: ServerLocation, deadline: float) -> SyncClient | None:
    try:
        return find(location, max(0.001, deadline - time.monotonic()))
    except ClientError:
        # The server exited again; the next attempt reports the cause.
        return None


def _pause(deadline: float, seconds: float = _RETRY_INTERVAL) -> bool:
    """Wait briefly between two attempts, as there is no event to wait for. Returns False after the deadline."""
    if time.monotonic() >= deadline:
        return False
    select.select([], [], [], seconds)
    return True
