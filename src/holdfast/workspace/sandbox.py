"""The sandbox of a workspace, if one is asked for: its files can be written, everything else only read.

bubblewrap does it where it is installed. Without it, Landlock keeps commands from writing elsewhere; it cannot
make exceptions inside of a directory, so that what is protected in the workspace is mounted read-only besides,
which takes the guard's namespaces. What cannot be kept is refused, never left out in silence.
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
]


_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
_CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETUID", "CAP_SETGID")
_HELP = "Install bubblewrap, or set sandbox to an empty text to work without one."


class SandboxImpossible(ToolError):
    """The sandbox that was asked for cannot be had on this machine."""


class SandboxPolicy(msgspec.Struct, frozen=True):
    """What a workspace's commands may do.

    `scratch` takes the place of /tmp. `protected` are paths that stay read-only inside of what is writable, `hidden`
    directories that are not to be seen at all: the server's own. Paths are absolute, or relative to the workspace.
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
        self._has_namespaces = has_namespaces
        self.mechanism: Mechanism = "bubblewrap" if bubblewrap is not None else "landlock"
        if self.mechanism == "landlock":
            self._check_landlock()
        try:
            Path(policy.scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxImpossible(f"The directory {policy.scratch} cannot be made: {error.strerror}.") from None
        self._ward = Ward(policy.workspace, policy.protected, f"{policy.scratch}-kept")

    def watch(self) -> Callable[[], str]:
        """A command begins; see `Ward`."""
        return self._ward.begin()

    def describe(self) -> SandboxState:
        notes: list[str] = []
        if self.mechanism == "landlock":
            if not self._has_namespaces:
                notes.append("Files of the server itself can be read.")
            if not self._policy.network and not self._has_namespaces:
                notes.append("Only TCP is kept from the network.")
        notes.append("Settings, hooks and servers that a command makes anew are taken away when it is over.")
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
        self._check_landlock()
        policy = self._policy
        network = policy.network or self._has_namespaces
        writable = (*self._used(), *_DEVICES)
        landlock = {"writable": list(writable), "network": network}
        env = {**launch.env, "TMPDIR": policy.scratch}
        bounds = Bounds(landlock=landlock)
        if self._has_namespaces:
            bounds = Bounds(self._protected(), self._hidden(), self._used(), policy.network, landlock, self._pinned())
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
        for path in self._hidden():
            options += ["--tmpfs", path]
        for path in (*self._used(), *self._pinned()):
            options += ["--bind", path, path]
        for path in self._hidden():
            options += ["--remount-ro", path]
        for path in self._protected():
            options += ["--ro-bind", path, path]
        if not self._policy.network:
            options.append("--unshare-net")
        if os.geteuid() == 0:
            # Root could mount everything anew; what is left lets it work with files of any owner.
            options += ["--cap-drop", "ALL", *(word for name in _CAPABILITIES for word in ("--cap-add", name))]
        return [*options, "--chdir", cwd]

    def _check_landlock(self) -> None:
        version = landlock_version()
        if version < 1:
            raise SandboxImpossible(f"There is neither bubblewrap nor Landlock on this machine. {_HELP}")
        if self._has_namespaces:
            return
        if not self._policy.network and version < 4:
            raise SandboxImpossible(f"The Landlock of this kernel cannot keep commands from the network. {_HELP}")
        if protected := self._protected():
            names = ", ".join(protected)
            raise SandboxImpossible(f"Landlock alone cannot protect {names} in a directory that is writable. {_HELP}")

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
        places = (os.path.realpath(path) for path in self._policy.hidden)
        return tuple(place for place in places if os.path.isdir(place) and place not in self._used())
