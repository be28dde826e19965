"""Reads files of git directories without running git in them: small regular files, never through a symbolic link.

Settings are listed by git itself, from standard input, outside of any repository: `git config --list` executes nothing
and reads no other file, and no other parser has to agree with git's.
"""

import os
import shutil
import stat
import subprocess

__all__ = ["MAX_FILE", "git_program", "list_settings", "read_bytes", "read_path", "resolve_gitfile"]

MAX_FILE = 1 << 20
_TIMEOUT = 10.0
_PREFIX = b"gitdir: "


def git_program() -> str | None:
    """Return git from the server's own PATH, without relative entries."""
    path = ":".join(entry for entry in os.environ.get("PATH", os.defpath).split(":") if entry.startswith("/"))
    return shutil.which("git", path=path)


def read_bytes(path: str) -> bytes:
    """Return the content of a regular file. Raises `OSError`; a link, a device or a large file is an error too."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a regular file", path)
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise OSError(0, "too large", path)
    return data


def read_path(path: str) -> str:
    """Return the path that a one-line file such as `commondir` or `gitdir` names."""
    data = read_bytes(path)
    return os.fsdecode(data.removesuffix(b"\n"))


def resolve_gitfile(path: str) -> str | None:
    """Return the directory that a `.git` file names, or None unless it has exactly the form git writes."""
    try:
        data = read_bytes(path)
    except OSError:
        return None
    target = data.removeprefix(_PREFIX).removesuffix(b"\n")
    if not data.startswith(_PREFIX) or not target or target != target.strip() or b"\n" in target or b"\0" in target:
        return None
    return os.path.realpath(os.path.join(os.path.dirname(path), os.fsdecode(target)))


def list_settings(data: bytes) -> list[tuple[str, str | None]] | None:
    """Return keys and values of a configuration file, or None if git is missing or cannot read it."""
    program = git_program()
    if program is None:
        return None
    environment = {
        "GIT_DIR": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "PATH": os.path.dirname(program),
    }
    arguments = [program, "config", "--file", "-", "--no-includes", "--list", "-z"]
    try:
        done = subprocess.run(
            arguments, input=data, capture_output=True, cwd="/", env=environment, timeout=_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    entries = os.fsdecode(done.stdout).split("\0")[:-1]
    return [(key, value if separator else None) for key, separator, value in (e.partition("\n") for e in entries)]
