"""Compare the work tree with its repository in the background: changed files and the last commits.

This takes seconds in a large repository, so no prompt waits for it. All sessions of a workspace share a scan; a
session that starts more than `_MAX_AGE` seconds after the last scan starts another.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from holdfast.domain.project_context import GitChanges
from holdfast.tasks import TaskOwner
from holdfast.workspace.git.git_command import PreparedGit, PrivateGit
from holdfast.workspace.process.guard_client import CannotStart
from holdfast.workspace.process.piped_process import Spawn, run_child, split_records

__all__ = ["GitScan", "StatusScan"]

_SECONDS = 20.0
_MAX_AGE = 60.0
_MAX_FILES = 20
_MAX_COUNTED = 100_000
_MAX_LINE = 200
_COMMITS = 3
_STATUS = ("status", "--porcelain", "-z", "--ignore-submodules=all", "--no-renames", "--untracked-files=normal")
_LOG = ("log", "-z", f"-{_COMMITS}", "--format=%h %s", "--no-show-signature", "--no-mailmap", "--no-notes")


class StatusScan(msgspec.Struct):
    """One scan. `changes` is None until it is done, and if it failed."""

    started: float
    changes: GitChanges | None = None
    is_done: bool = False


class GitScan:
    """The scans of one workspace."""

    def __init__(
        self, git: PrivateGit, spawn: Spawn, directory: str, environment: Mapping[str, str], seconds: float = _SECONDS
    ) -> None:
        self._git = git
        self._spawn = spawn
        self._directory = directory
        self._environment = environment
        self._seconds = seconds
        self._tasks = TaskOwner()
        self._latest: StatusScan | None = None

    def current(self) -> StatusScan:
        """Return the scan that is running or finished a short time ago; start one if there is none. Never waits."""
        scan = self._latest
        if scan is None or (scan.is_done and time.monotonic() - scan.started > _MAX_AGE):
            scan = self._latest = StatusScan(time.monotonic())
            self._tasks.start(self._run(scan), name=f"git scan of {self._directory}")
        return scan

    async def finished(self) -> None:
        """Wait until no scan is running; not for prompts."""
        await self._tasks.drain()

    async def close(self) -> None:
        """Stop a scan that is running."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    async def _run(self, scan: StatusScan) -> None:
        try:
            async with self._git.slots, asyncio.timeout(self._seconds):
                scan.changes = await self._changes()
        except (OSError, TimeoutError, CannotStart):
            # The model can still run git itself.
            pass
        finally:
            scan.is_done = True

    async def _changes(self) -> GitChanges | None:
        place = (self._directory, self._environment, self._directory)
        git = await asyncio.to_thread(self._git.prepare, *place)
        if git is None or git.head is None:
            return None
        files: list[str] = []
        count = 0
        async with aclosing(self._records(git, *_STATUS)) as records:
            async for record in records:
                count += 1
                if count <= _MAX_FILES:
                    files.append(_one_line(record))
                elif count >= _MAX_COUNTED:
                    break
        commits: list[str] = []
        if git.head.commit:
            async with aclosing(self._records(git, *_LOG, git.head.commit, "--")) as records:
                commits = [_one_line(record) async for record in records]
        return GitChanges(tuple(files), count - len(files), tuple(commits))

    async def _records(self, git: PreparedGit, *words: str) -> AsyncGenerator[bytes, None]:
        """Yield the NUL-terminated records of a command. Raises `OSError` if git reports a failure."""
        command = git.command(*words, in_background=True)
        async with run_child(self._spawn, command, self._directory, git.environment) as child:
            async with aclosing(split_records(child.child.stdout, b"\0")) as records:
                async for record in records:
                    yield record
            code, complaint = await child.end()
            if code != 0:
                raise OSError(complaint)


def _one_line(record: bytes) -> str:
    """Sanitize a file name or subject, which is untrusted: no control characters, nothing that resembles our tags."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in record.decode("utf-8", "replace"))
    text = text.replace("<", "&lt;")
    return text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}…"
