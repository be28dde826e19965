"""The guard: a small process that starts every command for the server and outlives it just long enough to clean up.

It forks a supervisor for each command and passes it a connection to the server. When the server dies, all these
connections close and the supervisors kill their trees; when the guard dies, the leash pipe closes with the same effect.
Processes left behind by a dead supervisor are reparented to the guard, which kills them. Only the standard library is
loaded. The theory of operation is in `guard`.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.workspace.process import guard_system as system
from holdfast.workspace.process.process_tag import (
    cgroup_of_tree,
    create_cgroups,
    kill_cgroup,
    kill_orphaned,
    kill_tagged,
    remove_cgroup,
    tag_of_tree,
)
from holdfast.workspace.process.tree_supervisor import Supervisor, exit_code_of, open_child_notifier

__all__ = ["build_view", "main", "start_sentinel"]


# The sentinel: a second supervisor that is no ancestor of any command.

_SENTINEL_TIMEOUT = 5.0
_SENTINEL_INTERVAL = 0.05


def start_sentinel(server: int, tag: int, groups: str) -> int:
    """Start a sentinel for this process, the guard. Returns a pidfd of it, -1 if there can be none.

    Called while this process does not adopt orphans, so that the sentinel does not become its child.
    """
    if not tag:
        return -1
    reading, writing = os.pipe()
    try:
        first = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return -1
    # Forked twice: the sentinel becomes a child of init, not of the guard.
    if first == 0:
        _become_sentinel(server, os.getppid(), tag, groups, writing)
    os.close(writing)
    os.waitpid(first, 0)
    with os.fdopen(reading, "rb") as pipe:
        process_id = pipe.read()
    try:
        return os.pidfd_open(int(process_id))
    except (OSError, ValueError):
        return -1


def _become_sentinel(server: int, guard: int, tag: int, groups: str, writing: int) -> NoReturn:
    try:
        os.setsid()
        second = os.fork()
        if second:
            os.write(writing, str(second).encode())
            os._exit(0)
        # Inherited descriptors must be closed: the guard's connections have to close when the guard dies.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        system.set_title(f"supervisor of process {server}")
        _run_sentinel(server, guard, tag, groups)
    finally:
        os._exit(0)


def _run_sentinel(server: int, guard: int, tag: int, groups: str) -> None:
    waiting = select.poll()
    guard_handle = -1
    for process in (server, guard):
        try:
            guard_handle = os.pidfd_open(process)
        except ProcessLookupError:
            break
        waiting.register(guard_handle, select.POLLIN)
    else:
        kill_orphaned()
        # Blocks until the server or the guard ends.
        waiting.poll()
    until = time.monotonic() + _SENTINEL_TIMEOUT
    while time.monotonic() < until:
        kill_cgroup(groups)
        kill_tagged(tag, seconds=_SENTINEL_INTERVAL)
        # The guard of a dead server may still start commands that were already requested.
        if not system.is_running(guard):
            kill_cgroup(groups)
            kill_tagged(tag)
            remove_cgroup(groups)
            return


# The file system a sandboxed command sees, built in its own mount namespace. Runs in the guard process.

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 0x1000, 0x4000, 0x40000,
)  # fmt: skip
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE, _AT_SYMLINK_NOFOLLOW = -100, 0x1000, 0x8000, 0x100
_CLONE, _CLOEXEC, _FROM_EMPTY_PATH = 1, os.O_CLOEXEC, 0x4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = (
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
)

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int, what: str, *arguments: object) -> int:
    return _check(int(_libc.syscall(ctypes.c_long(number), *arguments)), what)


def build_view(mounts: Sequence[Sequence[str]]) -> None:
    """Apply the mounts. The caller is in a new mount and PID namespace and has mounted its own `/proc`."""
    _mount("", "/", "", _MS_REC | _MS_PRIVATE)
    # All sources are opened before anything is mounted: a mount may hide the source of a later one.
    trees = [_clone(source) if source else -1 for _, _, source in mounts]
    devices = {name: _clone(f"/dev/{name}") for name in _DEVICES if os.path.exists(f"/dev/{name}")}
    # Read-only first, then the exceptions: a path that is not listed stays protected.
    _set_attributes("/", _ATTR_RDONLY)
    _make_devices(devices)
    for (operation, path, _), tree in zip(mounts, trees, strict=True):
        _apply(operation, path, tree)


def _apply(operation: str, path: str, tree: int) -> None:
    match operation:
        case "tmpfs":
            os.makedirs(path, exist_ok=True)
            _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
        case "bind" | "read":
            _attach(tree, path)
            _set_attributes(path, _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if operation == "read" else 0))
        case "mask":
            _attach(_clone(os.devnull), path)
            _set_attributes(path, _ATTR_RDONLY | _ATTR_NODEV)
        case "freeze":
            _attach(_clone(path), path)
            _set_attributes(path, _ATTR_RDONLY)
        case "seal":
            _mount("", path, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
        case _:
            raise OSError(0, f"unknown mount operation {operation}")


def _make_devices(devices: dict[str, int]) -> None:
    """Mount a `/dev` without the terminals, disks and shared memory of the machine."""
    _mount("tmpfs", "/dev", "tmpfs", _MS_NOSUID | _MS_NOEXEC, "mode=755")
    for name, tree in devices.items():
        _attach(tree, f"/dev/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}")
    _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
    for name, target in _DEVICE_LINKS:
        os.symlink(target, f"/dev/{name}")


def _clone(path: str) -> int:
    """Return a detached copy of the mount tree at a path."""
    flags = _CLONE | _CLOEXEC | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
    return _syscall(_OPEN_TREE, f"open {path}", ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags))


def _attach(tree: int, path: str) -> None:
    try:
        _make_mount_point(path, is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
        target = (ctypes.c_int(_AT_FDCWD), os.fsencode(path))
        _syscall(_MOVE_MOUNT, f"mount {path}", ctypes.c_int(tree), b"", *target, ctypes.c_uint(_FROM_EMPTY_PATH))
    finally:
        os.close(tree)


def _make_mount_point(path: str, *, is_directory: bool) -> None:
    if os.path.lexists(path):
        return
    if is_directory:
        os.makedirs(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _set_attributes(path: str, attributes: int) -> None:
    """Add mount attributes to a path and everything mounted below it."""
    wanted = _Attributes(attributes, 0, 0, 0)
    target = (ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(_AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW))
    _syscall(_MOUNT_SETATTR, f"protect {path}", *target, ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)))


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


_SIZE = struct.Struct("!I")
_ANNOUNCEMENT = struct.Struct("!iQ")
_MAX_DESCRIPTORS = 16
_END_TIMEOUT = 2.0


class _Guard:
    def __init__(self, server: socket.socket, tag: int) -> None:
        self._server = server
        self._tag = tag
        self._server_process = os.getppid()
        self._sentinel = -1
        self._groups = ""
        self._unread = b""
        self._descriptors: list[int] = []
        self._supervisors: dict[int, int] = {}
        """Supervisor processes, each with the number of its tree."""
        self._namespaces = self._can_enter = False
        self._child_ended = -1
        self._guard_pipe, self._guard_pipe_writer = os.pipe()
        self._announced, self._announce = os.pipe()
        os.set_blocking(self._announced, False)

    def run(self, containment: str) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        system.resume_on_parent_death()
        # A command of the same user could otherwise trace a supervisor, or take over its connection to the server.
        system.deny_tracing()
        self._child_ended = open_child_notifier()
        self._choose_containment(containment)
        if not self._namespaces and containment != "tree":
            self._groups = create_cgroups(self._tag)
        self._start_sentinel()
        # Frozen objects are not touched by the collector of forked supervisors, so their memory pages stay shared.
        gc.collect()
        gc.freeze()
        kind = "namespace" if self._namespaces else "groups" if self._groups else "tree"
        self._send(hello=kind, namespaces=self._can_enter, groups=self._groups)
        waiting = select.poll()
        for descriptor in (self._server.fileno(), self._child_ended, self._announced, self._sentinel):
            if descriptor >= 0:
                waiting.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == self._child_ended:
                    self._reap()
                elif descriptor == self._announced:
                    self._read_announcements()
                elif descriptor == self._sentinel:
                    self._replace_sentinel(waiting)
                elif not self._receive():
                    return self._end()

    def _start_sentinel(self) -> None:
        """Start a sentinel, unless PID namespaces are used: there commands cannot reach their supervisors, and the
        kernel kills them with the supervisor.
        """
        system.set_subreaper(is_on=False)
        self._sentinel = -1 if self._namespaces else start_sentinel(self._server_process, self._tag, self._groups)
        system.set_subreaper()

    def _replace_sentinel(self, waiting: select.poll) -> None:
        waiting.unregister(self._sentinel)
        os.close(self._sentinel)
        self._start_sentinel()
        if self._sentinel >= 0:
            waiting.register(self._sentinel, select.POLLIN)

    def _send(self, **what: object) -> None:
        try:
            self._server.sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            return

    # Requests of the server

    def _receive(self) -> bool:
        """Read from the server and execute complete requests. Returns False when the server is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._server, 1 << 16, _MAX_DESCRIPTORS)
        except OSError:
            return False
        if not data:
            return False
        self._unread += data
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        while len(self._unread) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self._unread)[0]
            if len(self._unread) < end:
                break
            request = json.loads(self._unread[_SIZE.size : end])
            self._unread = self._unread[end:]
            if "sweep" in request:
                self._await_supervisor(request["number"])
                self._kill_orphans()
                self._send(swept=request["sweep"])
            else:
                self._spawn(request)
        return True

    def _spawn(self, request: dict[str, Any]) -> None:
        descriptors, self._descriptors = self._descriptors[:4], self._descriptors[4:]
        supervisor = -1
        tag = request["tag"] = tag_of_tree(self._tag, request["number"])
        request["group"] = cgroup_of_tree(self._groups, tag)
        try:
            # A request without its descriptors cannot be executed; the server sees its connection close.
            supervisor = os.fork() if len(descriptors) == 4 else -1
        except OSError as error:
            _send_error(descriptors[0], f"No process could be created: {error.strerror}.")
        if supervisor == 0:
            self._run_supervisor(request, descriptors)
        if supervisor > 0:
            self._supervisors[supervisor] = request["number"]
        for descriptor in descriptors:
            os.close(descriptor)

    def _run_supervisor(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        """Run the supervisor in the forked child. Never returns."""
        code = 1
        try:
            self._server.close()
            os.close(self._guard_pipe_writer)
            is_init = self._become_init(request)
            os.close(self._announce)
            if not is_init:
                system.set_subreaper()
                system.resume_on_parent_death()
            Supervisor(request, descriptors, self._guard_pipe, is_init=is_init).run()
            code = 0
        except OSError as error:
            _send_error(descriptors[0], f"The command could not be confined: {error.strerror or error}.")
        finally:
            os._exit(code)

    # Namespaces

    def _become_init(self, request: dict[str, Any]) -> bool:
        """Continue as the init process of a PID namespace, if namespaces are in use or the request needs one."""
        has_network = request.get("network", True)
        is_needed = bool(request.get("mounts") or not has_network)
        if not is_needed and not self._namespaces:
            return False
        try:
            extra = system.CLONE_NEWIPC if request.get("mounts") else 0
            extra |= 0 if has_network else system.CLONE_NEWNET
            system.enter_namespaces(as_user=self._can_enter, extra=extra)
        except OSError:
            if is_needed:
                raise
            return False
        child = os.fork()
        if child:
            # The init process is reparented to the guard when its parent exits; it must be known as a supervisor, not a
            # stray.
            os.write(self._announce, _ANNOUNCEMENT.pack(child, request["number"]))
            os._exit(0)
        system.mount_proc()
        if not has_network:
            system.enable_loopback()
        if request.get("mounts"):
            build_view(request["mounts"])
        return True

    def _choose_containment(self, containment: str) -> None:
        """Choose the containment. `auto` uses a namespace for root only: for other users it would also
        change user ids.
        """
        is_root_able = _can_enter_namespaces(as_user=False)
        self._can_enter = is_root_able or _can_enter_namespaces(as_user=True)
        self._namespaces = is_root_able if containment == "auto" else self._can_enter and containment == "namespace"

    def _read_announcements(self) -> None:
        try:
            data = os.read(self._announced, 341 * _ANNOUNCEMENT.size)
        except BlockingIOError:
            return
        self._supervisors.update(_ANNOUNCEMENT.iter_unpack(data))

    # End

    def _reap(self) -> bool:
        """Reap ended supervisors. Returns False if there is no child at all."""
        if self._child_ended >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self._child_ended, 4_096)
        while (ended := system.reap_child()) is not None:
            process, status = ended
            if process == 0:
                return True
            if self._handle_exit(process, status):
                self._kill_orphans()
        return False

    def _handle_exit(self, process: int, status: int) -> bool:
        """Handle an ended child. If it was a killed supervisor, kill its tree and return True."""
        self._read_announcements()
        number = self._supervisors.pop(process, None)
        if number is None or status == 0:
            return False
        tag = tag_of_tree(self._tag, number)
        kill_cgroup(cgroup_of_tree(self._groups, tag))
        kill_tagged(tag)
        return True

    def _await_supervisor(self, number: int) -> None:
        """Wait for a supervisor to end: its connection closes shortly before that, and only then its children are
        reparented.
        """
        until = time.monotonic() + _END_TIMEOUT
        while number in self._supervisors.values() and time.monotonic() < until:
            if not self._reap():
                return
            os.sched_yield()

    def _kill_orphans(self) -> None:
        """Kill everything below the guard that has no supervisor."""
        until = time.monotonic() + _END_TIMEOUT
        while time.monotonic() < until:
            self._read_announcements()
            known = len(self._supervisors)
            strays = system.descendants([os.getpid()], spare=self._supervisors)
            self._read_announcements()
            if len(self._supervisors) != known:
                # A supervisor created meanwhile may have been taken for a stray.
                continue
            if not strays:
                return
            system.send_signal(strays, signal.SIGKILL)
            self._reap_strays()

    def _reap_strays(self) -> None:
        while (ended := system.reap_child()) is not None:
            process, status = ended
            if process == 0:
                return
            self._handle_exit(process, status)

    def _end(self) -> None:
        """Handle the end of the server: close the leash and wait until no process is left."""
        os.close(self._guard_pipe_writer)
        # A command may have paused its supervisor, or the sentinel.
        os.killpg(0, signal.SIGCONT)
        self._signal_sentinel(signal.SIGCONT)
        until = time.monotonic() + _END_TIMEOUT
        waiting = select.poll()
        waiting.register(self._child_ended, select.POLLIN)
        while self._reap() and time.monotonic() < until:
            waiting.poll(50)
        self._kill_orphans()
        remove_cgroup(self._groups)
        # No process is left, so the sentinel has nothing to kill.
        self._signal_sentinel(signal.SIGKILL)

    def _signal_sentinel(self, number: signal.Signals) -> None:
        if self._sentinel >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._sentinel, number)


def _can_enter_namespaces(*, as_user: bool) -> bool:
    """Probe namespaces completely, in a child."""
    child = os.fork()
    if child == 0:
        try:
            system.enter_namespaces(as_user=as_user)
            init = os.fork()
            if init == 0:
                system.mount_proc()
                os._exit(0)
            os._exit(exit_code_of(os.waitpid(init, 0)[1]))
        finally:
            os._exit(1)
    return exit_code_of(os.waitpid(child, 0)[1]) == 0


def _send_error(line: int, why: str) -> None:
    with contextlib.suppress(OSError):
        os.write(line, json.dumps({"error": why}).encode() + b"\n")


def main(arguments: list[str]) -> None:
    """Run the guard. `arguments`: descriptor of the connection to the server, containment, tag of all processes."""
    descriptor, containment, tag = arguments
    _Guard(socket.socket(fileno=int(descriptor)), int(tag)).run(containment)
