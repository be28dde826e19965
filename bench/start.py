"""Start-up: until a server answers, until it has answered a prompt, and what a one-shot `holdfast run` takes."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.figures import Figure, Goal
from bench.outside import Crowd, Served, Speaker, environment, served
from holdfast.lock_owner import LOCK_NAME, directory_id
from holdfast.server.http.listen import UnixListener

__all__ = ["measure"]

TIMES = 9


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


def _first_turn(server: Served) -> float:
    server.answer("/v1/version")
    speaker = Speaker(server)
    session, crowd = speaker.session(), Crowd([speaker.stream()])
    speaker.post(session, "words=20")
    crowd.until_ends(1)
    done = time.perf_counter() - server.began
    crowd.close()
    speaker.close()
    return done


def _warm(server: Served) -> list[float]:
    server.answer("/v1/version")
    return [_ran(server.root, "-m", "holdfast", "run", "words=20") for _ in range(TIMES)]


def _cold() -> float:
    with served("-c", "pass") as nobody:
        nobody.process.wait()
        took = _ran(nobody.root, "-m", "holdfast", "run", "words=20")
        _ran(nobody.root, "-m", "holdfast", "server", "stop", "--force")
    return took


def _to_the_wire() -> float:
    """Until the prompt of `holdfast run` is on the wire, to somebody who answers at once."""
    with served("-c", "pass") as nobody:
        nobody.process.wait()
        listener = UnixListener(nobody.address.path)
        listener.socket.listen()
        data = nobody.root / ".local" / "share" / "holdfast"
        data.mkdir(parents=True)
        (data / LOCK_NAME).write_text(f"1\n{listener.path}\n")
        heard: list[float] = []
        thread = threading.Thread(target=_play, args=(listener, heard, directory_id(data)))
        thread.start()
        began = time.perf_counter()
        command = [sys.executable, "-m", "holdfast", "run", "hello"]
        project, known = nobody.root / "project", environment(nobody.root)
        process = subprocess.Popen(command, env=known, cwd=project, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        thread.join()
        process.kill()
        process.wait()
        listener.close()
        return heard[0] - began


def _play(listener: UnixListener, heard: list[float], data_id: str) -> None:
    """As much of a server as a run needs up to its prompt."""
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"id":"x","version":"99","protocol":1,"pid":1,"data_id":"%b"}' % data_id.encode()
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    asking, _ = listener.socket.accept()
    streams = []
    while data := asking.recv(262_144):
        if b"/agent HTTP" in data:
            heard.append(time.perf_counter())
            break
        asking.sendall(whole)
        if b"/sessions HTTP" in data:
            streams.append(listener.socket.accept()[0])
            streams[-1].recv(65536)
            streams[-1].sendall(stream)
    for connection in (asking, *streams):
        connection.close()


def _times(measured: Callable[[Served], float]) -> float:
    found = []
    for _ in range(TIMES):
        with served() as server:
            found.append(measured(server))
    return median(found) * 1e3


def measure() -> list[Figure]:
    """Medians, each beside what an interpreter alone takes in the same minute."""
    with served() as server:
        floor = median(_ran(server.root, "-c", "pass") for _ in range(TIMES)) * 1e3
        warm = median(_warm(server)) * 1e3
        help_ = median(_ran(server.root, "-m", "holdfast", "--help") for _ in range(TIMES)) * 1e3
        asyncio_ = median(_ran(server.root, "-c", "import uvloop") for _ in range(TIMES)) * 1e3
    rows = [
        # The server answers when everything is loaded and its store is open.
        ("spawn to first answer", _times(lambda server: server.answer("/v1/health")), 250),
        ("spawn to first turn done", _times(_first_turn), 300),
        ("one-shot run, with a server", warm, 100),
        ("one-shot run, without", median(_cold() for _ in range(TIMES)) * 1e3, 350),
        ("run: start to prompt on the wire", median(_to_the_wire() for _ in range(TIMES)) * 1e3, 60),
        ("holdfast --help", help_, 100),
        ("uvloop and asyncio alone", asyncio_, None),
    ]
    return [
        Figure(name, value, "ms", floor, "an interpreter alone", None if goal is None else Goal(goal))
        for name, value, goal in rows
    ]
