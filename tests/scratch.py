"""The directory of a test session: it contains everything created by tests and the programs they start.

Its path is short, because paths of sockets have at most 104 bytes. The session holds a lock on it, which ends with the
process in every case. Each session removes the directories of sessions that no longer exist, and kills their remaining
processes.
"""

import fcntl
import os
import random
import shutil
import signal
import string
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["memory_directory", "new_directory", "scratch_directory", "session_directory"]

_TOP = Path("/tmp")
_MEMORY = Path("/dev/shm")
_PREFIX = "hf"
_MARK = ".tests-of-holdfast"
_VARIABLE = "HOLDFAST_TEST_SCRATCH"
_MEMORY_VARIABLE = "HOLDFAST_TEST_MEMORY"


@contextmanager
def session_directory() -> Iterator[None]:
    """Create the directory and name it in the environment; remove it at the end. A nested session shares it."""
    if os.path.isdir(os.environ.get(_VARIABLE, "")):
        yield
        return
    tops = [top for top in (_TOP, _MEMORY) if os.access(top, os.W_OK)]
    for top in tops:
        _remove_abandoned(top)
    # Directories that pytest keeps after a failure are not removed.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    roots = [_make_root(top) for top in tops]
    os.environ["TMPDIR"] = os.environ["TMUX_TMPDIR"] = os.environ[_VARIABLE] = str(roots[0][0])
    os.environ[_MEMORY_VARIABLE] = str(roots[-1][0])
    tempfile.tempdir = None
    try:
        yield
    finally:
        for root, lock in roots:
            _remove(root)
            os.close(lock)


def new_directory() -> Path:
    """Return a new directory with a path of 16 characters, which the caller removes."""
    return _make(Path(os.environ[_VARIABLE]), "", 0o700)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory with a short path, and remove it."""
    made = new_directory()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Yield a new directory in shared memory (or in the session's directory if there is none), and remove it."""
    made = _make(Path(os.environ[_MEMORY_VARIABLE]), "", 0o700)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _make(top: Path, prefix: str, mode: int) -> Path:
    while True:
        made = top / (prefix + "".join(random.choices(string.ascii_lowercase + string.digits, k=4)))
        with suppress(FileExistsError):
            made.mkdir(mode=mode)
            return made


def _make_root(top: Path) -> tuple[Path, int]:
    # Some tests run as another user, who needs access.
    made = _make(top, _PREFIX, 0o711)
    lock = _lock(made)
    assert lock is not None
    (made / _MARK).touch()
    return made, lock


def _lock(root: Path) -> int | None:
    """Return a descriptor that holds the lock, or None if another process holds it or the directory is gone."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(top: Path) -> None:
    for mark in top.glob(f"{_PREFIX}????/{_MARK}"):
        lock = _lock(mark.parent)
        if lock is not None:
            _remove(mark.parent)
            os.close(lock)


def _remove(root: Path) -> None:
    for process in _processes_of(root):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    for mount in _mounts_below(root):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    shutil.rmtree(root, ignore_errors=True)


def _mounts_below(root: Path) -> list[str]:
    """Return the mounts of a test that was killed."""
    with suppress(OSError):
        entries = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        return [entry[1] for entry in entries if entry[1].startswith(f"{root}/")]
    return []


def _processes_of(root: Path) -> Iterator[int]:
    """Yield the processes that were started with this directory for temporary files, except this one."""
    own = {os.getpid(), os.getppid()}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(entry.name) not in own and f"TMPDIR={root}\0".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
