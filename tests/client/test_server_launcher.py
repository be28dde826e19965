"""Locating and starting a server: rules in tables, starts with a small server of the test."""

import asyncio
import fcntl
import os
import pwd
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from threading import Barrier

import pytest

from client.scripted_server import short_directory
from holdfast.client.errors import StartFailed, Unreachable, UnsafePath
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import (
    EXIT_ADDRESS_IN_USE,
    ServerLocation,
    find,
    find_or_start,
    locate,
    secure_directory,
    serve_command,
)
from holdfast.client.server_paths import (
    BadHost,
    data_directory,
    parse_host,
    socket_directories,
    socket_names,
    socket_path,
)
from holdfast.client.sync_client import SyncClient
from holdfast.testing.gates import until

SERVER = """
import json, os, socket, sys
path, notes, unready, data = sys.argv[1], sys.argv[2], int(sys.argv[3]), os.stat(sys.argv[4])
known = {"version": "99", "protocol": 1, "pid": os.getpid(), "data_id": "%x-%x" % (data.st_dev, data.st_ino)}
if len(sys.argv) > 5:
    del known["data_id"]
body = json.dumps(known)
print("starting up")
with open(notes, "a") as file:
    file.write(f"{os.getpid()} {os.getsid(0)}\\n")
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(path)
listener.listen()
while True:
    connection, _ = listener.accept()
    while connection.recv(65536):
        status = b"503 Wait" if unready > 0 else b"200 OK"
        unready -= 1
        head = b"HTTP/1.1 " + status + b"\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
        connection.sendall(head + body.encode())
"""

DATA_DIRECTORIES: list[tuple[str | None, dict[str, str], str]] = [
    (None, {}, "/home/u/.local/share/holdfast"),
    (None, {"XDG_DATA_HOME": "/data"}, "/data/holdfast"),
    (None, {"XDG_DATA_HOME": "relative"}, "/home/u/.local/share/holdfast"),
    (None, {"XDG_DATA_HOME": "/data", "HOLDFAST_DATA_DIR": "/mine"}, "/mine"),
    (None, {"HOLDFAST_DATA_DIR": ""}, "/home/u/.local/share/holdfast"),
    ("/flag", {"HOLDFAST_DATA_DIR": "/mine"}, "/flag"),
]


@pytest.mark.parametrize(("chosen", "environment", "expected"), DATA_DIRECTORIES)
def test_the_data_directory(chosen: str | None, environment: dict[str, str], expected: str) -> None:
    assert data_directory(chosen, environment, "/home/u") == expected


SOCKET_DIRECTORIES: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({}, ("/tmp/holdfast-7",)),
    ({"XDG_RUNTIME_DIR": "/run/user/7"}, ("/run/user/7/holdfast", "/tmp/holdfast-7")),
    ({"XDG_RUNTIME_DIR": "run"}, ("/tmp/holdfast-7",)),
    ({"XDG_RUNTIME_DIR": ""}, ("/tmp/holdfast-7",)),
    ({"XDG_RUNTIME_DIR": "/run/a\nb"}, ("/tmp/holdfast-7",)),
]


@pytest.mark.parametrize(("environment", "expected"), SOCKET_DIRECTORIES)
def test_the_directory_of_sockets(environment: dict[str, str], expected: tuple[str, ...]) -> None:
    assert socket_directories(environment, 7) == expected


def test_each_data_directory_has_its_socket() -> None:
    assert next(socket_names("/data", "/data")) == "server.sock"
    names = list(socket_names("/other", "/data"))
    assert names[0] == f"server-{sha256(b'/other').hexdigest()[:8]}.sock"
    assert len({*names, *socket_names("/data", "/data")}) == 9


def test_a_socket_path_is_never_too_long() -> None:
    long = "/" + "x" * 100
    assert socket_path("server.sock", (long, "/tmp/h")) == "/tmp/h/server.sock"
    assert len(socket_path("s" * 9, ("/" + "x" * 93, "/tmp/h"))) == 104
    with pytest.raises(BadHost, match="104"):
        socket_path("server.sock", (long,))
    with pytest.raises(BadHost, match="104"):
        parse_host("unix:///" + "ü" * 60)


HOSTS: list[tuple[str, ServerAddress]] = [
    ("unix:///run/x.sock", ServerAddress(path="/run/x.sock")),
    ("tcp://127.0.0.1:80", ServerAddress(host="127.0.0.1", port=80, token="t")),
    ("tcp://[::1]:80", ServerAddress(host="::1", port=80, token="t")),
    ("tcp://localhost:65535", ServerAddress(host="localhost", port=65535, token="t")),
]


@pytest.mark.parametrize(("text", "expected"), HOSTS)
def test_hosts(text: str, expected: ServerAddress) -> None:
    assert parse_host(text, "t") == expected


BAD_HOSTS = [
    "",
    "x",
    "/run/x.sock",
    "unix://x",
    "tcp://x",
    "tcp://:80",
    "tcp://x:0",
    "tcp://x:65536",
    "tcp://x:²",
    "http://x:1",
]


@pytest.mark.parametrize("text", BAD_HOSTS)
def test_bad_hosts(text: str) -> None:
    with pytest.raises(BadHost):
        parse_host(text)


def test_locate(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {"HOME": str(home), "XDG_RUNTIME_DIR": "/run/u"}
    default = locate(environment=environment)
    assert default.address.path.startswith("/run/u/holdfast/server-"), "HOME is not the home of the password database"
    assert default.data_dir == f"{home}/.local/share/holdfast"
    other = locate(data_dir=str(tmp_path), environment=environment)
    assert other.address.path.startswith("/run/u/holdfast/server-")
    assert other.address.path != default.address.path
    assert (other.data_dir, other.can_be_started) == (str(tmp_path), True)
    (tmp_path / "link").symlink_to(tmp_path)
    assert locate(data_dir=str(tmp_path / "link"), environment=environment) == other
    assert serve_command(other)[-2:] == ["--data-dir", str(tmp_path)]
    of_the_user = {"HOME": pwd.getpwuid(os.getuid()).pw_dir, "XDG_RUNTIME_DIR": "/nowhere/u"}
    assert locate(environment=of_the_user).usual == "/nowhere/u/holdfast/server.sock"


def test_a_named_host_is_never_started(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    by_environment = locate(environment={"HOLDFAST_HOST": "tcp://127.0.0.1:9", "HOLDFAST_DATA_DIR": str(tmp_path)})
    assert (by_environment.address.token, by_environment.can_be_started) == ("t0ken", False)
    by_flag = locate("unix:///nowhere/x.sock", environment={"HOLDFAST_HOST": "tcp://127.0.0.1:9"})
    assert by_flag.address == ServerAddress(path="/nowhere/x.sock")
    with pytest.raises(Unreachable):
        find_or_start(by_flag)


class LauncherFixture:
    """Directories for a socket and data, and a server that records its starts."""

    def __init__(self, root: Path) -> None:
        self.socket = root / "run" / "s"
        self.notes = root / "notes"
        self.data = root / "data"
        self._program = root / "server.py"
        self._program.write_text(SERVER)
        self.where = ServerLocation(ServerAddress(path=str(self.socket)), str(self.data), True)

    def command(self, unready: int = 0, *more: str) -> list[str]:
        program = [sys.executable, "-I", "-u", str(self._program)]
        return [*program, str(self.socket), str(self.notes), str(unready), str(self.data), *more]

    def lock(self, *lines: object, written_at: float | None = None) -> None:
        """Leave a lock file."""
        path = self.data / "lock"
        path.write_text("".join(f"{line}\n" for line in lines))
        if written_at is not None:
            os.utime(path, (written_at, written_at))

    def started(self) -> list[list[int]]:
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [[int(word) for word in line.split()] for line in lines]


@pytest.fixture
def launcher() -> Iterator[LauncherFixture]:
    with short_directory() as root:
        launcher = LauncherFixture(root)
        yield launcher
        for process, _ in launcher.started():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def test_a_server_is_started_and_then_found(launcher: LauncherFixture) -> None:
    with find_or_start(launcher.where, command=launcher.command()) as thin:
        assert thin.request("GET", "/v1/health")[0] == 200
    with find_or_start(launcher.where, command=["/bin/false"]) as thin:
        assert thin.request("GET", "/v1/health")[0] == 200
    ((process, session),) = launcher.started()
    assert process == session, "it has a session of its own"
    assert "starting up" in (launcher.data / "logs" / "server.log").read_text()
    assert launcher.socket.parent.stat().st_mode & 0o777 == 0o700


def test_a_server_of_an_earlier_version_is_the_process_in_the_lock_file(launcher: LauncherFixture) -> None:
    """It does not name its data directory. Its process id may have been that of another server before."""
    with pytest.raises(StartFailed, match="in time"):
        find_or_start(launcher.where, command=launcher.command(0, "earlier"), timeout=1.0)
    # On a busy machine the program may start later than the launcher waits.
    asyncio.run(until(launcher.started))
    ((process, _),) = launcher.started()
    for lines, written_at in (
        ((), None),
        (("x",), None),
        ((process + 1,), None),
        ((os.getpid(),), None),
        ((process, launcher.socket), None),
        ((process,), time.time() - 100),
    ):
        launcher.lock(*lines, written_at=written_at)
        assert find(launcher.where) is None, (lines, written_at)
    launcher.lock(process)
    found: list[SyncClient] = []

    def is_found() -> bool:
        client = find(launcher.where)
        found.extend([client] if client is not None else [])
        return bool(found)

    asyncio.run(until(is_found))
    assert found[0].peer_pid() == process
    found[0].close()


def test_a_server_of_another_data_directory_is_not_used(launcher: LauncherFixture) -> None:
    find_or_start(launcher.where, command=launcher.command()).close()
    ((process, _),) = launcher.started()
    other = launcher.data.with_name("other")
    other.mkdir()
    for lines in ((), (process,), (process, launcher.socket)):
        (other / "lock").write_text("".join(f"{line}\n" for line in lines))
        assert find(launcher.where._replace(data_dir=str(other))) is None, lines
    launcher.data.rename(launcher.data.with_name("moved"))
    launcher.data.mkdir()
    assert find(launcher.where) is None, "another directory at the same path is another directory"


def test_healthy_server_is_ready(launcher: LauncherFixture) -> None:
    with find_or_start(launcher.where, command=launcher.command(unready=3)) as thin:
        assert thin.request("GET", "/v1/health")[0] == 200


def test_a_stale_socket_does_not_stop_a_start(launcher: LauncherFixture) -> None:
    secure_directory(str(launcher.socket.parent))
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(launcher.socket))
    stale.close()
    find_or_start(launcher.where, command=launcher.command()).close()
    assert len(launcher.started()) == 1


def test_one_of_many_launchers_starts_server(launcher: LauncherFixture) -> None:
    together = Barrier(6)

    def begin(_: int) -> int:
        together.wait()
        with find_or_start(launcher.where, command=launcher.command()) as thin:
            return thin.request("GET", "/v1/health")[0]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(begin, range(6))) == [200] * 6
    assert len(launcher.started()) == 1


def test_a_failed_start_reports_the_last_log_lines(launcher: LauncherFixture) -> None:
    log = launcher.data / "logs" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("words of an earlier start\n")
    program = "import sys; print(*range(40), sep='\\n'); sys.exit('The data directory is busy.')"
    with pytest.raises(StartFailed, match=r"The data directory is busy\.") as caught:
        find_or_start(launcher.where, command=[sys.executable, "-I", "-u", "-c", program])
    assert "earlier" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 13


def test_start_that_ends_without_output(launcher: LauncherFixture) -> None:
    with pytest.raises(StartFailed, match="printed no message"):
        find_or_start(launcher.where, command=[sys.executable, "-I", "-c", ""])


def test_start_that_ends_without_output_on_full_disk(
    launcher: LauncherFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was too full for its last output."""
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((0,) * 11))
    with pytest.raises(StartFailed, match=r"The disk of \S+/server.log is full: free some space"):
        find_or_start(launcher.where, command=[sys.executable, "-I", "-c", ""])


def test_a_data_directory_that_cannot_be_used(launcher: LauncherFixture) -> None:
    """The error names the directory and a remedy."""
    launcher.data.write_text("a file")
    for place in (launcher.data, launcher.data / "below"):
        with pytest.raises(StartFailed, match=r"(?s)directory.*HOLDFAST_DATA_DIR") as caught:
            find_or_start(launcher.where._replace(data_dir=str(place)), command=launcher.command())
        assert str(place) in str(caught.value)
    assert launcher.started() == []


def test_missing_program(launcher: LauncherFixture) -> None:
    with pytest.raises(StartFailed, match="No such file"):
        find_or_start(launcher.where, command=[str(launcher.data / "nothing")])


def test_a_start_that_takes_too_long(launcher: LauncherFixture) -> None:
    with pytest.raises(StartFailed, match="in time"):
        find_or_start(launcher.where, command=launcher.command(unready=10**9), timeout=1.0)
    # The fixture ends the program that has started.
    asyncio.run(until(launcher.started))


LEAVING = f"""
import os, sys
place, *command = sys.argv[1:]
try:
    os.rmdir(place)
except FileNotFoundError:
    os.execv(command[0], command)
sys.exit({EXIT_ADDRESS_IN_USE})
"""


def test_exiting_server_is_replaced(launcher: LauncherFixture) -> None:
    """The socket is in use until it has exited: a server started too early is started again."""
    place = launcher.socket.parent.with_name("taken")
    place.mkdir()
    command = [sys.executable, "-I", "-u", "-c", LEAVING, str(place), *launcher.command()]
    find_or_start(launcher.where, command=command).close()
    assert len(launcher.started()) == 1
    assert not place.exists()


def test_a_server_that_does_not_answer_and_does_not_leave(launcher: LauncherFixture) -> None:
    # A shell starts within the limit on a busy machine, too.
    program = f"echo words of the one; exit {EXIT_ADDRESS_IN_USE}"
    with pytest.raises(StartFailed, match=r"(?s)uses the socket.*words of the one$"):
        find_or_start(launcher.where, command=["/bin/sh", "-c", program], timeout=1.0)


def test_a_log_that_cannot_be_written_is_named(launcher: LauncherFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    log = launcher.data / "logs" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("of somebody else")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StartFailed, match=r"log \S+/server\.log cannot be written"):
        find_or_start(launcher.where, command=launcher.command())


def test_other_launcher_that_does_not_get_ready(launcher: LauncherFixture) -> None:
    secure_directory(str(launcher.socket.parent))
    with open(f"{launcher.socket}.start", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StartFailed, match="Another client"):
            find_or_start(launcher.where, command=launcher.command(), timeout=0.02)
    assert launcher.started() == []


def test_directories_of_other_users_are_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    with pytest.raises(UnsafePath, match="chmod 700"):
        secure_directory(str(open_to_all))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(UnsafePath, match="not a directory that you own"):
        secure_directory(str(link))
    (tmp_path / "file").touch()
    with pytest.raises(UnsafePath):
        secure_directory(str(tmp_path / "file"))
    where = ServerLocation(ServerAddress(path=str(open_to_all / "s")), str(tmp_path), True)
    with pytest.raises(UnsafePath):
        find_or_start(where)
