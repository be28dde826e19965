"""Process supervision, server side: starts every command through the guard and kills all of its processes at its end.

The requirement is that no process of a command survives a cancel, the end of its run, or the death of the server.
Commands leave their process group, fork twice, ignore signals and keep pipes open, and a server killed with SIGKILL
cleans up nothing. Therefore several processes share the work:

- The guard (`guard_main`) is one small process per server. It starts every command and dies after the server.
- A supervisor (`tree_supervisor`) is forked for each command. It is the subreaper of the command's process tree, or
  the init process of its PID namespace. A supervisor without children proves that the tree is gone.
- A sentinel (`start_sentinel` in `guard_main`) is no ancestor of any command, so no command finds it among its parents.
  It kills by tag when the server or the guard dies.
- The server, in this module, keeps one connection to the guard (`Guard`) and one to each supervisor (`Tree`).

Failures: if the server dies, all connections close and each supervisor kills its tree. If the guard dies, its control
pipe closes with the same effect, and the server starts another guard. If a supervisor dies, its processes are
reparented to the guard, which kills them (`sweep`). If both die, the server searches for processes by tag
(`process_tag`) and cgroup; the result is then reported as unproven. Supervisors paused by a command with SIGSTOP are
resumed repeatedly (`wake`).

Starting is synchronous: when `spawn` returns, the request is queued and the tree can be stopped.

Rejected: process groups alone and an environment variable alone (a command can leave or clear them), cgroups alone
(often not permitted), user namespaces for everyone (`sudo` fails in them), and relaying output through the guard. See
docs/decisions/0011-process-supervisor.md and docs/decisions/0025-process-tags.md.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.workspace.process.process_tag import kill_cgroup, kill_tagged, new_tag, remove_cgroup, tag_of_tree

__all__ = [
    "LOST",
    "UNPROVEN",
    "Bounds",
    "CannotStart",
    "Command",
    "Containment",
    "Guard",
    "GuardControl",
    "Tree",
    "TreeEnd",
]

LOST = (
    "[A process that supervises the command was killed while it ran. All processes of the command were killed with it.]"
)
UNPROVEN = (
    "[The command killed the processes that supervise it. The processes that were found"
    " were killed, but others may still be running.]"
)

_WAKE_INTERVAL = 0.05


class TreeEnd(msgspec.Struct, frozen=True):
    """Result of a tree. `code` is None if the command was killed before it exited; `left` are processes that could
    not be killed.

    `is_lost`: its supervisor or the guard was killed while it ran. `is_unproven`: both were. The processes found were
    killed, but no parent process exists that could prove that none is left.
    """

    code: int | None = None
    was_killed: bool = False
    left: tuple[int, ...] = ()
    error: str = ""
    is_lost: bool = False
    is_unproven: bool = False

    @property
    def remark(self) -> str:
        """Remark about killed supervisors for the command's output, or empty."""
        return UNPROVEN if self.is_unproven else LOST if self.is_lost else ""


class GuardControl(Protocol):
    """Interface of the guard as used by a tree."""

    @property
    def process_id(self) -> int:
        """Process id of the guard."""
        ...

    def wake(self) -> None:
        """Resume paused supervisors."""
        ...

    def remove(self, tree: "Tree") -> None:
        """Remove a tree that has ended."""
        ...

    def handle_lost_supervisor(self, tree: "Tree", end: TreeEnd) -> None:
        """Handle a supervisor that died without reporting the end of its tree."""
        ...


class Tree:
    """A command and everything it has started."""

    def __init__(self, connection: socket.socket, guard: "GuardControl", number: int, tag: int) -> None:
        self.number = number
        self.tag = tag
        self.group = guard.process_id
        """Process group of the guard that starts it, and of its supervisor."""
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int | None] = loop.create_future()
        """Exit code of the command itself; None if it has none."""
        self.is_lost = False
        """True if its supervisor or the guard was killed while it ran."""
        self.may_run = False
        """True if its supervisor may have started it."""
        self.has_started = False
        self.gone: asyncio.Future[TreeEnd] = loop.create_future()
        self._connection = connection
        self._guard = guard
        self._unread = b""
        self._end = TreeEnd()
        self._is_over = False
        self._is_stopping = False
        loop.add_reader(connection, self._receive)

    def stop(self, grace: float) -> None:
        """Stop it: SIGINT, later SIGTERM, and SIGKILL after `grace` seconds. Repeated calls can only
        shorten the time.
        """
        self._send_order(stop=grace)
        if not self._is_stopping:
            self._is_stopping = True
            self._wake_until_gone()

    def set_linger(self, linger: float | None) -> None:
        """Change how long processes left behind by the command may continue."""
        self._send_order(linger=linger)

    def set_deadline(self, deadline: float | None) -> None:
        """Freeze it at a time of the boot-time clock, or resume it if that is in the future. None: never."""
        self._send_order(deadline=deadline)

    def kill_now(self) -> None:
        """Kill it by closing the connection, and ignore all further messages."""
        self._disconnect()
        self.set_end(TreeEnd(was_killed=True))

    def set_end(self, end: TreeEnd) -> None:
        """Publish the result."""
        if not self.exited.done():
            self.exited.set_result(end.code)
        if not self.gone.done():
            self.gone.set_result(end)

    def _wake_until_gone(self) -> None:
        """Resume the supervisor repeatedly until the tree has ended, because a command can pause it more than once."""
        if not self._is_over:
            self._guard.wake()
            asyncio.get_running_loop().call_later(_WAKE_INTERVAL, self._wake_until_gone)

    def _send_order(self, **order: float | None) -> None:
        if not self._is_over:
            try:
                self._connection.send(json.dumps(order).encode() + b"\n")
            except OSError:
                # The supervisor has just ended; the reader notices it.
                return

    def _receive(self) -> None:
        data = _read_available(self._connection)
        if data is None:
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._handle_message(json.loads(line))
        # The supervisor reports the end of its tree before it closes the connection. Without it, it was killed.
        if not data and not self._is_over:
            self._disconnect()
            self.is_lost = self.may_run
            self._guard.handle_lost_supervisor(self, msgspec.structs.replace(self._end, is_lost=self.is_lost))

    def _handle_message(self, message: dict[str, Any]) -> None:
        # An error as the first message is from a supervisor that could not start.
        self.may_run = self.may_run or "error" not in message
        # Until its second message the supervisor may be paused before it has executed the request;
        # `_wake_until_delivered` resumes it.
        self.has_started = "starting" not in message
        if "error" in message:
            self._end = msgspec.structs.replace(self._end, error=message["error"])
        if "code" in message:
            self._end = msgspec.structs.replace(self._end, code=message["code"])
            if not self._end.error and not self.exited.done():
                self.exited.set_result(message["code"])
        if "gone" in message:
            self._disconnect()
            self.is_lost = message["is_lost"]
            end = msgspec.structs.replace(self._end, was_killed=message["gone"], left=tuple(message["left"]))
            self.set_end(msgspec.structs.replace(end, is_lost=self.is_lost))

    def _disconnect(self) -> None:
        if not self._is_over:
            self._is_over = True
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()
            self._guard.remove(self)


Containment = Literal["auto", "namespace", "groups", "tree"]
"""Containment of a command's processes: a PID namespace, or a tree of children below a supervisor, with or without a
control group for each tree.

`auto` uses a namespace for root if the kernel permits it. Other users would lose `sudo` and similar programs in a
namespace, so they get a tree, with control groups if the user can create them.
"""

_log = logging.getLogger("holdfast.workspace")
_SIZE = struct.Struct("!I")
_SOURCE_PATH = str(Path(__file__).resolve().parents[3])
_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from holdfast.workspace.process.guard_main import main; main(sys.argv[2:])"
)
_MARK_VARIABLE = "HOLDFAST_RUN"
_EXIT_TIMEOUT = 5.0


class CannotStart(ToolError):
    """The command could not be started."""


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Restrictions that the guard applies to one command.

    `mounts` are the operations of `guard_main.build_view`, `landlock` the paths that can be changed; both are empty if
    bubblewrap builds the file system. `restricted` installs the system-call filter and the Landlock scopes.
    """

    mounts: tuple[tuple[str, str, str], ...] = ()
    network: bool = True
    landlock: tuple[str, ...] = ()
    restricted: bool = False


class Command(msgspec.Struct, frozen=True):
    """A command to start. `linger`: seconds that processes left behind may continue after the end of the command;
    None: without limit.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    linger: float | None = 0.25
    bounds: Bounds = Bounds()
    is_real: bool = False
    """True if `cwd` is a real, checked path: the command is refused if another file, such as a link, has
    replaced it.
    """


class Guard:
    """Starts commands through the guard process, which is started on first use and restarted if it dies."""

    def __init__(self, containment: Containment = "auto") -> None:
        self._wanted = containment
        self._containment: Containment = containment
        self.has_namespaces = False
        """True if a sandbox can use namespaces, independently of the containment. Valid after `ready`."""
        # A second way to recognize processes, for systems on which tags cannot be used.
        self._mark = secrets.token_hex(8)
        self._tag = 0
        self._groups = ""
        self.escapes = 0
        """Number of times that commands killed both their supervisor and the guard."""
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._unread = b""
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._trees: set[Tree] = set()
        self._lost_trees: dict[int, tuple[Tree, TreeEnd]] = {}
        self._deadline: float | None = None
        self._ready: asyncio.Future[Containment] | None = None
        self._is_waking = False
        self._is_closed = False

    @property
    def containment(self) -> Containment:
        """The containment in effect; the requested one until the guard has probed the system."""
        return self._containment

    @property
    def process_id(self) -> int:
        """Process id of the guard; 0 while it does not run."""
        return self._process.pid if self._process is not None else 0

    def ensure_started(self) -> None:
        """Start the guard process unless it runs, so that the first command does not wait for it."""
        if self._is_closed:
            raise CannotStart("The server is shutting down: no more commands are started.")
        if self._process is None:
            self._start()

    async def ready(self) -> Containment:
        """Wait until the guard process listens."""
        self.ensure_started()
        assert self._ready is not None
        return await asyncio.shield(self._ready)

    def spawn(self, command: Command, stdin: int, stdout: int, stderr: int) -> Tree:
        """Start a command. The caller closes its descriptors at once; copies are sent."""
        self.ensure_started()
        descriptors = _duplicate(stdin, stdout, stderr)
        try:
            ours, theirs = socket.socketpair()
        except BaseException:
            _close_all(descriptors)
            raise
        self._count += 1
        ours.setblocking(False)
        tree = Tree(ours, self, self._count, tag_of_tree(self._tag, self._count))
        self._trees.add(tree)
        env = {**command.env, _MARK_VARIABLE: f"{self._mark}.{self._count}"}
        request = {
            "argv": command.argv,
            "cwd": command.cwd,
            "is_real": command.is_real,
            "env": env,
            "linger": command.linger,
            "number": self._count,
        }
        if self._deadline is not None:
            request["deadline"] = self._deadline
        request |= msgspec.to_builtins(command.bounds)
        self._send(request, (theirs.detach(), *descriptors))
        return tree

    def set_deadline(self, deadline: float | None) -> None:
        """Set the end of the lease of this server, a time of the boot-time clock (`guard_system.boot_time`).

        At the deadline the supervisors freeze their trees, even if this process hangs; a later deadline resumes them.
        A command that is started after the deadline waits for a later one. None, the default: no lease is needed.
        """
        self._deadline = deadline
        # A command may have paused its supervisor.
        self.wake()
        for tree in self._trees:
            tree.set_deadline(deadline)

    async def close(self) -> None:
        """Kill all running trees and end the guard process."""
        self._is_closed = True
        for tree in tuple(self._trees):
            tree.kill_now()
        process, tag, groups = self._process, self._tag, self._groups
        self.wake()
        self._disconnect()
        if process is not None and await asyncio.to_thread(_wait_or_kill, process) != 0:
            await asyncio.to_thread(_kill_all, tag, self._environment_mark, groups)

    # Used by trees

    def wake(self) -> None:
        """Resume guard and supervisors with SIGCONT, in case a command paused them.

        Supervisors briefly outlive their guard.
        """
        groups = {tree.group for tree in self._trees} | {self.process_id}
        for group in groups - {0}:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGCONT)

    def remove(self, tree: Tree) -> None:
        """Remove a tree that has ended."""
        self._trees.discard(tree)

    def handle_lost_supervisor(self, tree: Tree, end: TreeEnd) -> None:
        """Handle a supervisor that died without reporting the end of its tree. Its processes were reparented to the
        guard, which kills them. If the guard is gone too, the server searches for them.
        """
        if self._is_closed:
            tree.set_end(end)
        elif self._process is None or tree.group != self._process.pid:
            self._kill_by_tag(tree.tag, "", [(tree, end)])
        else:
            self._count += 1
            self._lost_trees[self._count] = tree, end
            self._send({"sweep": self._count, "number": tree.number}, ())

    def _kill_by_tag(self, tag: int, groups: str, lost_trees: list[tuple[Tree, TreeEnd]]) -> None:
        """Kill the processes found of trees that have neither supervisor nor guard."""
        if any(tree.is_lost for tree, _ in lost_trees):
            self.escapes += 1
            _log.warning(
                "a command has killed the processes that supervise it: its other processes are searched for and killed"
            )

        def done(search: asyncio.Future[tuple[int, tuple[int, ...]]]) -> None:
            left = () if search.cancelled() or search.exception() else search.result()[1]
            for tree, end in lost_trees:
                tree.set_end(msgspec.structs.replace(end, was_killed=True, left=left, is_unproven=tree.is_lost))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, _kill_all, tag, self._environment_mark, groups).add_done_callback(done)

    @property
    def _environment_mark(self) -> bytes:
        return f"{_MARK_VARIABLE}={self._mark}.".encode()

    # Connection to the guard

    def _start(self) -> None:
        self._tag = new_tag()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        # Isolated and without site packages: the guard starts faster, and no environment variable of the user changes
        # it.
        argv = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _SOURCE_PATH, str(theirs.fileno()), self._wanted]
        argv.append(str(self._tag))
        # The interpreter itself may need these to find its libraries. All other variables, among them keys, stay with
        # the server.
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
        null = subprocess.DEVNULL
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv, stdin=null, stdout=null, stderr=null, cwd="/", env=env,
                    # A session of its own: keys typed in the server's terminal, such as Ctrl-C, do not reach the guard.
                    pass_fds=[theirs.fileno()], start_new_session=True,
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        loop = asyncio.get_running_loop()
        self._connection, self._unread, self._ready = ours, b"", loop.create_future()
        loop.add_reader(ours, self._receive)

    def _send(self, request: object, descriptors: tuple[int, ...]) -> None:
        self.wake()
        body = json.dumps(request).encode()
        self._outgoing.append((_SIZE.pack(len(body)) + body, descriptors))
        self._flush()
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_later(_WAKE_INTERVAL, self._wake_until_delivered)

    def _wake_until_delivered(self) -> None:
        """Resume guard and supervisors repeatedly until all pending requests are delivered: a command may pause them at
        any time.
        """
        others = any(not tree.has_started or tree.group != self.process_id for tree in self._trees)
        self._is_waking = others or bool(self._lost_trees)
        if self._is_waking:
            self.wake()
            asyncio.get_running_loop().call_later(_WAKE_INTERVAL, self._wake_until_delivered)

    def _flush(self) -> None:
        connection = self._connection
        if connection is None:
            return
        loop = asyncio.get_running_loop()
        while self._outgoing:
            data, descriptors = self._outgoing.popleft()
            try:
                sent = socket.send_fds(connection, [data], descriptors)
            except BlockingIOError:
                self._outgoing.appendleft((data, descriptors))
                loop.add_writer(connection, self._flush)
                return
            except OSError:
                # The guard is gone; the reader notices it, and each tree sees its own connection close.
                sent = len(data)
            _close_all(descriptors)
            # The descriptors are delivered with the first byte, so the rest is sent without them.
            if sent < len(data):
                self._outgoing.appendleft((data[sent:], ()))
        loop.remove_writer(connection)

    def _receive(self) -> None:
        assert self._connection is not None
        data = _read_available(self._connection)
        if data is None:
            return
        if not data:
            self._handle_guard_death()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "hello" in message:
                self._groups = message["groups"]
                self._set_ready(message["hello"], can_enter=message["namespaces"])
            if "swept" in message and message["swept"] in self._lost_trees:
                tree, end = self._lost_trees.pop(message["swept"])
                tree.set_end(end)

    def _set_ready(self, containment: Containment, *, can_enter: bool) -> None:
        self._containment = containment
        self.has_namespaces = can_enter
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(containment)

    def _handle_guard_death(self) -> None:
        """Handle the death of the guard process. Its supervisors kill their trees and report it; trees without one
        are searched for. Another guard is started on demand.
        """
        process, ready, tag, groups = self._process, self._ready, self._tag, self._groups
        self._disconnect()
        if process is not None:
            # Returns at once: the connection closes only when the process has exited.
            process.wait()
        if ready is not None and not ready.done():
            ready.cancel()
        if not self._is_closed:
            lost_trees, self._lost_trees = list(self._lost_trees.values()), {}
            self._kill_by_tag(tag, groups, lost_trees)
            self._wake_until_delivered()

    def _disconnect(self) -> None:
        if self._connection is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)
            self._connection.close()
        for _, descriptors in self._outgoing:
            _close_all(descriptors)
        self._outgoing.clear()
        self._connection = self._process = None


def _read_available(connection: socket.socket) -> bytes | None:
    """Return the received bytes, empty if the other side is gone; None if nothing has arrived."""
    try:
        return connection.recv(4_096)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _duplicate(*descriptors: int) -> list[int]:
    """Duplicate descriptors, because a request may be queued after the caller has closed its own."""
    copies: list[int] = []
    try:
        for descriptor in descriptors:
            copies.append(os.dup(descriptor))  # noqa: PERF401 - the copies made so far have to be closed on failure
    except BaseException:
        _close_all(copies)
        raise
    return copies


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _kill_all(tag: int, mark: bytes, groups: str) -> tuple[int, tuple[int, ...]]:
    kill_cgroup(groups)
    result = kill_tagged(tag, mark)
    remove_cgroup(groups)
    return result


def _wait_or_kill(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of the guard. A code other than 0 means that it was killed and processes may be left."""
    try:
        return process.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
