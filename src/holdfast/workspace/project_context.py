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
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.project_context import ContextFile, GitChanges, GitState, ProjectContext
from holdfast.workspace.files.file_paths import is_within
from holdfast.workspace.files.open_files import read_within
from holdfast.workspace.git.repository import find_repository, read_head, repository_of
from holdfast.workspace.git.status_scan import Scan

__all__ = ["CONTEXT_NAMES", "ContextLoader", "ContextOptions", "context_files", "context_places", "git_state"]

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
_LONGEST_FILE = 32_768
_LONGEST = 98_304
_MOST_FILES = 64
_SESSIONS = 256


class ContextPlace(NamedTuple):
    """A context file, and the directories that its target must be in; none for the user's own files."""

    path: str
    tops: tuple[str, ...] = ()


def context_places(directory: Path, own: Sequence[Path], more: Iterable[str] = ()) -> list[ContextPlace]:
    """Return existing context files: the user's own first, then the project's, from the top of its repository down."""
    top = Path(repository_of(str(directory)) or directory)
    folders = [str(place) for place in (directory, *directory.parents) if place == top or top in place.parents]
    named = [f"{folder}/{name}" for folder in reversed(folders) for name in CONTEXT_NAMES]
    named += (os.path.join(directory, name) for name in more)
    mine = [ContextPlace(found) for place in own for found in _files_at(str(place))]
    theirs = [ContextPlace(found, _tops(place, str(top))) for place in named for found in _files_at(place)]
    return mine + [place for place in theirs if _keeps_inside(place)]


def _tops(place: str, top: str) -> tuple[str, ...]:
    """Return the directories that a project's links may refer to: none outside, because the content is sent to a
    model. A path outside of the project was named by the user; a directory then permits its content.
    """
    return (top, os.path.normpath(place)) if not is_within(top, os.path.normpath(place)) else (top,)


def _keeps_inside(place: ContextPlace) -> bool:
    real = os.path.realpath(place.path)
    return any(is_within(os.path.realpath(folder), real) for folder in place.tops)


def _files_at(place: str) -> Sequence[str]:
    """Return the file, or the files of the directory."""
    try:
        mode = os.stat(place).st_mode
        if stat.S_ISDIR(mode):
            return sorted(item.path for item in os.scandir(place) if item.is_file())[:_MOST_FILES]
    except OSError:
        return ()
    return (place,) if stat.S_ISREG(mode) else ()


def context_files(places: Iterable[ContextPlace]) -> list[ContextFile]:
    """Read context files. Duplicates by file or by content are omitted, and the total size is bounded."""
    found: list[ContextFile] = []
    seen: set[object] = set()
    room = _LONGEST
    for place in places:
        file = _read(place, seen, min(room, _LONGEST_FILE))
        if file is not None:
            found.append(file)
            room -= len(file.text)
        if room <= 0 or len(found) == _MOST_FILES:
            break
    return found


def _read(place: ContextPlace, seen: set[object], room: int) -> ContextFile | None:
    try:
        data, status = read_within(place.path, place.tops or ("/",), 4 * room)
    except OSError:
        return None
    if (status.st_dev, status.st_ino) in seen:
        return None
    text = data.decode("utf-8", "replace").strip()
    seen.add((status.st_dev, status.st_ino))
    if not text or text in seen:
        return None
    seen.add(text)
    return ContextFile(place.path, text[:room], max(0, len(text) - room, status.st_size - 4 * room))


def _fingerprint(places: Iterable[ContextPlace]) -> tuple[tuple[str, int, int], ...]:
    """Return a value that changes with any of the files."""
    found = []
    for place in places:
        with suppress(OSError):
            status = os.stat(place.path)
            found.append((place.path, status.st_mtime_ns, status.st_size))
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
        self.mark: object = None
        self.known: ProjectContext | None = None
        self.scan: Scan | None = None
        self.message: MessageId | None = None


class ContextLoader:
    """Keeps for each session the project context from its beginning."""

    def __init__(
        self,
        directory: str,
        manners: Callable[[], ContextOptions] = ContextOptions,
        today: Callable[[], str] = lambda: "",
        scan: Callable[[], Scan] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._manners = manners
        self._today = today
        self._scan = scan
        self._seen: OrderedDict[SessionId, _Session] = OrderedDict()

    async def load(self, session: SessionId) -> ProjectContext:
        """Return the context of a session. Context files are read again when they have changed."""
        manners = self._manners()
        places = context_places(self._directory, manners.own_files, manners.context_paths)
        mark = (_fingerprint(places), manners.notes, manners.trailer)
        seen = self._seen.setdefault(session, _Session())
        if seen.scan is None and self._scan is not None:
            seen.scan = self._scan()
        known = seen.known
        if known is None or seen.mark != mark:
            known = await self._look_anew(places, manners, known)
            seen.mark, seen.known = mark, known
        self._seen[session] = seen
        self._seen.move_to_end(session)
        if len(self._seen) > _SESSIONS:
            self._seen.popitem(last=False)
        return known

    def git_changes(self, session: SessionId, newest: MessageId) -> Mapping[MessageId, GitChanges]:
        """Return the result of the session's scan by the message it is sent with, `newest` if it is new."""
        seen = self._seen.get(session)
        if seen is None or seen.scan is None or seen.scan.changes is None:
            return {}
        seen.message = seen.message or newest
        return {seen.message: seen.scan.changes}

    async def _look_anew(
        self, places: Sequence[ContextPlace], manners: ContextOptions, known: ProjectContext | None
    ) -> ProjectContext:
        """Read the context again; date and git state remain those of the session's beginning."""
        return ProjectContext(
            str(self._directory),
            f"{platform.system()} {platform.release()} ({platform.machine()})",
            known.date if known else self._today(),
            known.git if known else await asyncio.to_thread(git_state, str(self._directory)),
            tuple(context_files(places)),
            manners.notes,
            manners.trailer,
        )
