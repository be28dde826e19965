"""A forwarding through ssh, with a simulated ssh in this process: each output and each failure at each step."""

import atexit
import io
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.client import ssh
from holdfast.client.ssh import ForwardFailed, SshForward, SshTarget


class Process:
    """A started ssh whose output is on a pipe."""

    def __init__(self, fixture: "Machine", command: list[str]) -> None:
        self.command = command
        self.returncode = fixture.code
        self.is_terminated = self.is_reaped = False
        read, write = os.pipe()
        os.write(write, fixture.output)
        if not fixture.hangs:
            os.close(write)
        self._write = write if fixture.hangs else -1
        self.stdin, self.stderr = io.BytesIO(), io.BytesIO(fixture.complaint)
        self.stdout = os.fdopen(read, "rb")

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        assert timeout == ssh._CONNECT_TIMEOUT
        return b"", self.stderr.read()

    def terminate(self) -> None:
        self.is_terminated = True

    def wait(self) -> None:
        assert self.is_terminated
        assert self.stdin.closed
        assert self.stdout.closed
        assert self.stderr.closed
        if self._write >= 0:
            os.close(self._write)
        self.is_reaped = True


class Machine:
    """A remote machine: the output of its ssh, its exit code, and whether it forwards."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.output = address("unix:///there")
        self.complaint = b""
        self.code = 0
        self.hangs = False
        self.forwards: Callable[[], Any] = lambda: SimpleNamespace(returncode=0, stderr=b"")
        self.processes: list[Process] = []
        self.forwarded: list[list[str]] = []
        self.now = 0.0
        self.cannot_start: OSError | None = None
        runtime = top / "r"
        runtime.mkdir(mode=0o700)
        self.environment = {"PATH": "/bin", "XDG_RUNTIME_DIR": str(runtime), "HOLDFAST_SSH": "sh -c x"}
        monkeypatch.setattr(subprocess, "Popen", self._start)
        monkeypatch.setattr(subprocess, "run", self._run)
        monkeypatch.setattr(ssh, "time", SimpleNamespace(monotonic=self._clock, time=lambda: 0.0))
        monkeypatch.setattr(ssh, "select", SimpleNamespace(select=self._select))

    def _clock(self) -> float:
        return self.now

    def _select(self, reading: list[int], _w: object, _x: object, seconds: float) -> tuple[list[int], ...]:
        if self.hangs:
            self.now += seconds
            return [], [], []
        return reading, [], []

    def _start(self, command: list[str], **_: object) -> Process:
        if self.cannot_start is not None:
            raise self.cannot_start
        self.processes.append(Process(self, command))
        return self.processes[-1]

    def _run(self, command: list[str], **more: object) -> Any:  # noqa: ANN401
        self.forwarded.append(command)
        assert more["timeout"] == ssh._CONNECT_TIMEOUT
        return self.forwards()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def address(text: object) -> bytes:
    return json.dumps({"address": text}).encode() + b"\n"


BOX = SshTarget("box", "me", 22)


def opened(machine: Machine, target: SshTarget = BOX) -> SshForward:
    """Open a forwarding. After a failure nothing may need to be closed."""
    forward = SshForward(target, machine.environment)
    try:
        forward.open()
    except BaseException:
        atexit.unregister(forward.close)
        raise
    return forward


def test_the_socket_of_the_other_machine_is_forwarded(machine: Machine) -> None:
    forward = opened(machine)
    (process,) = machine.processes
    ssh_command, rest = process.command[:3], process.command[3:]
    assert ssh_command == ["sh", "-c", "x"]
    assert rest[-5:-1] == ["-p", "22", "--", "me@box"]
    (forwarding,) = machine.forwarded
    assert forwarding[-5:] == [f"{forward.path}:/there", "-p", "22", "--", "me@box"]
    assert not process.is_terminated
    forward.open()
    assert process.is_reaped, "a second opening replaces the first"
    forward.close()
    assert [item.is_reaped for item in machine.processes] == [True, True]
    opened(machine, SshTarget("box")).close()
    assert "-p" not in machine.processes[-1].command


OUTPUTS: dict[str, tuple[bytes, str]] = {
    "in pieces": (address("unix:///there"), ""),
    "and more": (address("unix:///there") + b"more\n", ""),
    "a greeting": (b"Welcome\n", "does its shell print text at login?"),
    "a long greeting": (b"W" * 70_000, "does its shell print text at login?"),
    "no object": (b"[]\n", "does its shell print text at login?"),
    "no address": (b"{}\n", "does its shell print text at login?"),
    "a number": (address(5), "does its shell print text at login?"),
    "another address": (address("tcp://box:1"), "does its shell print text at login?"),
    "a relative path": (address("unix://there"), "does its shell print text at login?"),
    "nothing": (b"", "cannot be used: it ended with 1"),
    "half a line": (b'{"address": "unix:///', "cannot be used: it ended with 1"),
}


@pytest.mark.parametrize("size", [3, 65_536])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(machine: Machine, name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.output, expected = OUTPUTS[name]
    machine.code = 1
    if name == "a long greeting":
        machine.output = machine.output[:60_000]
        monkeypatch.setattr(ssh, "_MAX_OUTPUT", 6_000)
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, most: read(descriptor, min(most, size)))
    if expected:
        with pytest.raises(ForwardFailed) as caught:
            opened(machine)
        assert expected in str(caught.value)
        assert [process.is_reaped for process in machine.processes] == [True]
    else:
        opened(machine).close()


@pytest.mark.parametrize(
    ("code", "complaint", "expected"),
    [
        (255, b"", "me@box cannot be reached: ssh printed no message."),
        (255, b"one\nPermission denied. \n", "me@box cannot be reached: Permission denied."),
        (127, b"sh: holdfast: not found", "There is no holdfast on me@box"),
        (2, b"No such command", "The Holdfast on me@box cannot be used: No such command"),
        (2, b" \n", "The Holdfast on me@box cannot be used: it ended with 2."),
    ],
)
def test_reasons_without_output(machine: Machine, code: int, complaint: bytes, expected: str) -> None:
    machine.output, machine.code, machine.complaint = b"", code, complaint
    with pytest.raises(ForwardFailed) as caught:
        opened(machine)
    assert str(caught.value).startswith(expected)
    assert machine.processes[0].is_reaped


def _too_slow() -> Any:  # noqa: ANN401
    raise subprocess.TimeoutExpired("ssh", 60)


def _interrupted() -> Any:  # noqa: ANN401
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("step", "error", "expected"),
    [
        ("start", ForwardFailed, "sh cannot be started: Permission denied."),
        ("answer", ForwardFailed, "me@box did not answer within 60 seconds."),
        (_too_slow, ForwardFailed, "me@box did not answer within 60 seconds."),
        (_interrupted, KeyboardInterrupt, ""),
        (
            lambda: SimpleNamespace(returncode=1, stderr=b"a\nno forwarding\n"),
            ForwardFailed,
            "forwarding of its socket: no forwarding",
        ),
        (
            lambda: SimpleNamespace(returncode=1, stderr=b""),
            ForwardFailed,
            "forwarding of its socket: ssh printed no message.",
        ),
    ],
)
def test_each_failing_step_leaves_nothing(
    machine: Machine,
    step: Any,  # noqa: ANN401
    error: type[BaseException],
    expected: str,
) -> None:
    if step == "start":
        machine.cannot_start = PermissionError(13, "Permission denied")
    elif step == "answer":
        machine.hangs, machine.output = True, b""
    else:
        machine.forwards = step
    with pytest.raises(error) as caught:
        opened(machine)
    assert expected in str(caught.value)
    assert all(process.is_reaped for process in machine.processes)
    assert machine.now == (60.0 if step == "answer" else 0.0)


def test_a_missing_ssh_is_reported_before_anything_is_made(machine: Machine) -> None:
    machine.environment["HOLDFAST_SSH"] = "no-such-ssh"
    with pytest.raises(ForwardFailed, match="There is no no-such-ssh here"):
        SshForward(SshTarget("box"), machine.environment)
