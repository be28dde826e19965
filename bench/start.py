"""Start of servers and commands: until the first answer, until the first turn has ended, one-shot `holdfast run`."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

from bench.figures import Figure, Goal
from bench.plan import Plan
from bench.repositories import temporary_directory
from bench.servers import Provider, ServerProcess, environment, free_port, served
from bench.turn_rows import Subject
from holdfast.client.server_address import ServerAddress
from holdfast.lock_owner import LOCK_NAME, directory_id
from holdfast.server.http.listen import UnixListener

__all__ = ["measure", "measure_runs", "measure_starts"]

TIMES = 9
_SECTION = "start"


def _ran(root: Path, *command: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *command],
        check=True,
        env=environment(root),
        cwd=root / "project",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def _bare_start() -> float:
    """Seconds until the bare process has answered over TCP."""
    address = ServerAddress(host="127.0.0.1", port=free_port())
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "bench.bare_process", str(address.port)]) as process:
        return ServerProcess(temporary_directory(), process, began, address).wait_for_answer()


def _first_answer(provider: Provider, *, over_tcp: bool) -> float:
    with served(settings=provider.settings) as server:
        return server.wait_for_answer(over_tcp=over_tcp)


def _first_turn(provider: Provider, *, over_tcp: bool) -> float:
    """Seconds until the end of the first turn, whose client waits for the first answer before it connects."""
    with served(settings=provider.settings) as server:
        server.wait_for_answer(over_tcp=over_tcp)
        subject = Subject(server, over_tcp=over_tcp)
        subject.turn(subject.client.session(), "words=20")
        seconds = time.perf_counter() - server.began
        subject.close()
    return seconds


def measure_starts(provider: Provider, plan: Plan) -> list[Figure]:
    """Start servers with an empty data directory, each time beside a bare process."""
    bare, answers, turns, on_socket = [], [], [], []
    for _ in range(plan.starts):
        bare.append(_bare_start())
        answers.append(_first_answer(provider, over_tcp=True))
        turns.append(_first_turn(provider, over_tcp=True))
        on_socket.append(_first_answer(provider, over_tcp=False))
    limit, beside = median(bare) * 1e3, "a bare process that imports asyncio, msgspec and apsw and answers once"
    rows = (
        ("spawn to first true answer, TCP", answers, 2.0, "52-67 ms", "start"),
        ("spawn to first true answer, unix socket", on_socket, 2.0, "", "start_unix"),
        ("spawn to end of first turn, TCP", turns, 3.5, "131 ms", "start_turn"),
    )
    return [
        Figure(name, median(found) * 1e3, "ms", limit, beside, Goal(bound, is_ratio=True), key, _SECTION, reference)
        for name, found, bound, reference, key in rows
    ]


def measure_runs(provider: Provider, plan: Plan) -> list[Figure]:
    """Run the one-shot command against a running server, beside an interpreter that does nothing."""
    with served(settings=provider.settings) as server:
        server.wait_for_answer()
        alone, runs = [], []
        _ran(server.root, "-m", "holdfast", "run", "words=20")
        for _ in range(plan.starts):
            alone.append(_ran(server.root, "-c", "pass") * 1e3)
            runs.append(_ran(server.root, "-m", "holdfast", "run", "words=20") * 1e3)
    return [
        Figure(
            "one-shot run with a running server",
            median(runs),
            "ms",
            median(alone),
            "an interpreter alone",
            None,
            "run",
            _SECTION,
            "1.36 × the time of Holdfast",
        )
    ]


def _cold() -> float:
    with served("-c", "pass") as unknown_user:
        unknown_user.process.wait()
        took = _ran(unknown_user.root, "-m", "holdfast", "run", "words=20")
        _ran(unknown_user.root, "-m", "holdfast", "server", "stop", "--force")
    return took


def _to_the_wire() -> float:
    """Return the seconds until `holdfast run` has sent its prompt to a server that responds immediately."""
    with served("-c", "pass") as unknown_user:
        unknown_user.process.wait()
        listener = UnixListener(unknown_user.unix.path)
        listener.socket.listen()
        data = unknown_user.root / ".local" / "share" / "holdfast"
        data.mkdir(parents=True, exist_ok=True)
        (data / LOCK_NAME).write_text(f"1\n{listener.path}\n")
        received: list[float] = []
        thread = threading.Thread(target=_play, args=(listener, received, directory_id(data)))
        thread.start()
        began = time.perf_counter()
        command = [sys.executable, "-m", "holdfast", "run", "hello"]
        project, known = unknown_user.root / "project", environment(unknown_user.root)
        process = subprocess.Popen(command, env=known, cwd=project, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        thread.join()
        process.kill()
        process.wait()
        listener.close()
        return received[0] - began


def _play(listener: UnixListener, received: list[float], data_id: str) -> None:
    """Respond like a server to the requests of a run up to its prompt."""
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"id":"x","version":"99","protocol":1,"pid":1,"data_id":"%b"}' % data_id.encode()
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    asking, _ = listener.socket.accept()
    streams = []
    while data := asking.recv(262_144):
        if b"/agent HTTP" in data:
            received.append(time.perf_counter())
            break
        asking.sendall(whole)
        if b"/sessions HTTP" in data:
            streams.append(listener.socket.accept()[0])
            streams[-1].recv(65536)
            streams[-1].sendall(stream)
    for connection in (asking, *streams):
        connection.close()


def measure() -> list[Figure]:
    """Return the rows about commands that are not part of the table, beside an interpreter alone."""
    with served() as server:
        alone = median(_ran(server.root, "-c", "pass") for _ in range(TIMES)) * 1e3
        help_ = median(_ran(server.root, "-m", "holdfast", "--help") for _ in range(TIMES)) * 1e3
        uvloop = median(_ran(server.root, "-c", "import uvloop") for _ in range(TIMES)) * 1e3
    rows = [
        ("one-shot run, without a server", median(_cold() for _ in range(TIMES)) * 1e3, 350),
        ("run: start to prompt on the wire", median(_to_the_wire() for _ in range(TIMES)) * 1e3, 60),
        ("holdfast --help", help_, 100),
        ("uvloop and asyncio alone", uvloop, None),
    ]
    return [
        Figure(name, value, "ms", alone, "an interpreter alone", None if goal is None else Goal(goal))
        for name, value, goal in rows
    ]
