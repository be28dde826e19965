"""A fake guard process: it reads requests and answers as supervisors do."""

import json
import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.workspace.process import guard_client as guards
from holdfast.workspace.process.command_process import CommandLaunch, Processes, RunningCommand
from holdfast.workspace.process.guard_client import Command, Guard, Tree

__all__ = ["UNUSED_PID", "FakeGuardProcess", "GuardFixture", "SupervisorConnection"]

UNUSED_PID = 4_194_303
"""A process id that no process has."""


class FakeGuardProcess:
    """A guard process as the server sees it."""

    def __init__(self, *arguments: object, **options: Any) -> None:  # noqa: ANN401
        (descriptor,) = options["pass_fds"]
        self.line = socket.socket(fileno=os.dup(descriptor))
        self.line.setblocking(False)
        self.pid = UNUSED_PID
        self.code: int | None = 0
        self.waited: list[float | None] = []
        self.was_killed = False
        self._unread, self._read_lines = b"", list[SupervisorConnection]()

    def wait(self, seconds: float | None = None) -> int:
        self.waited.append(seconds)
        if self.code is None and not self.was_killed:
            raise subprocess.TimeoutExpired("guard", seconds or 0)
        return -9 if self.was_killed else self.code or 0

    def kill(self) -> None:
        self.was_killed = True

    def greet(self, kind: str = "tree", groups: str = "") -> None:
        self.line.sendall(json.dumps({"hello": kind, "namespaces": True, "groups": groups}).encode() + b"\n")

    def next_request(self) -> tuple[dict[str, Any], "SupervisorConnection"]:
        """Return the next request and the connection of its process tree."""
        data, handles, _, _ = socket.recv_fds(self.line, 1 << 20, 16)
        self._unread += data
        (size,) = struct.unpack_from("!I", self._unread)
        request = json.loads(self._unread[4 : 4 + size])
        self._unread = self._unread[4 + size :]
        for handle in handles[1:]:
            os.close(handle)
        self._read_lines.append(SupervisorConnection(handles[0] if handles else -1))
        return request, self._read_lines[-1]

    def close(self) -> None:
        self.line.close()

    def close_all(self) -> None:
        for line in self._read_lines:
            line.close()
        self.close()


class SupervisorConnection:
    """The connection of a supervisor to the server."""

    def __init__(self, handle: int) -> None:
        self.socket = socket.socket(fileno=handle) if handle >= 0 else None

    def send(self, **what: object) -> None:
        assert self.socket is not None
        self.socket.sendall(json.dumps(what).encode() + b"\n")

    def received_orders(self) -> list[dict[str, object]]:
        assert self.socket is not None
        return [json.loads(line) for line in self.socket.recv(4_096).splitlines()]

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


class GuardFixture:
    """A guard with fake processes; keeps the started ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[FakeGuardProcess] = []
        self.searched: list[tuple[object, ...]] = []
        self.left: tuple[int, ...] = ()

        def popen(*arguments: object, **options: object) -> FakeGuardProcess:
            self.started.append(FakeGuardProcess(*arguments, **options))
            return self.started[-1]

        def search(*where: object) -> tuple[int, tuple[int, ...]]:
            self.searched.append(where)
            return 1, self.left

        monkeypatch.setattr(guards.subprocess, "Popen", popen)  # type: ignore[attr-defined]
        monkeypatch.setattr(guards, "_kill_all", search)
        self.guard = Guard()

    def spawn(self, **more: Any) -> tuple[Tree, dict[str, Any], SupervisorConnection]:  # noqa: ANN401
        null = os.open(os.devnull, os.O_RDWR)
        try:
            tree = self.guard.spawn(Command(("x",), "/", {"A": "1"}, **more), null, null, null)
        finally:
            os.close(null)
        return tree, *self.started[-1].next_request()

    def job(self, folder: Path) -> tuple[RunningCommand, SupervisorConnection]:
        running = Processes(self.guard, folder).start(CommandLaunch(("x",), "/", {}))
        return running, self.started[-1].next_request()[1]
