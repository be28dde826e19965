"""A test session leaves nothing behind, or only files that the next session removes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
SESSION = """
import os, subprocess, sys
from contextlib import ExitStack
from scratch import new_directory, session_directory
stack = ExitStack()
stack.enter_context(session_directory())
none = subprocess.DEVNULL
left = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=none, stderr=none)
# Right after a process was started its environment reads as empty.
while not open(f"/proc/{left.pid}/environ", "rb").read():
    pass
(new_directory() / "file").write_text("x")
print(os.environ["TMPDIR"], os.environ["HOLDFAST_TEST_MEMORY"], left.pid, flush=True)
if "killed" in sys.argv:
    os.kill(os.getpid(), 9)
stack.close()
left.wait()
"""


def _session(how: str) -> tuple[int, list[Path], int]:
    """Return the exit code, the directories and the started process of a session."""
    hidden = ("HOLDFAST_TEST_SCRATCH", "HOLDFAST_TEST_MEMORY", "TMPDIR", "TMUX_TMPDIR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, how],
        env={**environment, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    scratch, memory, process = done.stdout.split()
    return done.returncode, [Path(scratch), Path(memory)], int(process)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_session_leaves_nothing() -> None:
    code, places, process = _session("ordinary")
    assert code == 0
    assert not any(place.exists() for place in places)
    assert not _is_alive(process)


def test_files_of_a_killed_session_are_removed_by_the_next() -> None:
    code, places, process = _session("killed")
    assert code == -signal.SIGKILL
    _session("ordinary")
    assert not any(place.exists() for place in places)
    assert not _is_alive(process)


def test_mounts_of_a_killed_session_are_removed_by_the_next() -> None:
    _, (scratch, _), _ = _session("killed")
    disk = scratch / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=False, capture_output=True)
    _session("ordinary")
    assert not scratch.exists(), mounted.stderr
    assert str(disk) not in Path("/proc/self/mounts").read_text()


def test_session_does_not_remove_running_sessions() -> None:
    """This session is running."""
    place = Path(os.environ["HOLDFAST_TEST_SCRATCH"])
    _session("ordinary")
    assert place.is_dir()
