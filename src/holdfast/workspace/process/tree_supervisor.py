"""Supervisor of one process tree: parent of a command and, finally, of everything the command has started.

A supervisor is forked from the guard. It reaps children, executes orders of the server, and ends when it has no
children left. Orphans are reparented to it, so this proves that the whole tree is gone. In a PID namespace the
supervisor is the init process, and one signal reaches all processes; otherwise it kills group by group and repeats
until none is left.

A server of a cluster sends a deadline, the end of its lease, and renews it. After the deadline another server may own
the workspace, so the supervisor stops the tree with SIGSTOP until the deadline is renewed or the tree is killed. The
clock is the boot-time clock, so that the lease also ends while the machine is suspended. Without a deadline (SQLite)
nothing of this happens.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any, NoReturn

from holdfast.workspace.process import guard_system as system
from holdfast.workspace.process.process_tag import join_cgroup, kill_cgroup, remove_cgroup, set_tag
from holdfast.workspace.sandbox import privileges
from holdfast.workspace.sandbox.privileges import restrict, restrict_scopes

__all__ = ["Supervisor", "exit_code_of", "open_child_notifier"]

_NOT_STARTED = "It was stopped before it was started, while this server was cut off from its database."
_MAX_CHASE_ROUNDS = 100
_KILL_INTERVAL = 0.02
_KILL_TIMEOUT = 1.0
_FROZEN_INTERVAL = 1.0
"""Seconds between two searches for processes that another program has resumed while the tree is frozen."""
_LISTS_PROCESSES = os.path.exists("/proc/self/stat")


def open_child_notifier() -> int:
    """Return a descriptor that becomes readable when a child ends. Signals meant for commands are ignored."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    # A full pipe loses nothing: one readable byte is enough, because `_reap` reaps all children.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    return reading


def exit_code_of(status: int) -> int:
    """Convert a wait status to a shell exit code: 128 plus the signal number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class _Replaced(Exception):
    """The working directory is not the one that was checked."""


def _give_up_privileges(request: dict[str, Any]) -> None:
    """Apply the restrictions of a sandboxed command to the process that is about to become it."""
    if not request.get("restricted"):
        return
    if request.get("landlock") and os.geteuid() == 0:
        privileges.drop_capabilities()
    privileges.forbid_new_privileges()
    restrict_scopes()
    if request.get("landlock"):
        restrict(request["landlock"])
    privileges.install_filter()


class Supervisor:
    """Starts one command and runs until no process of it is left.

    `guard_pipe` reaches end of file when the guard dies.
    """

    def __init__(self, request: dict[str, Any], descriptors: list[int], guard_pipe: int, *, is_init: bool) -> None:
        control, *self._streams = descriptors
        self._control = socket.socket(fileno=control)
        self._request = request
        self._guard_pipe = guard_pipe
        self._is_init = is_init
        self._linger: float | None = request["linger"]
        self._command = 0
        self._unread = b""
        self._has_exited = False
        self._is_stopping = False
        self._is_killing = False
        self._was_killed = False
        self._is_lost = False
        """True if the guard died first."""
        self._out_of_reach: set[int] = set()
        self._term_at = self._kill_at = float("inf")
        self._deadline = float("inf")
        self._timer = -1
        self._is_frozen = self._is_still = False
        """Still: no process of the frozen tree executes anything."""
        self._stopped_before: set[int] = set()
        """Processes that the command itself has stopped."""
        if request.get("deadline") is not None:
            self._set_deadline(request["deadline"])

    def run(self) -> None:
        """Start the command, then supervise its tree to the end."""
        self._child_ended = open_child_notifier()
        # From here on the command may run; if the supervisor dies, the server must assume that it does.
        self._send(starting=True)
        while self._is_expired() and self._kill_at == float("inf"):
            self._wait_for_events(time.monotonic())
        problem = self._start() if self._kill_at == float("inf") else _NOT_STARTED
        if problem:
            self._send(error=problem)
        else:
            self._send(begun=True)
        for descriptor in self._streams:
            os.close(descriptor)
        since = time.monotonic()
        while self._reap():
            now = time.monotonic()
            if now >= self._kill_at:
                since = since if self._is_killing else now
                self._kill()
                # Processes of another user, such as those of `sudo`, cannot be killed; they are reported instead of
                # waiting for ever.
                if self._out_of_reach and now > since + _KILL_TIMEOUT:
                    break
            elif now >= self._term_at:
                self._term_at = float("inf")
                self._send_all(signal.SIGTERM)
                # A stopped process does not handle SIGTERM before it is resumed. A frozen one must not be.
                if not self._is_frozen:
                    self._send_all(signal.SIGCONT)
            self._freeze_or_resume()
            self._wait_for_events(now)
        if not _LISTS_PROCESSES and self._command:
            # Without a subreaper, orphans are not reparented here: only the process group is known.
            with contextlib.suppress(OSError):
                os.killpg(self._command, signal.SIGKILL)
        remove_cgroup(self._request.get("group", ""))
        self._send(gone=self._was_killed, left=sorted(self._out_of_reach), is_lost=self._is_lost)

    # Start

    def _start(self) -> str:
        """Start the command. Returns the reason of a failure, else an empty string."""
        reading, writing = os.pipe()
        supervisor = os.getpid()
        try:
            self._command = os.fork()
        except OSError as error:
            return f"No process could be created: {error.strerror}."
        if self._command == 0:
            self._exec_command(writing, supervisor)
        os.close(writing)
        # The pipe closes on exec, so an empty text means that the program was started.
        with os.fdopen(reading, "rb") as pipe:
            return pipe.read().decode("utf-8", "replace")

    def _exec_command(self, problem: int, supervisor: int) -> NoReturn:
        request = self._request
        try:
            # The command must not be able to signal its supervisor through a common process group or terminal.
            os.setsid()
            system.die_with_parent(supervisor)
            # Ignored signals survive exec, and the guard ignores those that are meant for commands.
            for number in range(1, signal.NSIG):
                if number not in {signal.SIGKILL, signal.SIGSTOP}:
                    with contextlib.suppress(OSError, ValueError):
                        signal.signal(number, signal.SIG_DFL)
            for wanted, descriptor in enumerate(self._streams):
                os.dup2(descriptor, wanted)
            os.chdir(request["cwd"])
            if request.get("is_real") and os.getcwd() != request["cwd"]:
                raise _Replaced
            join_cgroup(request.get("group", ""))
            set_tag(request.get("tag", 0))
            _give_up_privileges(request)
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except _Replaced:
            why = f"The directory {request['cwd']} was replaced by another one just now. Try again."
            os.write(problem, why.encode("utf-8", "replace"))
        except OSError as error:
            os.write(problem, f"{request['argv'][0]} could not be started: {error.strerror or error}.".encode())
        except BaseException as error:
            os.write(problem, f"It could not be started: {type(error).__name__}.".encode())
        os._exit(127)

    # End

    def _reap(self) -> bool:
        """Reap ended children. Returns False when none is left."""
        while (ended := system.reap_child()) is not None:
            process, status = ended
            if process == 0:
                return True
            if process == self._command:
                self._has_exited = True
                # The exit code is reported before processes left behind end, so that a tool call need not wait for
                # them.
                self._send(code=exit_code_of(status))
                self._limit_linger()
        return False

    def _limit_linger(self) -> None:
        if self._linger is not None and self._has_exited:
            self._kill_at = min(self._kill_at, time.monotonic() + self._linger)

    def _stop(self, grace: float) -> None:
        """Send SIGINT now and SIGTERM after a third of the grace period; `run` kills the rest at its end."""
        self._is_stopping = True
        now = time.monotonic()
        if grace <= 0 or not self._command:
            self._kill_at = now
            return
        # A later stop with more time must not extend an earlier one.
        if self._kill_at > now + grace:
            self._kill_at = now + grace
            self._term_at = now + grace / 3
        with contextlib.suppress(OSError):
            os.killpg(self._command, signal.SIGINT)

    def _send_all(self, number: signal.Signals) -> None:
        if self._is_init:
            with contextlib.suppress(OSError):
                os.kill(-1, number)
        else:
            system.send_signal(self._descendants(), number)

    def _descendants(self) -> dict[int, int]:
        """Return visible descendants with their groups; without a process list, the command itself."""
        if _LISTS_PROCESSES or self._has_exited:
            return system.descendants([os.getpid()])
        return {self._command: self._command}

    def _kill(self) -> None:
        self._was_killed = self._is_killing = True
        if self._is_init:
            self._send_all(signal.SIGKILL)
            return
        kill_cgroup(self._request.get("group", ""))
        found = self._descendants()
        # Signalling a whole group leaves no member time to fork.
        for group in set(found.values()) - {os.getpgrp()}:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        self._out_of_reach = system.send_signal(found, signal.SIGKILL)
        self._kill_forking()

    def _kill_forking(self) -> None:
        """Kill processes that fork and exit faster than a search finds them: their children are reparented here, and
        listing the own children is faster than their forks.
        """
        for _ in range(_MAX_CHASE_ROUNDS):
            children = system.child_pids()
            system.send_signal(children, signal.SIGKILL)
            if not self._reap() or not children:
                break

    # Lease

    def _set_deadline(self, deadline: float | None) -> None:
        self._deadline = float("inf") if deadline is None else deadline
        if self._timer < 0:
            self._timer = system.open_boot_timer()
        if self._timer >= 0 and deadline is not None:
            system.set_boot_timer(self._timer, deadline)

    def _is_expired(self) -> bool:
        return self._deadline != float("inf") and system.boot_time() >= self._deadline

    def _freeze_or_resume(self) -> None:
        if self._is_killing:
            return
        if self._is_expired():
            self._freeze()
        elif self._is_frozen:
            self._is_frozen = self._is_still = False
            system.send_signal(self._descendants().keys() - self._stopped_before, signal.SIGCONT)

    def _freeze(self) -> None:
        """Stop all processes. Repeated, because a process may fork, or resume another one, before it is stopped."""
        if not self._is_frozen:
            self._is_frozen = True
            self._stopped_before = {process for process in self._descendants() if system.is_stopped(process)}
        for _ in range(_MAX_CHASE_ROUNDS):
            executing = [process for process in self._descendants() if not system.is_stopped(process)]
            self._is_still = not executing
            if self._is_still:
                break
            system.send_signal(executing, signal.SIGSTOP)
            if not _LISTS_PROCESSES:
                break
            os.sched_yield()

    # Messages

    def _wait_for_events(self, now: float) -> None:
        poll = select.poll()
        for descriptor in (self._child_ended, self._guard_pipe, self._control.fileno()):
            poll.register(descriptor, select.POLLIN)
        if self._timer >= 0 and not self._is_expired():
            poll.register(self._timer, select.POLLIN)
        # While killing, search again at short intervals: a process may have forked between the search and the signal.
        until = now + _KILL_INTERVAL if self._is_killing else min(self._kill_at, self._term_at)
        if self._is_frozen:
            until = min(until, now + (_FROZEN_INTERVAL if self._is_still else _KILL_INTERVAL))
        elif self._timer < 0 and self._command:
            until = min(until, now + max(0.0, self._deadline - system.boot_time()))
        seconds = None if until == float("inf") else max(0.0, until - now)
        for descriptor, _ in poll.poll(None if seconds is None else seconds * 1_000 + 1):
            if descriptor == self._child_ended:
                os.read(self._child_ended, 4_096)
            elif descriptor == self._timer:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._timer, 8)
            elif descriptor == self._guard_pipe:
                self._is_lost = True
                self._kill_after_loss(self._guard_pipe)
            else:
                self._receive()

    def _receive(self) -> None:
        try:
            data = self._control.recv(4_096)
        except OSError:
            data = b""
        if not data:
            self._kill_after_loss(self._control.fileno())
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "stop" in order:
                self._stop(order["stop"])
            if "deadline" in order:
                self._set_deadline(order["deadline"])
            if "linger" in order:
                self._linger = order["linger"]
                if self._linger is None and not self._is_killing and not self._is_stopping:
                    self._kill_at = float("inf")
                self._limit_linger()

    def _kill_after_loss(self, descriptor: int) -> None:
        """Kill the tree because guard or server is gone. If only the guard is gone, the server still
        gets the result.
        """
        self._kill_at = 0.0
        # A closed connection is always readable: replace it by a pipe that never is.
        reading, _ = os.pipe()
        os.dup2(reading, descriptor)

    def _send(self, **message: bool | int | str | list[int]) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")
