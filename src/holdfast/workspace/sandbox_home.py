"""The home directory of a sandboxed command: empty except for toolchains, caches named in the settings, and a git
user name.

The home directory contains keys, credentials and sockets under names that cannot be listed completely. So everything
is left out, and the exceptions are listed. Paths that an exception may never open are listed too, because a setting
or a link can name anything.
"""

import contextlib
import os
import pwd
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.workspace.git import git_program
from holdfast.workspace.paths import is_within

__all__ = ["TOOLCHAINS", "credentials_below", "home_directories", "is_private", "write_gitconfig"]

TOOLCHAINS = (".cargo", ".rustup", ".nvm", ".pyenv", ".local/bin", ".local/share/uv", "go")
"""Read-only in the sandbox."""

_NEVER = (
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
        never = [os.path.realpath(os.path.join(home, name)) for name in _NEVER]
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
    yield from _found_in(folder, depth=2)


def _found_in(folder: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            found = [entry for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False)]
    except OSError:
        return
    for entry in found:
        if entry.name.lower() in _CREDENTIAL_NAMES or _is_socket(entry):
            yield entry.path
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _found_in(entry.path, depth - 1)


def _is_socket(entry: os.DirEntry[str]) -> bool:
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
