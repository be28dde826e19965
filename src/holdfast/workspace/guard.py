"""The server's side of the guard: one small process that starts every command and lets none outlive the server.

Starting is synchronous: when `spawn` returns, the request is on its way and the tree can be stopped. A tree is
gone when its keeper says so, or when keeper and guard have been replaced and what they kept is swept up.
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
from typing import Literal

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.workspace.guard_cgroup import kill_group, remove_group
from holdfast.workspace.guard_tag import kill_tagged, new_tag, tag_of_tree
from holdfast.workspace.guard_tree import Tree, TreeEnd

__all__ = ["Bounds", "CannotStart", "Command", "Containment", "Guard", "Tree", "TreeEnd"]

Containment = Literal["auto", "namespace", "groups", "tree"]
"""How a command's processes are held together: in a PID namespace, or as a tree of children below a keeper, with a
control group for each tree or without.

`auto` is a namespace for root, where it can be had. For other users, whom a namespace would keep from `sudo` and the
like, it is a tree, with control groups where this user may create them.
"""

_log = logging.getLogger("holdfast.workspace")
_SIZE = struct.Struct("!I")
_SOURCES = str(Path(__file__).resolve().parents[2])
_START = "import sys; sys.path.append(sys.argv[1]); from holdfast.workspace.guard_main import main; main(sys.argv[2:])"
_MARK = "HOLDFAST_RUN"
_PATIENCE = 5.0
_NUDGE = 0.05


class CannotStart(ToolError):
    """The command could not be started."""


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Restrictions that the guard applies to one command.

    `mounts` are the operations of `guard_mounts`, `landlock` the paths that can be changed; both are empty where
    bubblewrap builds the file system. `restricted` installs the system-call filter and the Landlock scopes.
    """

    mounts: tuple[tuple[str, str, str], ...] = ()
    network: bool = True
    landlock: tuple[str, ...] = ()
    restricted: bool = False


class Command(msgspec.Struct, frozen=True):
    """What to start. `linger`: how many seconds what it leaves behind may go on; None: as long as it likes."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    linger: float | None = 0.25
    bounds: Bounds = Bounds()
    is_real: bool = False
    """`cwd` is a real path that was checked: if something else, such as a link, has taken its place, it is refused."""


class Guard:
    """Starts the guard process when it is first needed, and again should it ever be lost."""

    def __init__(self, containment: Containment = "auto") -> None:
        self._wanted = containment
        self._containment: Containment = containment
        self.has_namespaces = False
        """Whether a sandbox may ask for them, whatever the containment is. Known when it is ready."""
        self._mark = secrets.token_hex(8)
        self._tag = 0
        self._groups = ""
        self.escapes = 0
        """How often commands have killed both their keeper and the guard."""
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._unread = b""
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._trees: set[Tree] = set()
        self._lost: dict[int, tuple[Tree, TreeEnd]] = {}
        self._ready: asyncio.Future[Containment] | None = None
        self._is_insisting = False
        self._is_closed = False

    @property
    def containment(self) -> Containment:
        """What is in force; what was asked for until the guard has tried."""
        return self._containment

    @property
    def process_id(self) -> int:
        """0 while it does not run."""
        return self._process.pid if self._process is not None else 0

    def warm(self) -> None:
        """Start the process, if it does not run, so that the first command need not wait for it."""
        if self._is_closed:
            raise CannotStart("The server is closing: nothing is started any more.")
        if self._process is None:
            self._start()

    async def ready(self) -> Containment:
        """Wait until the guard process listens."""
        self.warm()
        assert self._ready is not None
        return await asyncio.shield(self._ready)

    def spawn(self, command: Command, stdin: int, stdout: int, stderr: int) -> Tree:
        """Start a command. The descriptors are the caller's to close, at once."""
        self.warm()
        descriptors = _copies(stdin, stdout, stderr)
        try:
            ours, theirs = socket.socketpair()
        except BaseException:
            _close_all(descriptors)
            raise
        self._count += 1
        ours.setblocking(False)
        tree = Tree(ours, self, self._count, tag_of_tree(self._tag, self._count))
        self._trees.add(tree)
        env = {**command.env, _MARK: f"{self._mark}.{self._count}"}
        request = {
            "argv": command.argv,
            "cwd": command.cwd,
            "is_real": command.is_real,
            "env": env,
            "linger": command.linger,
            "number": self._count,
        }
        request |= msgspec.to_builtins(command.bounds)
        self._send(request, (theirs.detach(), *descriptors))
        return tree

    async def close(self) -> None:
        """Kill what still runs and end the process."""
        self._is_closed = True
        for tree in tuple(self._trees):
            tree.cut()
        process, tag, groups = self._process, self._tag, self._groups
        self.wake()
        self._hang_up()
        if process is not None and await asyncio.to_thread(_wait_or_kill, process) != 0:
            await asyncio.to_thread(_kill_all, tag, self._marked, groups)

    # For trees

    def wake(self) -> None:
        """Guard and keepers go on, if they were told to pause. Keepers outlive their guard for a moment."""
        groups = {tree.group for tree in self._trees} | {self.process_id}
        for group in groups - {0}:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGCONT)

    def forget(self, tree: Tree) -> None:
        self._trees.discard(tree)

    def lost(self, tree: Tree, end: TreeEnd) -> None:
        """A keeper is gone and did not say that its tree is. It may have been killed: what it kept has come to the
        guard, which kills it. If the guard is gone too, the server has to search for it.
        """
        if self._is_closed:
            tree.over(end)
        elif self._process is None or tree.group != self._process.pid:
            self._search(tree.tag, "", [(tree, end)])
        else:
            self._count += 1
            self._lost[self._count] = tree, end
            self._send({"sweep": self._count, "number": tree.number}, ())

    def _search(self, tag: int, groups: str, lost: list[tuple[Tree, TreeEnd]]) -> None:
        """Kill what is found of trees that have neither keeper nor guard."""
        if any(tree.is_lost for tree, _ in lost):
            self.escapes += 1
            _log.warning("a command has killed the processes that supervise it: what is found of it is killed")

        def done(search: asyncio.Future[tuple[int, tuple[int, ...]]]) -> None:
            left = () if search.cancelled() or search.exception() else search.result()[1]
            for tree, end in lost:
                tree.over(msgspec.structs.replace(end, was_killed=True, left=left, is_unproven=tree.is_lost))

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, _kill_all, tag, self._marked, groups).add_done_callback(done)

    @property
    def _marked(self) -> bytes:
        return f"{_MARK}={self._mark}.".encode()

    # The line

    def _start(self) -> None:
        self._tag = new_tag()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        argv = [sys.executable, "-I", "-S", "-c", _START, _SOURCES, str(theirs.fileno()), self._wanted]
        argv.append(str(self._tag))
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
        null = subprocess.DEVNULL
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv, stdin=null, stdout=null, stderr=null, cwd="/", env=env,
                    pass_fds=[theirs.fileno()], start_new_session=True,
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        loop = asyncio.get_running_loop()
        self._line, self._unread, self._ready = ours, b"", loop.create_future()
        loop.add_reader(ours, self._hear)

    def _send(self, request: object, descriptors: tuple[int, ...]) -> None:
        self.wake()
        body = json.dumps(request).encode()
        self._outgoing.append((_SIZE.pack(len(body)) + body, descriptors))
        self._flush()
        if not self._is_insisting:
            self._is_insisting = True
            asyncio.get_running_loop().call_later(_NUDGE, self._insist)

    def _insist(self) -> None:
        """A command may have told guard or keepers to pause just when something else was asked of them: until that is
        on its way they are told to go on.
        """
        others = any(not tree.has_begun or tree.group != self.process_id for tree in self._trees)
        self._is_insisting = others or bool(self._lost)
        if self._is_insisting:
            self.wake()
            asyncio.get_running_loop().call_later(_NUDGE, self._insist)

    def _flush(self) -> None:
        line = self._line
        if line is None:
            return
        loop = asyncio.get_running_loop()
        while self._outgoing:
            data, descriptors = self._outgoing.popleft()
            try:
                sent = socket.send_fds(line, [data], descriptors)
            except BlockingIOError:
                self._outgoing.appendleft((data, descriptors))
                loop.add_writer(line, self._flush)
                return
            except OSError:
                # The guard is gone; whoever reads will notice. The trees see their lines cut.
                sent = len(data)
            _close_all(descriptors)
            if sent < len(data):
                self._outgoing.appendleft((data[sent:], ()))
        loop.remove_writer(line)

    def _hear(self) -> None:
        assert self._line is not None
        try:
            data = self._line.recv(4_096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._replace()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "hello" in said:
                self._groups = said["groups"]
                self._greet(said["hello"], can_enter=said["namespaces"])
            if "swept" in said and said["swept"] in self._lost:
                tree, end = self._lost.pop(said["swept"])
                tree.over(end)

    def _greet(self, containment: Containment, *, can_enter: bool) -> None:
        self._containment = containment
        self.has_namespaces = can_enter
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(containment)

    def _replace(self) -> None:
        """The guard process is gone. Its keepers kill what they keep and say so; what has no keeper either is searched
        for. Another guard is started when it is needed.
        """
        process, ready, tag, groups = self._process, self._ready, self._tag, self._groups
        self._hang_up()
        if process is not None:
            process.wait()
        if ready is not None and not ready.done():
            ready.cancel()
        if not self._is_closed:
            lost, self._lost = list(self._lost.values()), {}
            self._search(tag, groups, lost)
            self._insist()

    def _hang_up(self) -> None:
        if self._line is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._line)
            loop.remove_writer(self._line)
            self._line.close()
        for _, descriptors in self._outgoing:
            _close_all(descriptors)
        self._outgoing.clear()
        self._line = self._process = None


def _copies(*descriptors: int) -> list[int]:
    """Return copies of descriptors: a request may wait in the queue for a moment."""
    copies: list[int] = []
    try:
        for descriptor in descriptors:
            copies.append(os.dup(descriptor))  # noqa: PERF401 - what there is so far has to be closed
    except BaseException:
        _close_all(copies)
        raise
    return copies


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _kill_all(tag: int, mark: bytes, groups: str) -> tuple[int, tuple[int, ...]]:
    kill_group(groups)
    result = kill_tagged(tag, mark)
    remove_group(groups)
    return result


def _wait_or_kill(process: subprocess.Popen[bytes]) -> int:
    """The exit code of the guard: not 0 if it was killed, so that something may be left."""
    try:
        return process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
