"""A server and its socket belong to one data directory: two of them never share a server or a store."""

import json
import os
import pty
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome, isolated_home
from holdfast.client.server_launcher import find
from holdfast.lock_owner import read_owner


def _data(home: IsolatedHome) -> Path:
    return home.home / ".local/share/holdfast"


def _stored(home: IsolatedHome, query: str) -> set[str]:
    """The first column of all rows, as text."""
    address = f"file:{_data(home)}/holdfast.db?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        return {os.fsdecode(value) for (value,) in connection.execute(query)}


def _workspaces(home: IsolatedHome) -> set[str]:
    return _stored(home, "SELECT path FROM workspaces")


@pytest.fixture
def two() -> Iterator[tuple[IsolatedHome, IsolatedHome]]:
    """Two homes with one runtime directory, as `sudo -E` or a changed HOME leave them."""
    with isolated_home() as one, isolated_home() as other:
        other.environment["XDG_RUNTIME_DIR"] = one.environment["XDG_RUNTIME_DIR"]
        for home in (one, other):
            del home.environment["HOLDFAST_DATA_DIR"]
        yield one, other


def _in_an_editor(home: IsolatedHome, directory: Path) -> None:
    """Open a session as an editor does."""
    command = [sys.executable, "-P", "-m", "holdfast", "acp"]
    methods = {"initialize": {"protocolVersion": 1}, "session/new": {"cwd": str(directory), "mcpServers": []}}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory, env=home.environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, (method, params) in enumerate(methods.items()):
            call = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(call).encode() + b"\n")
            process.stdin.flush()
        assert any(b"sessionId" in line for line in process.stdout)
        process.stdin.close()


def _at_a_terminal(home: IsolatedHome, directory: Path) -> None:
    """Keep the terminal app open until the server has opened its workspace."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-P", "-m", "holdfast"]
    environment = {**home.environment, "TERM": "xterm"}
    deadline = time.monotonic() + TIMEOUT
    with subprocess.Popen(command, stdin=follower, stdout=follower, cwd=directory, env=environment) as process:
        os.close(follower)
        while str(directory) not in _workspaces(home) and time.monotonic() < deadline:
            if select.select([leader], [], [], 0.02)[0]:
                os.read(leader, 65536)
        process.kill()
    os.close(leader)


def test_every_command_uses_the_server_of_its_own_data_directory(two: tuple[IsolatedHome, IsolatedHome]) -> None:
    one, other = two
    assert one.stdout_of("run", "words=2 of the one") == "word1 word2"
    places = {name: other.home / name for name in ("run", "runs", "sessions", "attach", "web", "acp", "tui")}
    for place in places.values():
        place.mkdir()
    assert other.call("server", "status").returncode == 4, "the server of the one is not that of the other"
    assert other.call("server", "stop").stdout == "No server is running.\n"
    commands = {
        "run": ("run", "words=1 of the other"),
        "runs": ("runs", "list"),
        "sessions": ("sessions", "list"),
        "attach": ("attach",),
        "web": ("web", "--no-open"),
    }
    for name, command in commands.items():
        done = other.call(*command, cwd=places[name])
        assert done.returncode == 0 or name == "attach", (name, done.stderr)
    _in_an_editor(other, places["acp"])
    _at_a_terminal(other, places["tui"])
    assert _workspaces(other) == {str(place) for place in places.values()}
    assert _workspaces(one) == {str(one.work)}
    assert _stored(one, "SELECT id FROM sessions").isdisjoint(_stored(other, "SELECT id FROM sessions"))
    states = [json.loads(home.stdout_of("server", "status", "--json")) for home in two]
    assert states[0]["pid"] != states[1]["pid"]
    assert [json.loads(home.stdout_of("dirs", "--json"))["server"] for home in two] == [
        state["address"] for state in states
    ]
    for home, state in zip(two, states, strict=True):
        assert (_data(home) / "lock").read_text() == f"{state['pid']}\n{state['address'].removeprefix('unix://')}\n"
    assert other.stdout_of("server", "stop", "--force") == "Stopped."
    assert one.server_process() == states[0]["pid"]


def test_a_lock_file_that_names_the_server_of_another_directory(two: tuple[IsolatedHome, IsolatedHome]) -> None:
    """The lock file of a killed server whose socket or process id belongs to another server by now."""
    one, other = two
    one.stdout_of("run", "words=1 of the one")
    owner = read_owner(str(_data(one)))
    assert owner is not None
    _data(other).mkdir(parents=True)
    for content in (f"{owner.pid}\n{owner.socket}\n", f"{owner.pid}\n", f"999999\n{owner.socket}\n", "x\n"):
        (_data(other) / "lock").write_text(content)
        (_data(other) / "socket").write_text(owner.socket)
        assert find(other.where) is None, content
    assert other.stdout_of("run", "words=1 of the other") == "word1"
    assert _workspaces(one) == {str(one.work)}
    assert _workspaces(other) == {str(other.work)}
    found = read_owner(str(_data(other)))
    assert found is not None
    assert found.socket not in ("", owner.socket)
    assert not (_data(other) / "socket").exists(), "no second file names the socket"


def test_a_socket_name_of_another_server_is_skipped(alone: IsolatedHome) -> None:
    """As when the names of two data directories have the same hash."""
    taken = alone.where.usual
    second_server = alone.start("serve", "--data-dir", str(alone.home / "e"), "--host", f"unix://{taken}")
    assert second_server.stderr is not None
    assert any(b"listening" in line for line in second_server.stderr)
    assert alone.call("server", "status").returncode == 4
    assert alone.stdout_of("run", "words=1") == "word1"
    owner = read_owner(alone.where.data_dir)
    assert owner is not None
    assert owner.socket != taken
    assert os.path.dirname(owner.socket) == os.path.dirname(taken)
    assert alone.server_process() == owner.pid != second_server.pid


def test_one_data_directory_has_one_server_by_every_path(alone: IsolatedHome) -> None:
    alone.stdout_of("run", "words=1")
    server = alone.server_process()
    link = alone.home / "link"
    link.symlink_to(alone.where.data_dir)
    kept = dict(alone.environment)
    for path, runtime in ((str(link), kept["XDG_RUNTIME_DIR"]), (f"{link}/../d", ""), (f"{link}/.", "/nowhere")):
        alone.environment |= {"HOLDFAST_DATA_DIR": path, "XDG_RUNTIME_DIR": runtime}
        assert json.loads(alone.stdout_of("server", "status", "--json"))["pid"] == server
    alone.environment |= {"XDG_RUNTIME_DIR": str(alone.home / "r2")}
    second = alone.call("serve")
    assert (second.returncode, f"process {server}" in second.stderr) == (1, True)


def test_a_server_without_its_data_directory_never_answers(alone: IsolatedHome) -> None:
    """A second server on the same data directory refuses to start, and accepts no connection before that."""
    alone.serve()
    path = str(alone.home / "r" / "second.sock")
    second = alone.start("serve", "--host", f"unix://{path}")
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        while second.poll() is None:
            with pytest.raises(OSError, match=r"No such file|refused"):
                probe.connect(path)
    assert second.returncode == 1
    assert not os.path.exists(path)


def test_a_killed_server_is_replaced(alone: IsolatedHome) -> None:
    alone.stdout_of("run", "words=1")
    before = alone.server_process()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert alone.stdout_of("run", "words=1") == "word1"
    assert alone.server_process() not in (None, before)


def test_a_public_tcp_port_causes_a_warning(alone: IsolatedHome, reserved_port: int) -> None:
    output = {}
    for host in ("127.0.0.1", "0.0.0.0"):
        process = alone.start("serve", "--host", f"tcp://{host}:{reserved_port}")
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if b".sock" in line:
                break
        output[host] = b"".join(lines)
        process.terminate()
        process.wait(TIMEOUT)
    assert b"WARNING" not in output["127.0.0.1"]
    assert b"can be reached from other machines" in output["0.0.0.0"]
