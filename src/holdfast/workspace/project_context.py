"""Project context of a session: context files with instructions for agents, and the state of git.

A session keeps its context until one of the context files changes, so that the provider can cache the beginning of
the conversation. Branch and commit are read at once; changes of the work tree are reported by a background scan that
no prompt waits for.
"""

import asyncio
import os
import platform
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.project_context import ContextFile, GitChanges, GitState, ProjectContext
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.files.safe_open import read_within
from holdfast.workspace.git.background_status import StatusScan
from holdfast.workspace.git.repository import find_repository, read_head, repository_of
from holdfast.workspace.short_calls import ShortCalls

__all__ = [
    "CONTEXT_NAMES",
    "ContextLoader",
    "ContextOptions",
    "find_context_sources",
    "git_state",
    "read_context_files",
]

CONTEXT_NAMES = (
    "AGENTS.md",
    "agents.md",
    "Agents.md",
    "HOLDFAST.md",
    "HOLDFAST.local.md",
    "CLAUDE.md",
    "CLAUDE.local.md",
    "GEMINI.md",
    "gemini.md",
    "CRUSH.md",
    "CRUSH.local.md",
    "Crush.md",
    "Crush.local.md",
    "crush.md",
    "crush.local.md",
    ".github/copilot-instructions.md",
    ".cursorrules",
    ".cursor/rules",
)
_MAX_FILE_TEXT = 32_768
_MAX_TEXT = 98_304
_MAX_FILES = 64
_MAX_SESSIONS = 256


class ContextSource(NamedTuple):
    """A context file, and the directories that its target must be in; none for the user's own files."""

    path: str
    allowed: tuple[str, ...] = ()


def find_context_sources(directory: Path, own: Sequence[Path], more: Iterable[str] = ()) -> list[ContextSource]:
    """Return existing context files: the user's own first, then the project's, from the top of its repository down."""
    top = Path(repository_of(str(directory)) or directory)
    folders = [str(source) for source in (directory, *directory.parents) if source == top or top in source.parents]
    named = [f"{folder}/{name}" for folder in reversed(folders) for name in CONTEXT_NAMES]
    named += (os.path.join(directory, name) for name in more)
    own_sources = [ContextSource(found) for source in own for found in _files_at(str(source))]
    project_sources = [
        ContextSource(found, _allowed_directories(source, str(top))) for source in named for found in _files_at(source)
    ]
    return own_sources + [source for source in project_sources if _is_allowed(source)]


def _allowed_directories(source: str, top: str) -> tuple[str, ...]:
    """Return the directories that a project's links may refer to: none outside, because the content is sent to a
    model. A path outside of the project was named by the user; a directory then permits its content.
    """
    return (top, os.path.normpath(source)) if not is_within(top, os.path.normpath(source)) else (top,)


def _is_allowed(source: ContextSource) -> bool:
    real = os.path.realpath(source.path)
    return any(is_within(os.path.realpath(folder), real) for folder in source.allowed)


def _files_at(source: str) -> Sequence[str]:
    """Return the file, or the files of the directory."""
    try:
        mode = os.stat(source).st_mode
        if stat.S_ISDIR(mode):
            return sorted(item.path for item in os.scandir(source) if item.is_file())[:_MAX_FILES]
    except OSError:
        return ()
    return (source,) if stat.S_ISREG(mode) else ()


def read_context_files(sources: Iterable[ContextSource]) -> list[ContextFile]:
    """Read context files. Duplicates by file or by content are omitted, and the total size is bounded."""
    found: list[ContextFile] = []
    seen: set[object] = set()
    room = _MAX_TEXT
    for source in sources:
        file = _read_file(source, seen, min(room, _MAX_FILE_TEXT))
        if file is not None:
            found.append(file)
            room -= len(file.text)
        if room <= 0 or len(found) == _MAX_FILES:
            break
    return found


def _read_file(source: ContextSource, seen: set[object], room: int) -> ContextFile | None:
    try:
        data, status = read_within(source.path, source.allowed or ("/",), 4 * room)
    except OSError:
        return None
    if (status.st_dev, status.st_ino) in seen:
        return None
    text = data.decode("utf-8", "replace").strip()
    seen.add((status.st_dev, status.st_ino))
    if not text or text in seen:
        return None
    seen.add(text)
    unread = max(0, status.st_size - 4 * room)
    return ContextFile(source.path, text[:room], max(0, len(text) - room) + unread)


def _fingerprint(sources: Iterable[ContextSource]) -> tuple[tuple[str, int, int], ...]:
    """Return a value that changes with any of the files."""
    found = []
    for source in sources:
        with suppress(OSError):
            status = os.stat(source.path)
            found.append((source.path, status.st_mtime_ns, status.st_size))
    return tuple(found)


def git_state(directory: str) -> GitState | None:
    """Return branch and commit; None outside of a repository."""
    if repository_of(directory) is None:
        return None
    repository = find_repository(directory)
    head = read_head(repository) if repository is not None else None
    return GitState() if head is None else GitState(head.branch, head.commit)


class ContextOptions(msgspec.Struct, frozen=True):
    """Settings for the project context: more context files, the trailer of commits."""

    context_paths: tuple[str, ...] = ()
    own_files: tuple[Path, ...] = ()
    trailer: str = ""
    notes: tuple[str, ...] = ()


class _Session:
    """Context sent to one session. `message` is the message that carries the result of the scan."""

    def __init__(self) -> None:
        self.fingerprint: object = None
        self.context: ProjectContext | None = None
        self.scan: StatusScan | None = None
        self.message: MessageId | None = None


class ContextLoader:
    """Keeps for each session the project context from its beginning."""

    def __init__(
        self,
        directory: str,
        options: Callable[[], ContextOptions] = ContextOptions,
        today: Callable[[], str] = lambda: "",
        scan: Callable[[], StatusScan] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._options = options
        self._today = today
        self._scan = scan
        self._git_reads = ShortCalls()
        self._sessions: OrderedDict[SessionId, _Session] = OrderedDict()

    async def load(self, session: SessionId) -> ProjectContext:
        """Return the context of a session. Context files are read again when they have changed."""
        options = self._options()
        sources = find_context_sources(self._directory, options.own_files, options.context_paths)
        fingerprint = (_fingerprint(sources), options.notes, options.trailer)
        seen = self._sessions.setdefault(session, _Session())
        if seen.scan is None and self._scan is not None:
            seen.scan = self._scan()
        context = seen.context
        if context is None or seen.fingerprint != fingerprint:
            context = await self._load_again(sources, options, context)
            seen.fingerprint, seen.context = fingerprint, context
        self._sessions[session] = seen
        self._sessions.move_to_end(session)
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return context

    def git_changes(self, session: SessionId, newest: MessageId) -> Mapping[MessageId, GitChanges]:
        """Return the result of the session's scan by the message it is sent with, `newest` if it is new."""
        seen = self._sessions.get(session)
        if seen is None or seen.scan is None or seen.scan.changes is None:
            return {}
        seen.message = seen.message or newest
        return {seen.message: seen.scan.changes}

    async def _load_again(
        self, sources: Sequence[ContextSource], options: ContextOptions, context: ProjectContext | None
    ) -> ProjectContext:
        """Read the context again; date and git state remain those of the session's beginning."""
        return ProjectContext(
            str(self._directory),
            f"{platform.system()} {platform.release()} ({platform.machine()})",
            context.date if context else self._today(),
            context.git if context else await self._git_state(),
            tuple(read_context_files(sources)),
            options.notes,
            options.trailer,
        )

    async def _git_state(self) -> GitState | None:
        """Return branch and commit. Packed references may be large, so the first read is made in a thread."""
        read = partial(self._git_reads.measure, partial(git_state, str(self._directory)))
        return read() if self._git_reads.is_short else await asyncio.to_thread(read)
