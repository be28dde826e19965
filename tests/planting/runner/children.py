"""Forked children with limits. A child and everything it started is gone when its result is known.

A supervisor runs between the runner and the child that runs tests. It is a subreaper: processes whose parents have
ended become its children, so that it finds and kills them whatever group or session they have moved to.
"""

import ctypes
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["Job", "Limits", "Outcome", "Report", "run_jobs"]

Report = Callable[[dict[str, Any]], None]

_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.2
_CLOCK_PER_PROCESSOR = 4.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Limits(NamedTuple):
    """Seconds that a child may take. A test that exceeds its own limit hangs; the child's limit only ends the work.

    The child's limit counts processor time, so that a busy machine does not shorten the work, and at most four times as
    much time by the clock.
    """

    total: float
    per_test: Callable[[str], float]


class Outcome(NamedTuple):
    """The end of a child. `test` is the last one that started, `data` the last report with data."""

    word: Literal["passed", "failed", "hung", "died", "limit", "refused"]
    test: str
    text: str
    ran: int
    seconds: float
    data: dict[str, Any]


class Job(NamedTuple):
    """Work for one child. It reports `test` before each test, and finally `end` with a word of `Outcome`."""

    name: str
    work: Callable[[Report, Path], None]
    limits: Limits


def run_jobs(next_job: Callable[[], Job | None], workers: int) -> Iterator[tuple[Job, Outcome]]:
    """Run jobs in forked children, some at a time; yield results as they arrive. A result may lead to further jobs."""
    selector = selectors.DefaultSelector()
    active: dict[int, tuple[Job, int, bytearray]] = {}
    while True:
        while len(active) < workers and (job := next_job()) is not None:
            reader, pid = _start(job)
            active[reader] = (job, pid, bytearray())
            selector.register(reader, selectors.EVENT_READ)
        if not active:
            return
        for key, _ in selector.select():
            job, pid, text = active[key.fd]
            if piece := os.read(key.fd, 1 << 20):
                text += piece
                continue
            selector.unregister(key.fd)
            os.close(key.fd)
            del active[key.fd]
            os.waitpid(pid, 0)
            yield job, _outcome(bytes(text))


def _outcome(text: bytes) -> Outcome:
    if not text:
        return Outcome("died", "", "the supervisor of the child ended", 0, 0.0, {})
    return Outcome(*json.loads(text))


def _start(job: Job) -> tuple[int, int]:
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    try:
        os.close(reader)
        outcome = _supervised(job)
        with open(writer, "w", encoding="utf-8") as pipe:
            json.dump(outcome, pipe)
    finally:
        os._exit(0)


def _supervised(job: Job) -> Outcome:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Short, because sockets of the tests are below it.
    folder = Path(tempfile.mkdtemp(prefix="m-"))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _run_child(job, writer, folder)
    os.close(writer)
    try:
        return _watch(job, reader, pid)
    finally:
        _kill_descendants()
        shutil.rmtree(folder, ignore_errors=True)


def _run_child(job: Job, writer: int, folder: Path) -> None:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None

        def report(entry: dict[str, Any]) -> None:
            os.write(writer, json.dumps(entry).encode() + b"\n")

        job.work(report, folder)
    except BaseException as error:
        os.write(writer, json.dumps({"end": "died", "text": repr(error)}).encode() + b"\n")
    finally:
        os._exit(0)


def _processor_seconds(pid: int) -> float:
    """Return the time used by the process and by children of it that have ended."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _watch(job: Job, reader: int, pid: int) -> Outcome:
    """Read the reports of the child until it ends, fails, or exceeds a limit."""
    began = test_began = time.monotonic()
    test, ran, data, text = "", 0, dict[str, Any](), bytearray()

    def outcome(word: Any, detail: str = "") -> Outcome:  # noqa: ANN401
        return Outcome(word, test, detail, ran, time.monotonic() - began, data)

    selector = selectors.DefaultSelector()
    selector.register(reader, selectors.EVENT_READ)
    while True:
        if selector.select(_POLL_SECONDS):
            piece = os.read(reader, 65536)
            if not piece:
                return outcome("died", "the child ended without a result")
            text += piece
            *lines, rest = bytes(text).split(b"\n")
            text = bytearray(rest)
            for report in map(json.loads, lines):
                data |= report.get("data", {})
                if "end" in report:
                    return outcome(report["end"], report.get("text", ""))
                test, ran, test_began = report["test"], ran + 1, time.monotonic()
        now = time.monotonic()
        if test and now - test_began > job.limits.per_test(test):
            return outcome("hung", f"no end after {now - test_began:.0f} s")
        is_late = now - began > _CLOCK_PER_PROCESSOR * job.limits.total
        if is_late or (now - began > job.limits.total and _processor_seconds(pid) > job.limits.total):
            return outcome("limit")


def _kill_descendants() -> None:
    """Kill until nothing is left. The children of killed processes become children of this one."""
    for _ in range(50):
        found = _descendants(os.getpid())
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, 0 if found else os.WNOHANG)[0]:
                found = []
        except ChildProcessError:
            return


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found: list[int] = []
    queue = [root]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found
