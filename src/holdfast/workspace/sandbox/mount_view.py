"""The file system of a sandboxed command as a list of mounts, the same for bubblewrap and for the guard.

Everything is read-only. Directories in which users, desktops and services keep sockets, keys and temporary files are
empty. Exceptions in them, and all writable paths, are mounted by name.
"""

import contextlib
import glob
import os
import pwd
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.git.git_command import git_program

__all__ = [
    "TOOLCHAINS",
    "Mount",
    "ViewPlan",
    "bound_sockets",
    "bubblewrap_options",
    "build_mounts",
    "credentials_below",
    "home_directories",
    "is_private",
    "is_system",
    "write_gitconfig",
]


Mount = tuple[str, str, str]
"""Operation, path and source, see `guard_main.build_view`."""

_TMP = "/tmp"
_LOST = "/var/tmp"
_PRIVATE = ("/home", "/root", "/run", "/var/run", "/mnt/wslg")
_READABLE_EXCEPTIONS = ("/etc/resolv.conf", "/etc/hosts", "/run/current-system", "/home/linuxbrew/.linuxbrew")
"""Readable although they link into, or are in, a directory that is empty in the sandbox."""
_KERNEL = ("/proc/acpi", "/proc/driver", "/proc/fs", "/proc/mtrr", "/proc/scsi", "/proc/sys", "/proc/sysrq-trigger")
"""A fresh `/proc` can be written where root may."""
_KEYS = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/ssl/private", "/etc/ssh/ssh_host_*_key")
_SERVICES = ("/var/lib/docker", "/var/lib/containerd", "/var/lib/incus", "/var/lib/lxd", "/var/snap/lxd/common/lxd")
"""Directories with sockets of services that start programs for their clients."""
_SYSTEM = frozenset(("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr", "/var"))
_SOCKETS = "/proc/net/unix"


class ViewPlan(msgspec.Struct, frozen=True):
    """The paths of a view. All are real paths.

    `readable` and `writable` are bound from themselves, `home` entries are (path in the home directory, source).
    `workspace` is mounted after them, then `protected` paths become read-only and `pinned` directories mount points,
    so that they cannot be renamed. `hidden` takes precedence over all of them.
    """

    workspace: str
    scratch: str
    homes: tuple[str, ...] = ()
    home_readable: tuple[tuple[str, str], ...] = ()
    home_writable: tuple[tuple[str, str], ...] = ()
    gitconfig: str = ""
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


def is_system(path: str) -> bool:
    """Return whether a directory belongs to the system, or contains one that is empty in the sandbox."""
    return path in _SYSTEM or any(is_within(path, place) for place in (*_PRIVATE, _TMP, _LOST))


def build_mounts(plan: ViewPlan) -> list[Mount]:
    """Return the mounts in order: empty directories, exceptions, the workspace, protections, hidden paths."""
    view = _View()
    _add_empty_directories(view, plan)
    _add_exceptions(view, plan)
    for path in plan.readable:
        view.add("read", path, path)
    for path in (plan.workspace, *plan.writable, *plan.pinned):
        view.add("bind", path, path)
    for path in plan.protected:
        view.add("read", path, path)
    for path in (*plan.hidden, *(found for name in (*_KEYS, *_SERVICES) for found in glob.iglob(name))):
        view.hide(path)
    for path in _KERNEL:
        if os.geteuid() == 0 and os.path.exists(path):
            view.add("freeze", path)
    return view.sealed()


def _add_empty_directories(view: "_View", plan: ViewPlan) -> None:
    """Cover the directories of users and services; those a command can write are not sealed."""
    outside = (*plan.readable, *plan.writable, plan.workspace)
    shared = (os.path.realpath(_TMP), os.path.realpath(_LOST))
    view.add("bind", shared[0], plan.scratch)
    view.empty(shared[1], is_sealed=False)
    for top in _topmost_missing(shared, (*plan.homes, *outside)):
        view.empty(top, is_sealed=True)
    for path in dict.fromkeys(os.path.realpath(path) for path in _PRIVATE if os.path.isdir(path)):
        view.empty(path, is_sealed=True)
    for home in sorted(plan.homes):
        view.empty(home, is_sealed=False)
    for top in _topmost_missing(plan.homes, outside):
        view.empty(top, is_sealed=True)


def _topmost_missing(folders: Iterable[str], paths: Collection[str]) -> Iterator[str]:
    """Yield the topmost directories to be created for paths in directories that commands can write.

    Their other entries must not look writable, because files written there would be lost. In `/tmp` they also prevent
    commands from creating a link at the mount point of the next command.
    """
    tops = {
        os.path.join(folder, path[len(folder) :].strip("/").split("/")[0])
        for folder in folders
        for path in paths
        if path != folder and is_within(folder, path)
    }
    yield from sorted(tops.difference(paths))


def _add_exceptions(view: "_View", plan: ViewPlan) -> None:
    for path, source in plan.home_readable:
        view.add("read", path, source)
    for path, source in plan.home_writable:
        view.add("bind", path, source)
    if plan.gitconfig:
        for home in plan.homes:
            view.add("read", os.path.join(home, ".gitconfig"), plan.gitconfig)
    for path in _READABLE_EXCEPTIONS:
        real = os.path.realpath(path)
        if os.path.exists(real) and not view.shows(real):
            view.add("read", real, real)
        elif os.path.exists(real) and not view.shows(path):
            view.add("read", path, real)


class _View:
    """Builder for the list of mounts."""

    def __init__(self) -> None:
        self._mounts: list[Mount] = []
        self._sealed: list[str] = []

    def add(self, operation: str, path: str, source: str = "") -> None:
        self._mounts.append((operation, path, source))

    def empty(self, path: str, *, is_sealed: bool) -> None:
        self.add("tmpfs", path)
        self._sealed = [other for other in self._sealed if other != path] + [path] * is_sealed

    def shows(self, path: str) -> bool:
        """Return whether a path of the machine is visible: no empty directory or mask covers it."""
        for operation, place, _ in reversed(self._mounts):
            if is_within(place, path):
                return operation in {"bind", "read"} and place != os.path.realpath(_TMP)
        return True

    def hide(self, path: str) -> None:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return
        if stat.S_ISLNK(mode) or not self.shows(path):
            return
        if not stat.S_ISDIR(mode):
            self.add("mask", path)
        elif os.access(path, os.X_OK):
            self.empty(path, is_sealed=True)

    def sealed(self) -> list[Mount]:
        """Return all mounts; empty directories become read-only when every mount point in them exists."""
        return [*self._mounts, *(("seal", path, "") for path in self._sealed)]


def bound_sockets() -> Iterator[str]:
    """Yield the paths of the unix sockets that processes of this network namespace have bound."""
    try:
        with open(_SOCKETS, "rb") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return
    for line in dict.fromkeys(line.partition(b" /")[2] for line in lines):
        path = f"/{os.fsdecode(line)}"
        real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if line and _is_socket(real):
            yield real


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def bubblewrap_options(mounts: Iterable[Mount]) -> list[str]:
    """Return the same view as options of `bwrap`."""
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for operation, path, source in mounts:
        match operation:
            case "tmpfs":
                options += ["--tmpfs", path]
            case "bind":
                options += ["--bind", source, path]
            case "read":
                options += ["--ro-bind", source, path]
            case "mask":
                options += ["--ro-bind", os.devnull, path]
            case "freeze":
                options += ["--ro-bind", path, path]
            case "seal":
                options += ["--remount-ro", path]
            case _:
                raise ValueError(operation)
    return options


# The home directory of a sandboxed command: empty except for toolchains, caches named in the settings, and a git user
# name.

TOOLCHAINS = (".cargo", ".rustup", ".nvm", ".pyenv", ".local/bin", ".local/share/uv", "go")
"""Read-only in the sandbox."""

_NEVER_EXPOSED = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".config/git",
    ".password-store", ".config/gh", ".config/glab-cli", ".config/gcloud", ".config/op", ".config/holdfast",
    ".config/crush", ".config/systemd", ".config/autostart", ".config/containers", ".local/share/holdfast",
    ".local/share/crush", ".local/share/keyrings", ".local/share/containers", ".mozilla", ".thunderbird", ".npmrc",
    ".pypirc", ".pgpass", ".my.cnf", ".vault-token", ".terraform.d", ".bashrc", ".bash_profile", ".bash_login",
    ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".gitconfig", ".claude", ".codex", ".crush",
)  # fmt: skip
"""Keys, credentials, and files executed at the next login: never opened, regardless of the settings."""
_CREDENTIALS = (
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".local/share/uv/credentials",
)
_CREDENTIAL_NAMES = frozenset(
    ("credentials", "credentials.toml", "credentials.json", ".netrc", ".npmrc", ".pypirc", ".git-credentials", ".env")
)
_MAY_HOLD_TOKENS = (".cargo/config", ".cargo/config.toml")
_MAX_ENTRIES = 2_000
_TIMEOUT = 10.0


def home_directories(client: str = "") -> tuple[str, ...]:
    """Return the real home directories of this user: the client's, the server's and the password database's."""
    named = [client, os.environ.get("HOME", "")]
    with contextlib.suppress(KeyError):
        named.append(pwd.getpwuid(os.getuid()).pw_dir)
    real = (os.path.realpath(path) for path in named if path.startswith("/"))
    return tuple(dict.fromkeys(path for path in real if path != "/" and os.path.isdir(path)))


def is_private(path: str, homes: Iterable[str]) -> bool:
    """Return whether a path is, contains or is in a part of a home directory that is never opened."""
    for home in homes:
        if is_within(path, home):
            return True
        never = [os.path.realpath(os.path.join(home, name)) for name in _NEVER_EXPOSED]
        # An exception may contain credential files of a toolchain: those are masked.
        credentials = [os.path.realpath(os.path.join(home, name)) for name in _CREDENTIALS]
        if any(is_within(place, path) for place in (*never, *credentials)):
            return True
        if any(is_within(path, place) for place in never):
            return True
    return False


def credentials_below(home: str, folder: str) -> Iterator[str]:
    """Yield the files and sockets to hide in an exception: named credential files, and any in its upper directories."""
    for name in _CREDENTIALS:
        yield os.path.join(home, name)
    for name in _MAY_HOLD_TOKENS:
        try:
            text = Path(home, name).read_text("utf-8", "replace")
        except OSError:
            continue
        if "token" in text.lower():
            yield os.path.join(home, name)
    yield from _iter_links(folder, depth=2)


def _iter_links(folder: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False)]
    except OSError:
        return
    for entry in found:
        if entry.name.lower() in _CREDENTIAL_NAMES or _is_home_socket(entry):
            yield entry.path
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _iter_links(entry.path, depth - 1)


def _is_home_socket(entry: os.DirEntry[str]) -> bool:
    try:
        if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
            return False
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def write_gitconfig(target: Path, home: str) -> None:
    """Write a git configuration with the user's name and address, and nothing else of the user's own."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    target.touch(mode=0o600)
    for key in ("user.name", "user.email"):
        if value := _git("config", "--global", "--includes", "--get", key, home=home):
            _git("config", "--file", str(target), key, value)


def _git(*arguments: str, home: str = "") -> str:
    """Run git outside of any repository. Returns an empty string if it is missing or fails."""
    program = git_program()
    if program is None:
        return ""
    known = {"PATH": os.path.dirname(program), "GIT_DIR": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    environment = {**known, "HOME": home or "/nonexistent"}
    if config := os.environ.get("XDG_CONFIG_HOME"):
        environment["XDG_CONFIG_HOME"] = config
    try:
        command = [program, *arguments]
        done = subprocess.run(command, capture_output=True, cwd="/", env=environment, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return os.fsdecode(done.stdout.removesuffix(b"\n"))
