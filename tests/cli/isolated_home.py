"""An isolated home for real processes: directories, an environment, and the end of every started process."""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.client.errors import ClientError
from holdfast.client.server_launcher import ServerLocation, locate
from holdfast.client.sync_client import SyncClient
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import VersionInfo
from scratch import new_directory

__all__ = ["TIMEOUT", "IsolatedHome", "Process", "isolated_home", "shown_on"]

TIMEOUT = 30.0
Process = subprocess.Popen[bytes]


def shown_on(leader: int) -> bytes:
    """Return the output on a terminal until its last process has closed it."""
    shown = b""
    try:
        while piece := os.read(leader, 4096):
            shown += piece
    except OSError:
        # Linux reports this as EIO.
        pass
    finally:
        os.close(leader)
    return shown


class IsolatedHome:
    """The path is short: sockets live in it, and their paths have at most 104 bytes."""

    def __init__(self) -> None:
        self.home = new_directory()
        self.work = self.home / "w"
        self.work.mkdir()
        (self.home / "r").mkdir(mode=0o700)
        # `run` without a terminal answers with the scripted model only where it was selected.
        self.settings = self.home / ".config/holdfast/config.toml"
        self.settings.parent.mkdir(parents=True)
        self.settings.write_text('[models.large]\nprovider = "demo"\nmodel = "tour"\n')
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "XDG"))}
        self.environment = {
            **kept,
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "r"),
            "HOLDFAST_DATA_DIR": str(self.home / "d"),
        }
        self._started: list[Process] = []

    @property
    def where(self) -> ServerLocation:
        return locate(environment=self.environment)

    def start(self, *arguments: str, code: str | None = None) -> Process:
        command = ["-c", code] if code else ["-m", "holdfast"]
        process = subprocess.Popen(
            [sys.executable, *command, *arguments],
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work,
            env=self.environment,
        )
        self._started.append(process)
        return process

    def call(self, *arguments: str, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            cwd=cwd or self.work,
            env=self.environment,
        )

    def stdout_of(self, *arguments: str, stdin: str = "") -> str:
        """Return the stdout of a command that must succeed."""
        done = self.call(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def serve(self, *options: str) -> Process:
        """A server in the foreground, ready when this returns."""
        process = self.start("serve", *options)
        assert process.stderr is not None
        for line in process.stderr:
            if b"listening" in line and b".sock" in line:
                return process
        raise AssertionError("the server did not start")

    def run_of(self, run_id: str, place: str | None = None) -> Run:
        """Return a run, requested from its directory, because an unused workspace may have been closed."""
        return msgspec.json.decode(
            self.stdout_of("runs", "show", "--json", run_id, "--cwd", place or str(self.work)), type=Run
        )

    def server_process(self) -> int | None:
        try:
            with SyncClient(self.where.address) as thin:
                _, body = thin.request("GET", "/v1/version")
        except ClientError:
            return None
        return msgspec.json.decode(body, type=VersionInfo).pid

    def close(self) -> None:
        process = self.server_process()
        if process is not None:
            _end(process)
        for started in self._started:
            if started.poll() is None:
                started.kill()
            started.communicate(timeout=TIMEOUT)
        shutil.rmtree(self.home, ignore_errors=True)


def _end(process: int) -> None:
    """Also of a process that is not our child."""
    descriptor = os.pidfd_open(process)
    try:
        os.kill(process, signal.SIGCONT)
        os.kill(process, signal.SIGTERM)
        if not select.select([descriptor], [], [], TIMEOUT / 3)[0]:
            os.kill(process, signal.SIGKILL)
            select.select([descriptor], [], [], TIMEOUT)
    finally:
        os.close(descriptor)


@contextmanager
def isolated_home() -> Iterator[IsolatedHome]:
    made = IsolatedHome()
    try:
        yield made
    finally:
        made.close()
