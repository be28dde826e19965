"""Server processes under test, and what they use: processor time, memory, bytes on disk.

Every server has a home of its own with a small git repository as its project, and listens at a unix socket and at a TCP
port with a token.
"""

import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO

from bench.fake_provider import SMALL_MODEL
from bench.repositories import copy_small, temporary_directory
from holdfast.client.server_address import ServerAddress, build_request
from holdfast.client.server_launcher import locate

__all__ = [
    "DATA",
    "MIB",
    "Provider",
    "ServerProcess",
    "environment",
    "fake_provider",
    "free_port",
    "served",
    "served_floor",
]

MIB = 1024 * 1024
_TICK = 1 / os.sysconf("SC_CLK_TCK")
DATA = ".local/share/holdfast"
"""The data directory below the home."""
_DEMO = '[models.large]\nprovider = "demo"\nmodel = "tour"\n'
_FAKE = """
[providers.bench]
base_url = "{url}"
api_key = "none"
discover_models = false
[[providers.bench.models]]
id = "large"
context_window = 100000000
[[providers.bench.models]]
id = "{small}"
context_window = 100000000
[models.large]
provider = "bench"
model = "large"
[models.small]
provider = "bench"
model = "{small}"
"""


def environment(root: Path) -> dict[str, str]:
    """Return the environment of a process with this home. Compiled modules are kept, as users have them."""
    left_out = ("PYTHONDONTWRITEBYTECODE",)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    kept = {name: value for name, value in kept.items() if not name.startswith(("HOLDFAST", "XDG"))}
    return kept | {"HOME": str(root), "XDG_RUNTIME_DIR": str(root / "r")}


def free_port() -> int:
    """Return a TCP port at which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server under test."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes], began: float, tcp: ServerAddress) -> None:
        self.root = root
        self.project = root / "project"
        self.began = began
        """Time of the spawn, on the clock of `time.perf_counter`."""
        self.process = process
        self.unix = ServerAddress(path=locate(environment=environment(root)).usual)
        self.tcp = tcp

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.process.pid

    def resident(self) -> float:
        """Return the resident memory of the server in MiB, without its children."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def processor(self) -> float:
        """Return the seconds of processor time so far, of the server, its children and those that have exited."""
        return sum(map(_processor, self.processes()))

    def processes(self) -> list[int]:
        """Return the ids of the server and its descendants."""
        return [self.pid, *_descendants(self.pid)]

    def written(self) -> int:
        """Return the bytes that the server has written so far, to files and to sockets.

        The kernel counts those that reach the disk in larger units than a page, which is useless for short answers.
        """
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])

    def wait_for_answer(self, path: str = "/v1/health", *, over_tcp: bool = True) -> float:
        """Wait for the first response with status 200. Return the seconds since the spawn."""
        address = self.tcp if over_tcp else self.unix
        request = build_request(address, "GET", path)
        while True:
            family = socket.AF_INET if over_tcp else socket.AF_UNIX
            with socket.socket(family) as connection:
                try:
                    connection.connect((address.host, address.port) if over_tcp else address.path)
                    connection.sendall(request)
                    if connection.recv(1000).startswith(b"HTTP/1.1 200"):
                        return time.perf_counter() - self.began
                except OSError:
                    pass
            assert self.process.poll() is None, "the server has exited"
            # A loop without a pause would use the processor that the server needs.
            select.select([], [], [], 0.001)


def _processor(pid: int) -> float:
    """Processor time of all threads, in nanoseconds from the clock of the process, and of its children that exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # The clock of another process, as clock_getcpuclockid(3) computes it; Python has no function for it.
        own = time.clock_gettime((~pid << 3) | 2)
    except (FileNotFoundError, OSError):
        return 0.0
    return own + (int(fields[13]) + int(fields[14])) * _TICK


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        children = parents.get(pending.pop(), [])
        found += children
        pending += children
    return found


class Provider:
    """The fake provider process."""

    def __init__(self, url: str, reports: IO[bytes]) -> None:
        self.url = url
        self._reports = reports

    @property
    def settings(self) -> str:
        """The settings of a server that uses this provider."""
        return _FAKE.format(url=self.url, small=SMALL_MODEL)

    def wait_closed(self) -> float:
        """Return when the connection of a watched response was closed, on the monotonic clock."""
        return float(self._reports.readline())


@contextmanager
def fake_provider() -> Iterator[Provider]:
    """Start the fake provider."""
    with subprocess.Popen([sys.executable, "-m", "bench.fake_provider"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield Provider(f"http://127.0.0.1:{port}/v1", process.stdout)
        finally:
            process.terminate()


def _nothing(_: Path) -> None:
    return


@contextmanager
def served(
    *command: str,
    settings: str = _DEMO,
    prepare: Callable[[Path], None] = _nothing,
    options: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ServerProcess]:
    """Spawn a server and do not wait for it. `prepare` is called with its home before that. `options` are those of
    `holdfast serve`, `variables` are added to its environment.

    The default settings select the scripted model, which `holdfast run` uses without a terminal only if it is selected.
    """
    with _home() as root:
        file = root / ".config/holdfast/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(settings)
        tcp = ServerAddress(host="127.0.0.1", port=free_port(), token=_write_token(root))
        prepare(root)
        serve = ("-P", "-m", "holdfast", "serve", "--host", f"tcp://{tcp.authority}", *options)
        with _spawned(root, tcp, command or serve, variables) as server:
            yield server


@contextmanager
def served_floor(provider: Provider) -> Iterator[ServerProcess]:
    """Spawn the floor and do not wait for it."""
    with _home() as root:
        tcp = ServerAddress(host="127.0.0.1", port=free_port(), token=secrets.token_urlsafe(32))
        path = Path(locate(environment=environment(root)).usual)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = ("-m", "bench.floor", str(path), str(tcp.port), tcp.token, provider.url)
        with _spawned(root, tcp, command) as server:
            yield server


@contextmanager
def _home() -> Iterator[Path]:
    directory = temporary_directory()
    with tempfile.TemporaryDirectory(prefix="hf-", dir=directory, ignore_cleanup_errors=True) as place:
        root = Path(place)
        (root / "r").mkdir(mode=0o700)
        copy_small(root / "project")
        yield root


def _write_token(root: Path) -> str:
    """Create the token beforehand, because the server creates it too late for the first request."""
    data = root / DATA
    data.mkdir(mode=0o700, parents=True)
    token = secrets.token_urlsafe(32)
    with os.fdopen(os.open(data / "token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"{token}\n")
    return token


@contextmanager
def _spawned(
    root: Path, tcp: ServerAddress, command: tuple[str, ...], variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[ServerProcess]:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], env={**environment(root), **variables}, stderr=subprocess.DEVNULL
    )
    try:
        yield ServerProcess(root, process, began, tcp)
    finally:
        process.terminate()
        process.wait(20)
