"""The sandbox of a workspace, if one is asked for: its files can be written, everything else only read.

bubblewrap does it where it is installed. Without it, Landlock keeps commands from writing elsewhere; it can neither
make exceptions inside of a directory nor hide a socket, so that the guard's namespaces do that, and without those it
is refused. What cannot be kept is never left out in silence.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.sandbox import PROTECTED, Mechanism, SandboxState
from holdfast.workspace.guard import Bounds
from holdfast.workspace.process import Launch
from holdfast.workspace.sandbox_landlock import landlock_version
from holdfast.workspace.ward import Ward, linked_directories, protected_in

__all__ = [
    "Mechanism",
    "Sandbox",
    "SandboxImpossible",
    "SandboxPolicy",
    "SandboxState",
    "find_bubblewrap",
    "why_not",
]


_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
_CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETUID", "CAP_SETGID")
_KERNEL = ("/proc/acpi", "/proc/driver", "/proc/fs", "/proc/mtrr", "/proc/scsi", "/proc/sys", "/proc/sysrq-trigger")
"""A fresh /proc can be written where root may."""
_LEAST_LANDLOCK = 3
"""Before that, files elsewhere can be cut short."""
_DOORS = (
    "/run/containerd",
    "/run/crio",
    "/run/dbus",
    "/run/docker.sock",
    "/run/incus",
    "/run/libvirt",
    "/run/lxd.socket",
    "/run/podman",
    "/run/snapd.socket",
    "/run/systemd/private",
    "/var/lib/incus/unix.socket",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
)
"""Behind them are servers that start programs outside of the sandbox for whoever asks."""


class SandboxImpossible(ToolError):
    """The sandbox that was asked for cannot be had on this machine."""


class SandboxPolicy(msgspec.Struct, frozen=True):
    """What a workspace's commands may do.

    `scratch` takes the place of /tmp. `protected` are paths that stay read-only inside of what is writable, `hidden`
    is not to be reached at all: the server's own directory, its socket, its keys. Paths are absolute, or relative to
    the workspace.
    """

    workspace: str
    scratch: str
    network: bool = True
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = PROTECTED
    hidden: tuple[str, ...] = ()


def find_bubblewrap() -> str | None:
    return shutil.which("bwrap")


class Sandbox:
    """Confines every command of a workspace. `has_namespaces`: what the guard says about itself, once it is ready."""

    def __init__(self, policy: SandboxPolicy, *, has_namespaces: bool, bubblewrap: str | None = None) -> None:
        self._policy = policy
        self.network = policy.network
        self._bubblewrap = bubblewrap
        self.mechanism: Mechanism = "bubblewrap" if bubblewrap is not None else "landlock"
        if why := why_not(has_namespaces=has_namespaces, bubblewrap=bubblewrap):
            raise SandboxImpossible(f"{why} Install it, or set sandbox to an empty text to work without one.")
        try:
            Path(policy.scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxImpossible(f"The directory {policy.scratch} cannot be made: {error.strerror}.") from None
        self._ward = Ward(policy.workspace, policy.protected, f"{policy.scratch}-kept")

    def watch(self) -> Callable[[], str]:
        """A command begins; see `Ward`."""
        return self._ward.begin()

    def describe(self) -> SandboxState:
        notes = ["Settings, hooks and servers that a command makes anew are taken away when it is over."]
        notes.append("Containers, the desktop and agents for keys cannot be reached.")
        if self._has_own_tmp:
            notes.append("/tmp is private to the workspace.")
        else:
            notes.append("Temporary files belong into $TMPDIR; /tmp cannot be written.")
        return SandboxState(
            "workspace",
            self.mechanism,
            self._policy.network,
            (self._policy.workspace, *self._writable()),
            self._protected(),
            tuple(notes),
        )

    def confine(self, launch: Launch) -> tuple[Launch, Bounds]:
        """The launch as it may be. Asked for every command, as repositories come and go."""
        if self.mechanism == "bubblewrap":
            argv = (*self._bubblewrap_options(launch.cwd), "--", *launch.argv)
            env = {**launch.env, "TMPDIR": "/tmp" if self._has_own_tmp else self._policy.scratch}
            return msgspec.structs.replace(launch, argv=argv, env=env), Bounds()
        policy, used = self._policy, self._used()
        env = {**launch.env, "TMPDIR": policy.scratch}
        landlock = (*used, *_DEVICES)
        bounds = Bounds(self._protected(), self._hidden(), used, policy.network, landlock, self._pinned())
        return msgspec.structs.replace(launch, env=env), bounds

    @property
    def _has_own_tmp(self) -> bool:
        """/tmp is replaced by a private one, unless the workspace is in it."""
        return self.mechanism == "bubblewrap" and not self._policy.workspace.startswith("/tmp/")

    def _bubblewrap_options(self, cwd: str) -> list[str]:
        assert self._bubblewrap is not None
        options = [self._bubblewrap, "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc"]
        if self._has_own_tmp:
            options += ["--bind", self._policy.scratch, "/tmp"]
        hidden = {path: os.path.isdir(path) for path in self._hidden()}
        for path, is_directory in hidden.items():
            options += ["--tmpfs", path] if is_directory else ["--ro-bind", os.devnull, path]
        for path in (*self._used(), *self._pinned()):
            options += ["--bind", path, path]
        for path, is_directory in hidden.items():
            options += ["--remount-ro", path] * is_directory
        for path in self._protected():
            options += ["--ro-bind", path, path]
        if not self._policy.network:
            options.append("--unshare-net")
        if os.geteuid() == 0:
            # Root could mount everything anew, and tune the kernel; what is left lets it work with files of any owner.
            options += ["--cap-drop", "ALL", *(word for name in _CAPABILITIES for word in ("--cap-add", name))]
            options += [word for path in _KERNEL if os.path.exists(path) for word in ("--ro-bind", path, path)]
        return [*options, "--chdir", cwd]

    def _writable(self) -> tuple[str, ...]:
        extra = (str(Path(self._policy.workspace, path)) for path in self._policy.writable)
        return tuple(path for path in (*extra, *linked_directories(self._policy.workspace)) if os.path.exists(path))

    def _protected(self) -> tuple[str, ...]:
        return protected_in(self._policy.workspace, self._policy.protected)

    def _used(self) -> tuple[str, ...]:
        """What can be written. It stays where it is, also inside of what is hidden."""
        return (self._policy.scratch, self._policy.workspace, *self._writable())

    def _pinned(self) -> tuple[str, ...]:
        """The repository: a directory that is moved away takes with it what is protected, and another could be made."""
        own = os.path.join(self._policy.workspace, ".git")
        return (own,) if os.path.isdir(own) and not os.path.islink(own) else ()

    def _hidden(self) -> tuple[str, ...]:
        """What is there of it; what lies in another is hidden with that."""
        named = (*self._policy.hidden, *_runtime_directories(), *_DOORS)
        places = sorted({os.path.realpath(path) for path in named if os.path.exists(path)} - set(self._used()))
        return tuple(place for place in places if not any(place.startswith(f"{other}/") for other in places))


def _runtime_directories() -> tuple[str, ...]:
    """Where the servers of a user listen: ours, the desktop's, those that keep keys."""
    known = (os.environ.get("XDG_RUNTIME_DIR", ""), "/run/user", f"/tmp/holdfast-{os.getuid()}")
    return tuple(path for path in known if path.startswith("/"))


def why_not(*, has_namespaces: bool, bubblewrap: str | None) -> str:
    """Why there can be no sandbox here; nothing if there can."""
    if bubblewrap is not None:
        return ""
    version = landlock_version()
    if version < _LEAST_LANDLOCK:
        return f"bubblewrap is not installed, and this kernel has {'too old a' if version else 'no'} Landlock."
    if not has_namespaces:
        return "bubblewrap is not installed, and Landlock alone protects neither a repository nor the server."
    return ""
