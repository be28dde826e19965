"""The sandbox of a workspace: its commands can write the workspace, and read the rest except the user's own files.

bubblewrap builds the file system of a command if it is installed. Otherwise the guard builds the same one in its own
namespaces, and Landlock refuses changes to it; without namespaces the sandbox is refused, because Landlock alone can
neither except a file in a writable directory nor hide a socket.

The writable paths are decided once, when the sandbox is created, from the user's settings and the data directory. The
contents of the workspace never add any.
"""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.processes import PROTECTED, Mechanism, SandboxState
from holdfast.domain.settings import SandboxSettings
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.process.command_process import CommandLaunch
from holdfast.workspace.process.guard_client import Bounds
from holdfast.workspace.sandbox.git_dir_search import GitEntry
from holdfast.workspace.sandbox.linked_git_dirs import PROTECTED_GIT, decide_linked_git, find_linked_git, named_paths
from holdfast.workspace.sandbox.mount_view import (
    TOOLCHAINS,
    Mount,
    ViewPlan,
    bound_sockets,
    bubblewrap_options,
    build_mounts,
    credentials_below,
    home_directories,
    is_private,
    is_system,
    write_gitconfig,
)
from holdfast.workspace.sandbox.privileges import SCOPES_VERSION, can_filter, landlock_version
from holdfast.workspace.sandbox.quarantine import SandboxCleanup

__all__ = [
    "Mechanism",
    "Sandbox",
    "SandboxImpossible",
    "SandboxPolicy",
    "SandboxState",
    "find_bubblewrap",
    "unavailable_reason",
]

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/pts", "/dev/shm")
_CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETUID", "CAP_SETGID")
_MIN_LANDLOCK = 3
"""Earlier versions do not prevent truncation of files elsewhere."""
_MAX_MOUNTED = 64
"""Git directories of the user whose settings are mounted read-only. Changes in further ones are found afterwards."""
_MAX_SOCKETS = 512
_DROPPED = (
    "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "DISPLAY", "DOCKER_HOST", "GPG_AGENT_INFO", "KRB5CCNAME",
    "SSH_AGENT_PID", "SSH_AUTH_SOCK", "STY", "TMUX", "WAYLAND_DISPLAY", "WSL_INTEROP", "XAUTHORITY",
    "XDG_RUNTIME_DIR",
)  # fmt: skip
"""Variables that name sockets no command can reach."""


class SandboxImpossible(ToolError):
    """The sandbox cannot be provided on this machine or for this workspace."""


class SandboxPolicy(msgspec.Struct, frozen=True):
    """Settings of a sandbox. Paths are absolute, those of `protected` relative to the workspace.

    `scratch` becomes /tmp. `protected` paths stay read-only, `hidden` ones are never visible: the server's data
    directory and socket, the user's settings and credentials. `home` are paths of the home directory that are not left
    out; `home_directory` is the client's, if it is not the server's.
    """

    workspace: str
    scratch: str
    network: bool = True
    hidden: tuple[str, ...] = ()
    protected: tuple[str, ...] = PROTECTED
    home: SandboxSettings = SandboxSettings()
    home_directory: str = ""


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap, or None."""
    return shutil.which("bwrap")


class Sandbox:
    """Restricts every command of a workspace. `has_namespaces`: whether the guard can create them, once it is ready."""

    def __init__(
        self,
        policy: SandboxPolicy,
        *,
        has_namespaces: bool,
        bubblewrap: str | None = None,
        earlier: "Sandbox | None" = None,
    ) -> None:
        self.policy = policy
        self._bubblewrap = bubblewrap
        self.mechanism: Mechanism = "bubblewrap" if bubblewrap is not None else "landlock"
        if why := unavailable_reason(has_namespaces=has_namespaces, bubblewrap=bubblewrap):
            raise SandboxImpossible(f"{why} Install it, or set sandbox to an empty string to work without one.")
        self._homes = home_directories(policy.home_directory)
        self._hidden = tuple(os.path.realpath(path) for path in (*policy.hidden, *_runtime_directories()))
        self._check_workspace()
        self._refused: list[str] = []
        try:
            Path(policy.scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._linked = decide_linked_git(policy.workspace, Path(f"{policy.scratch}-git.json"), self._may_open)
            self._plan = self._make_plan()
        except OSError as error:
            raise SandboxImpossible(f"The sandbox cannot be prepared in {policy.scratch}: {error}.") from None
        areas = (*self._plan.writable, *(source for _, source in self._plan.home_writable))
        kept = f"{policy.scratch}-kept"
        cleanup = earlier._cleanup if earlier else SandboxCleanup(policy.workspace, policy.protected, kept)
        cleanup.cover(areas)
        self._cleanup: SandboxCleanup = cleanup
        self._mounted: frozenset[str] = frozenset()

    def prepare(self) -> None:
        """Take the present state of the workspace as the user's own. May block for a while in a large workspace."""
        self._cleanup.refresh()

    def watch(self) -> Callable[[], str]:
        """Watch the changes of the last confined command; see `SandboxCleanup`."""
        return self._cleanup.begin(self._mounted)

    def confine(self, launch: CommandLaunch) -> tuple[CommandLaunch, Bounds]:
        """Return the launch with its restrictions. Called for each command, because git directories can change in
        between.
        """
        try:
            return self._confine(launch)
        except OSError as error:
            # Another command replaces files while they are examined.
            raise SandboxImpossible(f"{error.filename} was replaced while the sandbox was built. Try again.") from None

    def _confine(self, launch: CommandLaunch) -> tuple[CommandLaunch, Bounds]:
        self._cleanup.refresh(max_age=1.0)
        named = self._named_by_git()
        self._cleanup.cover_names(named)
        mounts, protected = self._mounts(named)
        self._mounted = frozenset(protected)
        env = {name: value for name, value in launch.env.items() if name not in _DROPPED}
        launch = msgspec.structs.replace(launch, env={**env, "TMPDIR": "/tmp"})
        if self._bubblewrap is None:
            landlock = tuple(path for operation, path, _ in mounts if operation in {"bind", "tmpfs"})
            bounds = Bounds(tuple(mounts), self.policy.network, (*landlock, *_DEVICES), restricted=True)
            return launch, bounds
        argv = (*self._bubblewrap_command(mounts, launch.cwd), "--", *launch.argv)
        bounds = Bounds(restricted=not _is_setuid(self._bubblewrap))
        return msgspec.structs.replace(launch, argv=argv), bounds

    def describe(self) -> SandboxState:
        """Return the state of the sandbox for users."""
        writable = (self.policy.workspace, *self._plan.writable, *(path for path, _ in self._plan.home_writable))
        readable = ", ".join(path for path, _ in self._plan.home_readable) or "nothing"
        notes = [
            "Settings, hooks and git directories that name programs are moved away when a command has made them.",
            f"/tmp and the home directory are private. Of the home directory commands can read {readable}.",
            "Unix sockets outside of the workspace cannot be reached: containers, the desktop, agents for keys.",
            *self._refused,
        ]
        if self.policy.network:
            notes.append("The network is open: servers on this machine's TCP and UDP ports can be reached as well.")
        protected = self._protected_paths(self._named_by_git())
        return SandboxState(
            "workspace", self.mechanism, self.policy.network, writable, protected, tuple(notes), self._gaps()
        )

    def _gaps(self) -> tuple[str, ...]:
        """Describe the gaps that cannot be closed on this machine."""
        found = []
        is_setuid = self._bubblewrap is not None and _is_setuid(self._bubblewrap)
        if self.policy.network and (landlock_version() < SCOPES_VERSION or is_setuid):
            found.append(
                "Abstract unix sockets can be reached: closing them needs Landlock of Linux 6.12 and a bubblewrap that"
                " is not set-uid, or options.sandbox_network = false."
            )
        if not can_filter() or is_setuid:
            found.append("Kernel keyrings, io_uring and vsock are not filtered here.")
        found += (
            f"The socket {path} in the workspace can be reached."
            for path in bound_sockets()
            if is_within(self.policy.workspace, path)
        )
        return tuple(found)

    # Paths that can be opened

    def _check_workspace(self) -> None:
        """Refuse a workspace that cannot be kept apart from the user's own files."""
        path = self.policy.workspace
        if is_system(path) or any(is_within(path, home) for home in self._homes):
            what = f"The sandbox cannot confine commands to {path}: it is a system or home directory, or above one."
        elif is_private(path, self._homes) or any(is_within(path, p) or is_within(p, path) for p in self._hidden):
            what = f"The sandbox cannot confine commands to {path}: keys or settings are there."
        else:
            return
        raise SandboxImpossible(f"{what} Open a project directory, or set options.sandbox to an empty string.")

    def _may_open(self, path: str) -> bool:
        """Return whether a path outside the workspace may be visible or writable at all. `path` is real."""
        if is_system(path) or is_within(path, self.policy.workspace) or is_private(path, self._homes):
            return False
        if any(is_within(path, place) or is_within(place, path) for place in self._hidden):
            return False
        return not any(is_within(place, path) for place in ("/dev", "/etc", "/proc", "/run", "/sys", "/usr"))

    def _make_plan(self) -> ViewPlan:
        policy = self.policy
        readable = [*self._repository_above()]
        writable: tuple[str, ...] = ()
        if self._linked is not None:
            readable.append(self._linked.common)
            writable = self._linked.writable
        gitconfig = Path(f"{policy.scratch}-gitconfig")
        write_gitconfig(gitconfig, self._homes[0] if self._homes else "")
        return ViewPlan(
            workspace=policy.workspace,
            scratch=policy.scratch,
            homes=self._homes,
            home_readable=self._exceptions((*TOOLCHAINS, *policy.home.home_readonly), set(policy.home.home_readonly)),
            home_writable=self._exceptions(policy.home.home, set(policy.home.home)),
            gitconfig=str(gitconfig),
            readable=tuple(path for path in readable if self._may_show(path)),
            writable=writable,
        )

    def _may_show(self, path: str) -> bool:
        """Return whether a repository outside the workspace may be readable: it may contain the
        workspace, but no home.
        """
        return not is_system(path) and not is_private(path, self._homes)

    def _repository_above(self) -> tuple[str, ...]:
        """Return the repository that contains the workspace, if that is one of its subdirectories."""
        place = os.path.dirname(self.policy.workspace)
        while place != "/":
            if os.path.lexists(os.path.join(place, ".git")):
                linked = find_linked_git(place)
                return (place,) if linked is None else (place, linked.common)
            place = os.path.dirname(place)
        return ()

    def _exceptions(self, names: tuple[str, ...], asked: set[str]) -> tuple[tuple[str, str], ...]:
        """Return (path, real path) of the named entries of the home directories that exist and may be opened."""
        found: dict[str, str] = {}
        for home in self._homes:
            for name in names:
                path = os.path.normpath(os.path.join(home, name.removeprefix("~/")))
                real = os.path.realpath(path)
                is_below = path != home and is_within(home, path)
                if is_below and os.path.exists(real) and self._may_open(real) and not _is_socket(real):
                    found[path] = real
                elif name in asked and (not is_below or os.path.exists(real)):
                    self._refused.append(f"sandbox.home: {name} is never opened.")
        return tuple(found.items())

    # View of one command

    def _mounts(self, named: list[str]) -> tuple[list[Mount], tuple[str, ...]]:
        protected = self._protected_paths(named)
        shown = [self.policy.workspace, self.policy.scratch]
        hidden = [path for path in bound_sockets() if not any(is_within(place, path) for place in shown)]
        for path, _ in (*self._plan.home_readable, *self._plan.home_writable):
            home = next(home for home in self._homes if is_within(home, path))
            hidden += credentials_below(home, path)
        plan = msgspec.structs.replace(
            self._plan,
            pinned=self._pinned_directories(),
            protected=protected,
            hidden=(*self._hidden, *dict.fromkeys(hidden[:_MAX_SOCKETS])),
        )
        return build_mounts(plan), protected

    def _protected_paths(self, named: list[str]) -> tuple[str, ...]:
        """Return existing paths that no command may change: settings, and git files that name programs."""
        workspace = self.policy.workspace
        found = [os.path.join(workspace, name) for name in self.policy.protected] + named
        own = os.path.join(workspace, ".git")
        for number, (path, entry) in enumerate(self._cleanup.existing()):
            if number < _MAX_MOUNTED or path == own:
                found += _program_paths(path, entry)
        if os.path.isdir(own) and not os.path.islink(own) and os.path.lexists(os.path.join(own, "HEAD")):
            # A missing directory cannot be mounted and could be created by a command; git creates it too.
            os.makedirs(os.path.join(own, "hooks"), exist_ok=True)
            found += (os.path.join(own, name) for name in PROTECTED_GIT)
        if self._linked is not None:
            found += self._linked.protected
        opened = (workspace, *self._plan.writable, *(source for _, source in self._plan.home_writable))
        real = dict.fromkeys(os.path.realpath(path) for path in found if os.path.exists(path))
        return tuple(path for path in real if any(path != place and is_within(place, path) for place in opened))

    def _named_by_git(self) -> list[str]:
        """Return the workspace paths named by the configuration of a repository: hooks, included files."""
        workspace = self.policy.workspace
        places = [os.path.join(path, ".git") for path in (*self._plan.readable, workspace)]
        places += [path for path, entry in self._cleanup.existing() if entry.kind == "file" or "config" in entry.files]
        named = [os.path.normpath(path) for place in dict.fromkeys(places) for path in named_paths(place)]
        # Neither a link in the path nor its target may be changed.
        paths = dict.fromkeys((*named, *map(os.path.realpath, named)))
        return [path for path in paths if path != workspace and is_within(workspace, path)]

    def _pinned_directories(self) -> tuple[str, ...]:
        """Return the repository directory. A renamed directory keeps its mounts, and another could be created in its
        place.
        """
        own = os.path.join(self.policy.workspace, ".git")
        return (own,) if os.path.isdir(own) and not os.path.islink(own) else ()

    def _bubblewrap_command(self, mounts: list[Mount], cwd: str) -> list[str]:
        assert self._bubblewrap is not None
        options = [self._bubblewrap, *bubblewrap_options(mounts), "--unshare-pid", "--unshare-ipc"]
        if not self.policy.network:
            options.append("--unshare-net")
        if os.geteuid() == 0:
            # Root could remount file systems and change kernel settings; the remaining capabilities allow work with
            # files.
            options += ["--cap-drop", "ALL", *(word for name in _CAPABILITIES for word in ("--cap-add", name))]
        return [*options, "--chdir", cwd]


def _program_paths(path: str, entry: GitEntry) -> list[str]:
    """Return the paths of one git entry that name programs."""
    return [path] if entry.kind == "file" else [os.path.join(path, name) for name in PROTECTED_GIT]


def _runtime_directories() -> tuple[str, ...]:
    """Return the directories where servers of this user listen."""
    known = (os.environ.get("XDG_RUNTIME_DIR", ""), "/run/user", f"/tmp/holdfast-{os.getuid()}")
    return tuple(path for path in known if path.startswith("/"))


def _is_setuid(program: str) -> bool:
    """Return whether bubblewrap depends on its set-uid bit, which has no effect after privileges are given up."""
    return os.geteuid() != 0 and bool(os.stat(program).st_mode & stat.S_ISUID)


def _is_socket(path: str) -> bool:
    return stat.S_ISSOCK(os.stat(path).st_mode)


def unavailable_reason(*, has_namespaces: bool, bubblewrap: str | None) -> str:
    """Return why no sandbox is possible here; empty if one is."""
    if bubblewrap is not None:
        return ""
    version = landlock_version()
    if version < _MIN_LANDLOCK:
        return f"bubblewrap is not installed, and this kernel has {'too old a' if version else 'no'} Landlock."
    if not has_namespaces:
        return "bubblewrap is not installed, and Landlock alone protects neither a repository nor the server."
    return ""
