"""Run git. No other module starts it.

The configuration of a repository can name programs (filters, monitors, hooks, pagers, helpers ...), and git finds
repositories in more places than can be listed. So the commands of this module never let git search for a repository:
they use a private git directory with our own configuration, a copy of the index, and read access to the repository's
objects. The repository's configuration is then never read, in any layout.

`run_in_place` is the exception: it runs git where a user's command would run it, to query its configuration.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.workspace.files.safe_open import stream_of
from holdfast.workspace.git.repository import GitHead, Repository, find_repository, read_head, read_regular
from holdfast.workspace.process.piped_process import find_program

__all__ = ["PreparedGit", "PrivateGit", "find_git", "git_program", "list_settings", "run_in_place"]

_MAX_INDEX = 512 << 20
_MAX_EXCLUDE = 1 << 20
_MAX_SHALLOW = 16 << 20
_MAX_REPOSITORIES = 32
_MAX_DATA_KIB = 2 << 20
"""Memory limit of a git process: a file of the repository may be a link to an endless device."""
_CONCURRENT_SCANS = 2
_LISTING_TIMEOUT = 10.0
_EMPTY_BRANCH = "ref: refs/heads/unborn\n"
_CONFIG = """\
[core]
	repositoryFormatVersion = {version}
	bare = false
	fsmonitor = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	untrackedCache = false
	splitIndex = false
	preloadIndex = false
{platform}{excludes}[gc]
	auto = 0
[maintenance]
	auto = false
[protocol]
	allow = never
[submodule]
	recurse = false
[diff]
	ignoreSubmodules = all
[grep]
	fullName = false
	fallbackToNoIndex = false
"""
_DARWIN = "\tignoreCase = true\n\tprecomposeUnicode = true\n"
"""Written by `git init` there, because the file system requires it."""
_LIMITED = f'ulimit -d {_MAX_DATA_KIB} 2>/dev/null; exec "$@"'
_AT_LOW_PRIORITY = f'[ -x /usr/bin/nice ] && set -- /usr/bin/nice -n 10 "$@"; {_LIMITED}'


def find_git(environment: Mapping[str, str], root: str) -> str | None:
    """Return the user's git; never one inside the workspace."""
    return find_program("git", environment, root)


def git_program() -> str | None:
    """Return git from the server's own PATH, without relative entries."""
    path = ":".join(entry for entry in os.environ.get("PATH", os.defpath).split(":") if entry.startswith("/"))
    return shutil.which("git", path=path)


def list_settings(data: bytes) -> list[tuple[str, str | None]] | None:
    """Return keys and values of a configuration file, or None if git is missing or cannot read it.

    Git reads it from standard input, outside of any repository: that executes nothing and reads no other file.
    """
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
            arguments, input=data, capture_output=True, cwd="/", env=environment, timeout=_LISTING_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    entries = os.fsdecode(done.stdout).split("\0")[:-1]
    return [(key, value if separator else None) for key, separator, value in (e.partition("\n") for e in entries)]


def run_in_place(
    program: str, words: Sequence[str], directory: str, environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[bytes] | None:
    """Run git in a directory, with the repository that git finds there; None if it does not end in time. Blocks.

    Only for subcommands that execute nothing with any configuration of the repository: `config` and `rev-parse`, and
    `ls-files` once the configuration is known to be harmless.
    """
    command = [program, "--no-pager", "-c", "core.fsmonitor=false", *words]
    fixed = {"LC_ALL": "C", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(
            command,
            cwd=directory,
            env={**environment, **fixed},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


class PreparedGit(msgspec.Struct, frozen=True):
    """A private git directory, ready for commands in the work tree `top`. `head` is None if its form is unusual."""

    program: str
    top: str
    head: GitHead | None
    environment: Mapping[str, str]

    def command(self, *words: str, in_background: bool = False) -> list[str]:
        """Return the argument list of a git command; to be started with `environment`, below `top`.

        `in_background`: no request waits for it, so it must not compete with the server for the processors.
        """
        limited = ("/bin/sh", "-c", _AT_LOW_PRIORITY if in_background else _LIMITED, "sh")
        return [*limited, self.program, "--no-pager", "--literal-pathspecs", *words]


class _Source(msgspec.Struct, frozen=True):
    """Everything a private git directory is made from. An equal value means that the directory is still valid."""

    repository: Repository
    head: GitHead | None
    index: tuple[int, ...] | None
    exclude: bytes
    shallow: bytes
    excludes_file: str


class _Kept(msgspec.Struct):
    source: _Source
    directory: str
    previous: str


class PrivateGit:
    """The private git directories of a server, below one directory of its data. Those of an earlier server are
    removed before the first one is made. Methods block; they may be called in any thread.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._number = 0
        self.slots = asyncio.Semaphore(_CONCURRENT_SCANS)
        """Bounds how many work trees are compared at the same time."""

    def prepare(self, folder: str, environment: Mapping[str, str], root: str) -> PreparedGit | None:
        """Return git for the repository that contains a directory; None if there is none, its layout is unusual, or
        git is not installed. A directory made earlier is used again as long as index and HEAD are unchanged.
        """
        program = find_git(environment, root)
        repository = find_repository(folder)
        if program is None or repository is None:
            return None
        try:
            with self._lock:
                source = _source(repository, environment)
                directory = self._directory_for(source)
        except (OSError, ValueError):
            return None
        return PreparedGit(program, repository.top, source.head, _environment(directory, source, environment))

    def close(self) -> None:
        """Remove every private directory."""
        with self._lock:
            self._kept.clear()
            self._number = 0
            shutil.rmtree(self._directory, ignore_errors=True)

    def _directory_for(self, source: _Source) -> str:
        key = source.repository.git_dir
        kept = self._kept.get(key)
        if kept is not None and kept.source == source and os.path.isdir(kept.directory):
            self._kept.move_to_end(key)
            return kept.directory
        if not self._number:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._number += 1
        name = f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:16]}.{self._number}"
        directory = os.path.join(self._directory, name)
        try:
            _create_directory(directory, source)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        # A command may be about to start with the directory before this one: it stays until the next change.
        if kept is not None:
            shutil.rmtree(kept.previous, ignore_errors=True)
        self._kept[key] = _Kept(source, directory, kept.directory if kept else "")
        self._kept.move_to_end(key)
        if len(self._kept) > _MAX_REPOSITORIES:
            _, oldest = self._kept.popitem(last=False)
            for path in (oldest.directory, oldest.previous):
                shutil.rmtree(path, ignore_errors=True)
        return directory


def _source(repository: Repository, environment: Mapping[str, str]) -> _Source:
    """Raises `OSError` or `ValueError` if a file has an unusual form."""
    index = os.path.join(repository.git_dir, "index")
    try:
        status: os.stat_result | None = os.lstat(index)
    except FileNotFoundError:
        status = None
    if status is not None and (not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_INDEX):
        raise ValueError(index)
    shallow = _optional(os.path.join(repository.common_dir, "shallow"), _MAX_SHALLOW)
    exclude = _optional(os.path.join(repository.common_dir, "info", "exclude"), _MAX_EXCLUDE)
    return _Source(
        repository, read_head(repository), _file_identity(status), exclude, shallow, _excludes_file(environment)
    )


def _optional(path: str, limit: int) -> bytes:
    try:
        return read_regular(path, limit)
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _file_identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _excludes_file(environment: Mapping[str, str]) -> str:
    """Return git's default for `core.excludesFile`; it is named explicitly because HOME is replaced."""
    config = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", ""), ".config")
    path = os.path.join(config, "git", "ignore")
    return path if os.path.isabs(path) and path.isprintable() and os.path.isfile(path) else ""


def _create_directory(directory: str, source: _Source) -> None:
    # Only this one: a data directory that has been moved away must not be created again.
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.dirname(directory), 0o700)
    for name in ("", "info", "objects", "refs"):
        os.mkdir(os.path.join(directory, name), 0o700)
    quoted = source.excludes_file.replace("\\", "\\\\").replace('"', '\\"')
    excludes = f'\texcludesFile = "{quoted}"\n' if quoted else ""
    commit = source.head.commit if source.head else ""
    config = _CONFIG.format(
        version=1 if len(commit) == 64 else 0, platform=_DARWIN if sys.platform == "darwin" else "", excludes=excludes
    )
    if len(commit) == 64:
        config += "[extensions]\n\tobjectFormat = sha256\n"
    files = {
        "config": config.encode(),
        "HEAD": f"{commit}\n".encode() if commit else _EMPTY_BRANCH.encode(),
        "info/exclude": source.exclude,
        "shallow": source.shallow,
    }
    for name, content in files.items():
        if content:
            with open(os.path.join(directory, name), "xb") as file:
                file.write(content)
    if source.index is not None:
        _copy_index(os.path.join(source.repository.git_dir, "index"), os.path.join(directory, "index"), source.index)


def _copy_index(path: str, target: str, stamp: tuple[int, ...]) -> None:
    """Copy the index. Raises `ValueError` if the file was replaced meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with stream_of(descriptor) as reading, open(target, "xb") as writing:
        if _file_identity(os.fstat(descriptor)) != stamp:
            raise ValueError(path)
        left = stamp[2]
        while left and (piece := reading.read(min(left, 1 << 20))):
            writing.write(piece)
            left -= len(piece)
        if left or _file_identity(os.fstat(descriptor)) != stamp:
            raise ValueError(path)
    # Git considers an entry that is as new as the index possibly changed and compares its content.
    os.utime(target, ns=(stamp[3], stamp[3]))


def _environment(directory: str, source: _Source, environment: Mapping[str, str]) -> dict[str, str]:
    """Every variable that names a repository, a configuration or a program is removed or points to the private one."""
    kept = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    return kept | {
        "HOME": directory,
        "XDG_CONFIG_HOME": directory,
        "LC_ALL": "C.UTF-8",
        "GIT_DIR": directory,
        "GIT_WORK_TREE": source.repository.top,
        "GIT_INDEX_FILE": os.path.join(directory, "index"),
        "GIT_OBJECT_DIRECTORY": os.path.join(source.repository.common_dir, "objects"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
    }
