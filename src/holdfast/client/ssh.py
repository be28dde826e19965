"""SSH transport: forwards a local socket to the socket of a server on another machine.

One ssh connection finds or starts the remote server, reads the path of its socket, and forwards a local socket to it.
It ends with this process in every case, because the remote command reads a pipe of this process until its end.
"""

import atexit
import contextlib
import glob
import json
import os
import select
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from holdfast.client.errors import Unreachable
from holdfast.client.server_launcher import secure_directory
from holdfast.client.server_paths import BadHost, socket_directories, socket_path

__all__ = ["SshForward", "SshTarget", "parse_target"]

_CONNECT_TIMEOUT = 60.0
"""Time limit in seconds. The user may have to type a password."""
_MAX_OUTPUT = 64 * 1024
_REMOTE_COMMAND = (
    'PATH="$HOME/.local/bin:$HOME/bin:$PATH"; export PATH; holdfast server start --json && exec cat >/dev/null'
)
_NOT_FOUND = 127
_UNREACHABLE = 255


class ForwardFailed(Unreachable):
    """The other machine cannot be reached through ssh."""


class SshTarget(NamedTuple):
    """A host of the form `ssh://user@machine:port/directory`. The directory is on the remote machine."""

    machine: str
    user: str = ""
    port: int = 0
    directory: str = ""

    @property
    def name(self) -> str:
        """The destination argument of ssh."""
        return f"{self.user}@{self.machine}" if self.user else self.machine


def parse_target(text: str) -> SshTarget:
    """Parse an ssh host. Raises `BadHost`."""
    parts = urlsplit(text)
    try:
        port = parts.port or 0
    except ValueError:
        port = -1
    is_plain = not (parts.query or parts.fragment or parts.password)
    machine, user = parts.hostname or "", unquote(parts.username or "")
    # A name that begins with a dash would be interpreted as an option of ssh.
    if parts.scheme != "ssh" or not machine or port < 0 or not is_plain or machine[0] == "-" or user[:1] == "-":
        raise BadHost("A host over ssh is ssh://user@machine:port/directory; user, port and directory may be left out.")
    directory = unquote(parts.path)
    return SshTarget(machine, user, port, directory if directory != "/" else "")


class SshForward:
    """A forwarded socket, open until the process ends or `close` is called. `path` is the local socket."""

    def __init__(self, target: SshTarget, environment: Mapping[str, str]) -> None:
        self._target = target
        self._ssh = [*shlex.split(environment.get("HOLDFAST_SSH") or "ssh")]
        if shutil.which(self._ssh[0], path=environment.get("PATH")) is None:
            raise ForwardFailed(f"There is no {self._ssh[0]} here: install an ssh client, or use another host.")
        directories = socket_directories(environment, os.getuid())
        mark = os.urandom(4).hex()
        self.path = socket_path(f"ssh-{mark}.sock", directories)
        self._control = socket_path(f"ssh-{mark}.ctl", directories)
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def open(self) -> None:
        """Open the connection, replacing a broken one. Raises `ForwardFailed` with the cause and a remedy."""
        self._end()
        secure_directory(os.path.dirname(self.path))
        _remove_dead_sockets(os.path.dirname(self.path))
        options = ["-T", "-M", "-S", self._control, "-o", "ServerAliveInterval=15", "-o", "ControlPersist=no"]
        command = [*self._ssh, *options, *self._port_options(), "--", self._target.name, _REMOTE_COMMAND]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise ForwardFailed(f"{self._ssh[0]} cannot be started: {error.strerror}.") from None
        try:
            self._forward(self._address(self._process))
        except subprocess.TimeoutExpired:
            self._end()
            raise ForwardFailed(f"{self._target.name} did not answer within {_CONNECT_TIMEOUT:.0f} seconds.") from None
        except BaseException:
            self._end()
            raise

    def _forward(self, there: str) -> None:
        forward = ["-S", self._control, "-O", "forward", "-L", f"{self.path}:{there}"]
        done = subprocess.run(
            [*self._ssh, *forward, *self._port_options(), "--", self._target.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CONNECT_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            output = _last_line(done.stderr)
            raise ForwardFailed(
                f"{self._target.name} does not permit the forwarding of its socket:"
                f" {output or 'ssh printed no message.'}"
            )

    def close(self) -> None:
        """End the connection."""
        self._end()
        atexit.unregister(self.close)

    def _port_options(self) -> list[str]:
        return ["-p", str(self._target.port)] if self._target.port else []

    def _address(self, process: subprocess.Popen[bytes]) -> str:
        """Read the path of the remote socket from the output of the remote command."""
        assert process.stdout is not None
        deadline = time.monotonic() + _CONNECT_TIMEOUT
        output = b""
        descriptor = process.stdout.fileno()
        while b"\n" not in output and len(output) < _MAX_OUTPUT:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._end()
                raise ForwardFailed(f"{self._target.name} did not answer within {_CONNECT_TIMEOUT:.0f} seconds.")
            piece = os.read(descriptor, _MAX_OUTPUT)
            if not piece:
                self._explain(process)
            output += piece
        try:
            address = json.loads(output.partition(b"\n")[0])["address"]
        except (ValueError, KeyError, TypeError):
            address = ""
        if not isinstance(address, str) or not address.startswith("unix:///"):
            self._end()
            raise ForwardFailed(
                f"The output of {self._target.name} is not from Holdfast: does its shell print text at login?"
            )
        return address.removeprefix("unix://")

    def _explain(self, process: subprocess.Popen[bytes]) -> None:
        """Raise an error with the reason why the connection ended without output."""
        _, complaint = process.communicate(timeout=_CONNECT_TIMEOUT)
        self._end()
        line = _last_line(complaint)
        name = self._target.name
        if process.returncode == _UNREACHABLE:
            raise ForwardFailed(f"{name} cannot be reached: {line or 'ssh printed no message.'}")
        if process.returncode == _NOT_FOUND:
            raise ForwardFailed(f"There is no holdfast on {name}: install it on the PATH of ssh {name}.")
        raise ForwardFailed(f"The Holdfast on {name} cannot be used: {line or f'it ended with {process.returncode}.'}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()
        for file in (self.path, self._control):
            with contextlib.suppress(OSError):
                os.unlink(file)


def _remove_dead_sockets(directory: str) -> None:
    """Remove sockets of killed clients, which have no listener. New ones are kept, because they may not listen yet."""
    for path in glob.glob(os.path.join(glob.escape(directory), "ssh-*.sock")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            if time.time() - os.lstat(path).st_mtime < _CONNECT_TIMEOUT:
                continue
            try:
                line.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
