"""Decide whether a read-only git command can run in a directory without running another program.

Git itself is queried, in the environment in which the command would run: `git config --list` reads exactly the files
that the command would read, includes and conditions evaluated, and executes nothing. Every key that the repository
sets must be known to be harmless. Keys of the system's and the user's own configuration are not examined. Git
descends into submodules, so each one that is checked out is examined in the same way.

The answer is valid at the time of the query. A process that changes the configuration between query and command can
run programs already.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from subprocess import CompletedProcess

import msgspec

from holdfast.workspace.environment import command_environment
from holdfast.workspace.git import find_git, run_in_place
from holdfast.workspace.git_keys import is_harmless, pattern_of
from holdfast.workspace.git_repository import repository_of
from holdfast.workspace.paths import is_within
from holdfast.workspace.shell_call import Shell

__all__ = ["examined_git", "git_is_quiet", "git_runs_nothing_else"]

_SECONDS = 5.0
_MAX_SUBMODULES = 64
_HOOK = "hooks/post-index-change"
"""The only hook of commands that read: some of them refresh the index."""
_LFS = frozenset(("git-lfs clean -- %f", "git-lfs smudge -- %f", "git-lfs filter-process"))
_OWN_SCOPES = frozenset(("system", "global", "command"))
_GITLINK = re.compile(rb"(?:\A|\0)160000 [0-9a-f]+ \d\t([^\0]+)")


_ANSWER: ContextVar[tuple[str, bool] | None] = ContextVar("git_answer", default=None)
"""Directory examined for the current call, and the result."""


@asynccontextmanager
async def examined_git(
    directory: str, shell: Shell, client: Mapping[str, str], line: str
) -> AsyncGenerator[None, None]:
    """Examine a directory before a shell line is classified. The result is valid within the block.

    The classification is synchronous, and the query takes too long for the event loop.
    """
    environment = shell.environment(directory, client)
    is_quiet = "git" in line and await asyncio.to_thread(git_runs_nothing_else, directory, environment)
    token = _ANSWER.set((directory, is_quiet))
    try:
        yield
    finally:
        _ANSWER.reset(token)


def git_is_quiet(directory: str) -> bool:
    """Return the result for the current call; examine the directory now if there is none."""
    answer = _ANSWER.get()
    if answer is not None and answer[0] == directory:
        return answer[1]
    return git_runs_nothing_else(directory, command_environment(os.environ, {}, cwd=directory))


class _Doubt(Exception):
    """The repository can run a program, or the answer is not known."""


class _Setting(msgspec.Struct, frozen=True):
    scope: str
    origin: str
    key: str
    value: str


def git_runs_nothing_else(directory: str, environment: Mapping[str, str]) -> bool:
    """Return whether git, used for reading in a directory with this environment, starts no other program. Blocks."""
    program = find_git(environment, directory)
    if program is None:
        return False
    try:
        _Check(program).repository(directory, environment)
    except _Doubt:
        return False
    return True


class _Check:
    def __init__(self, program: str) -> None:
        self._program = program
        self._end = time.monotonic() + _SECONDS
        self._submodules = 0

    def repository(self, directory: str, environment: Mapping[str, str], *, is_submodule: bool = False) -> None:
        """Examine a repository and its submodules. Raises `_Doubt` unless it is harmless."""
        done = self._git(directory, environment, "rev-parse", "--is-inside-work-tree", "--git-path", _HOOK)
        nearest = directory if is_submodule else repository_of(directory)
        if nearest is None and done.returncode == 128 and b"not a git repository" in done.stderr:
            return
        inside, _, hook = os.fsdecode(_output(done)).partition("\n")
        if inside != "true" or os.path.lexists(os.path.join(directory, hook)):
            raise _Doubt
        top = os.fsdecode(_output(self._git(directory, environment, "rev-parse", "--show-toplevel")))
        has_own_top = nearest is not None and os.path.realpath(nearest) == os.path.realpath(top)
        for setting in self._settings(directory, environment):
            is_users = setting.scope in _OWN_SCOPES and not _is_inside(setting.origin, directory, top)
            if not is_users and not _is_accepted(setting, has_own_top=has_own_top):
                raise _Doubt
        self._check_submodules(top, environment)

    def _settings(self, directory: str, environment: Mapping[str, str]) -> Iterator[_Setting]:
        listing = self._git(directory, environment, "config", "--list", "-z", "--show-scope", "--show-origin")
        fields = os.fsdecode(_output(listing, end="")).split("\0")
        if len(fields) % 3 != 1 or fields[-1]:
            raise _Doubt
        for scope, origin, text in zip(fields[0:-1:3], fields[1::3], fields[2::3], strict=True):
            key, _, value = text.partition("\n")
            yield _Setting(scope, origin, key, value)

    def _check_submodules(self, top: str, environment: Mapping[str, str]) -> None:
        """Git enters every submodule of the index that has a `.git`, with GIT_DIR set to that."""
        listing = self._git(top, environment, "ls-files", "--stage", "-z")
        for path in map(os.fsdecode, _GITLINK.findall(_output(listing, end=""))):
            place = os.path.join(top, path)
            if not os.path.lexists(os.path.join(place, ".git")):
                continue
            self._submodules += 1
            if self._submodules > _MAX_SUBMODULES:
                raise _Doubt
            inner = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
            self.repository(place, {**inner, "GIT_DIR": ".git"}, is_submodule=True)

    def _git(self, directory: str, environment: Mapping[str, str], *words: str) -> CompletedProcess[bytes]:
        left = self._end - time.monotonic()
        done = run_in_place(self._program, words, directory, environment, left) if left > 0 else None
        if done is None:
            raise _Doubt
        return done


def _output(done: CompletedProcess[bytes], end: str = "\n") -> bytes:
    if done.returncode != 0:
        raise _Doubt
    return done.stdout.removesuffix(end.encode())


def _is_inside(origin: str, directory: str, top: str) -> bool:
    """Return whether a setting is from a file of the project, regardless of the reported scope."""
    kind, _, path = origin.partition(":")
    if kind != "file":
        return False
    real = os.path.realpath(os.path.join(directory, path))
    return any(is_within(os.path.realpath(folder), real) for folder in (directory, top))


def _is_accepted(setting: _Setting, *, has_own_top: bool) -> bool:
    if is_harmless(setting.key):
        return True
    match pattern_of(setting.key):
        case "core.hookspath":
            # The hook itself was searched for in the directory named here.
            return True
        case "core.fsmonitor":
            return setting.value in ("true", "false")
        case "core.worktree":
            # Git writes it for submodules.
            return has_own_top
        case "remote.*.url" | "remote.*.pushurl":
            return "::" not in setting.value
        case "filter.*.clean" | "filter.*.smudge" | "filter.*.process":
            return setting.key.startswith("filter.lfs.") and setting.value in _LFS
        case _:
            return False
