"""`holdfast run` when things break: the server dies, hangs, or the stream does (C-46)."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from cli.isolated_home import TIMEOUT, IsolatedHome
from holdfast.cli import server_connection
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import find
from holdfast.client.sync_client import SyncClient


def test_a_killed_server_is_started_again_and_the_run_is_interrupted(alone: IsolatedHome) -> None:
    """C-46: kill -9 in the middle of a stream; never 0 without the answer."""
    server = alone.serve()
    process = alone.start("run", "--stream", "--run-id", "cut", "words=2000 pause=20")
    assert process.stdout is not None
    process.stdout.read(1)
    server.kill()
    server.wait(TIMEOUT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 3
    assert b"interrupted, because the server stopped" in err
    assert out.endswith(b"\n")
    assert alone.server_process() not in (None, server.pid)
    assert alone.run_of("cut").outcome == "interrupted"
    assert alone.stdout_of("run", "words=2") == "word1 word2"


def test_a_queued_prompt_continues_after_a_crash(alone: IsolatedHome) -> None:
    """C-46: it was stored, so the next server answers it."""
    server = alone.serve()
    first = alone.start("run", "--stream", "--run-id", "first", "words=2000 pause=20")
    assert first.stdout is not None
    first.stdout.read(1)
    session = alone.run_of("first").session_id
    second = alone.start("run", "--verbose", "--session", session, ", words=3 pause=0")
    assert second.stderr is not None
    assert any(b"waiting for its turn" in line for line in second.stderr)
    server.kill()
    server.wait(TIMEOUT)
    assert second.communicate(timeout=TIMEOUT)[0] == b"word1 word2 word3\n"
    assert second.returncode == 0
    first.communicate(timeout=TIMEOUT)
    assert first.returncode == 3


def test_a_command_with_another_environment_uses_the_running_server(alone: IsolatedHome) -> None:
    """R8: cron has no XDG_RUNTIME_DIR, a desktop has one. Both find the server of a data directory and its next one."""
    server = alone.serve()
    elsewhere = alone.home / "e"
    elsewhere.mkdir(mode=0o700)
    usual = alone.environment["XDG_RUNTIME_DIR"]
    alone.environment["XDG_RUNTIME_DIR"] = str(elsewhere)
    assert alone.stdout_of("run", "words=2") == "word1 word2"
    process = alone.start("run", "--stream", "words=2000 pause=20")
    assert process.stdout is not None
    process.stdout.read(1)
    server.kill()
    server.wait(TIMEOUT)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 3
    found = msgspec.json.decode(alone.stdout_of("server", "--json"))
    assert found["address"].startswith(f"unix://{elsewhere}"), "the next server binds the socket of its client"
    alone.environment["XDG_RUNTIME_DIR"] = usual
    assert msgspec.json.decode(alone.stdout_of("server", "--json")) == found


def test_a_stopped_server_interrupts_the_run(alone: IsolatedHome) -> None:
    alone.serve()
    process = alone.start("run", "--stream", "words=2000 pause=20")
    assert process.stdout is not None
    process.stdout.read(1)
    refused = alone.call("server", "stop")
    assert refused.returncode == 4
    assert "busy" in refused.stderr
    assert alone.stdout_of("server", "stop", "--force") == "Stopped."
    _, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, b"interrupted" in err) == (3, True)


def test_a_second_signal_exits_at_once(alone: IsolatedHome) -> None:
    """C-48: also while the server does not answer."""
    server = alone.serve()
    process = alone.start("run", "--verbose", "--stream", "words=2000 pause=20")
    assert process.stdout is not None
    process.stdout.read(1)
    server.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any(b"stopping" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT) == 130
    server.send_signal(signal.SIGCONT)


def test_the_timeout_applies_before_the_prompt_is_accepted(alone: IsolatedHome) -> None:
    """C-46: a hanging server does not block the command."""
    server = alone.serve()
    server.send_signal(signal.SIGSTOP)
    done = alone.call("run", "--timeout", "0.3", "words=3")
    server.send_signal(signal.SIGCONT)
    assert (done.returncode, done.stdout) == (124, "")
    assert "did not respond in time" in done.stderr


def test_an_unwritable_answer_is_not_a_success(alone: IsolatedHome) -> None:
    """C-46: never 0 without the answer."""
    alone.serve()
    command = f"exec {sys.executable} -m holdfast run words=3 "
    for target, complaint in ((">/dev/full", "No space left"), (">&-", "Bad file descriptor")):
        done = subprocess.run(
            ["/bin/sh", "-c", command + target],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=alone.work,
            env=alone.environment,
            timeout=TIMEOUT,
            check=False,
        )
        output = done.stderr.decode()
        assert (done.returncode, complaint in output) == (1, True)
        kept = re.search("holdfast runs wait ([0-9a-f]+) prints it", output)
        assert kept is not None
        assert alone.stdout_of("runs", "wait", kept[1]) == "word1 word2 word3"


@pytest.mark.parametrize("arguments", [("run", "x"), ("run", "--json", "x"), ("sessions",), ("runs",), ("attach",)])
def test_a_removed_directory_is_a_one_line_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = f"rmdir {tmp_path} && exec {sys.executable} -P -m holdfast {' '.join(arguments)}"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"The current directory no longer exists" in done.stderr
    assert b"Traceback" not in done.stderr


def test_over_tcp_the_token_is_found_or_required(alone: IsolatedHome, reserved_port: int) -> None:
    """R12: it is in the data directory of the server; another data directory must be given."""
    host = f"tcp://127.0.0.1:{reserved_port}"
    alone.serve("--host", host)
    assert alone.stdout_of("run", "--host", host, "words=3") == "word1 word2 word3"
    done = alone.call("run", "--host", host, "--data-dir", str(alone.home / "elsewhere"), "words=3")
    assert (done.returncode, done.stdout) == (4, "")
    assert "requires its token" in done.stderr
    assert "--data-dir" in done.stderr


def test_a_broken_stream_is_resumed_by_number(alone: IsolatedHome) -> None:
    """C-46: each connection breaks after a few hundred bytes of events; no text is missing or repeated."""
    alone.serve()
    place = str(alone.home / "p.sock")
    with _breaking(place, alone.where.address.path) as breaks:
        done = alone.call("run", "--host", f"unix://{place}", "--stream", "words=120 pause=10")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == " ".join(f"word{number}" for number in range(1, 121)) + "\n"
    assert len(breaks) > 1


@contextmanager
def _breaking(place: str, server: str) -> Iterator[list[int]]:
    """A way to the server on which streams break; the list grows with each break."""
    breaks: list[int] = []
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            sockets.extend((near, far))
            far.connect(server)
            limit = 2000 + 1500 * len(breaks)
            for arguments in ((near, far, None, breaks), (far, near, limit, breaks)):
                thread = threading.Thread(target=_pump, args=arguments)
                thread.start()
                threads.append(thread)

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield breaks
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(TIMEOUT)
        for thread in threads:
            thread.join(TIMEOUT)
        for end in sockets:
            end.close()
        os.unlink(place)


def _pump(source: socket.socket, target: socket.socket, limit: int | None, breaks: list[int]) -> None:
    """Forward bytes; a stream is cut at its limit, within an event."""
    is_stream = False
    carried = 0
    try:
        while data := source.recv(512):
            is_stream = is_stream or b"text/event-stream" in data[:400].lower()
            carried += len(data)
            if limit is not None and is_stream and carried > limit:
                breaks.append(carried)
                target.sendall(data[: len(data) // 2])
                break
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


@pytest.mark.parametrize("body", [b"<html>secret</html>", b"", b'{"message": 7, "x": "secret"}'])
def test_an_invalid_response_is_not_echoed(alone: IsolatedHome, body: bytes) -> None:
    """C-28: a malformed or empty body falls back to the status alone."""
    place = str(alone.home / "f.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        process = alone.start("run", "--host", f"unix://{place}", "words=3")
        listener.settimeout(TIMEOUT)
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 418 Odd\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (4, b"")
    assert err == b"holdfast: The server answered with status 418.\n"


def test_a_server_that_exits_after_it_was_found_is_replaced(
    alone: IsolatedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server responds, and has exited when the workspace is opened (C-46)."""
    gone = SyncClient(ServerAddress(path=f"{alone.home}/r/gone"))
    tries = iter([gone])
    monkeypatch.setattr(server_connection, "replace_outdated", lambda *_: False)
    monkeypatch.setattr(server_connection, "find", lambda *given: next(tries, None) or find(*given))
    for name, value in alone.environment.items():
        monkeypatch.setenv(name, value)
    with closing(server_connection.ServerConnection(alone.where, str(alone.work))) as made:
        made.open()
        assert made.workspace


def test_an_unresponsive_server_is_reported_with_its_process_id(alone: IsolatedHome) -> None:
    alone.serve()
    process = alone.server_process()
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    code = "from holdfast.cli import server, main; server._REQUEST_TIMEOUT = 0.3; main.main()"
    for command in ("status", "stop"):
        asked = alone.start("server", command, code=code)
        output, complaint = asked.communicate(timeout=TIMEOUT)
        assert (asked.returncode, output) == (4, b"")
        assert f"kill -9 {process}:".encode() in complaint
    os.kill(process, signal.SIGCONT)
    assert alone.stdout_of("server", "stop") == "Stopped."


DYING = """
import os, select, signal
from holdfast.cli import main
from holdfast.cli.run_client import run_command

def once(connection, *rest):
    run_command._choose_session = choose
    process = connection.request_json("GET", "/v1/version")["pid"]
    watch = os.pidfd_open(process)
    os.kill(process, signal.SIGKILL)
    select.select([watch], [], [])
    return choose(connection, *rest)

choose, run_command._choose_session = run_command._choose_session, once
main.main()
"""


def test_a_server_that_dies_before_the_prompt_is_sent_is_replaced(alone: IsolatedHome) -> None:
    alone.stdout_of("server", "start")
    process = alone.start("run", "words=2", code=DYING)
    output, complaint = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, output, complaint) == (0, b"word1 word2\n", b"")
