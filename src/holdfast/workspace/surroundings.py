"""Look around in a directory before a session begins: the files that say how to work here, the state of git.

A session keeps what was seen when it began, until one of the context files changes: a provider that has read the
beginning of a conversation need not read it again.
"""

import asyncio
import os
import platform
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.domain.ids import SessionId
from holdfast.domain.surroundings import ContextFile, GitState, Surroundings
from holdfast.workspace.files import read_within
from holdfast.workspace.git_settings import git_is_quiet
from holdfast.workspace.paths import is_within

__all__ = ["CONTEXT_NAMES", "Lookout", "Manners", "context_files", "context_places", "git_root", "git_state"]

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
_MOST_CHANGES = 20
_COMMITS = 3
_SESSIONS = 256
_GIT_SECONDS = 1.0
_QUIET_GIT = (
    "git", "--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
    "-c", "diff.external=", "-c", "core.untrackedCache=false",
)  # fmt: skip


def git_root(directory: Path) -> Path | None:
    """The top of the repository that holds the directory."""
    return next((place for place in (directory, *directory.parents) if (place / ".git").exists()), None)


class ContextPlace(NamedTuple):
    """A file, and the directories that it may lie in if links are followed; none for a file of the user's own."""

    path: str
    tops: tuple[str, ...] = ()


def context_places(directory: Path, own: Sequence[Path], more: Iterable[str] = ()) -> list[ContextPlace]:
    """The files there are: the user's own first, then the project's, from the top of its repository down."""
    top = git_root(directory) or directory
    folders = [str(place) for place in (directory, *directory.parents) if place == top or top in place.parents]
    named = [f"{folder}/{name}" for folder in reversed(folders) for name in CONTEXT_NAMES]
    named += (os.path.join(directory, name) for name in more)
    mine = [ContextPlace(found) for place in own for found in _files_at(str(place))]
    theirs = [ContextPlace(found, _tops(place, str(top))) for place in named for found in _files_at(place)]
    return mine + [place for place in theirs if _keeps_inside(place)]


def _tops(place: str, top: str) -> tuple[str, ...]:
    """A project's links do not lead out of it: whatever they lead to would be told to a model. What is outside
    anyway, the user has named; there too a folder stands for what is in it.
    """
    return (top, os.path.normpath(place)) if not is_within(top, os.path.normpath(place)) else (top,)


def _keeps_inside(place: ContextPlace) -> bool:
    real = os.path.realpath(place.path)
    return any(is_within(os.path.realpath(folder), real) for folder in place.tops)


def _files_at(place: str) -> Sequence[str]:
    """The file, or the files of the folder."""
    try:
        mode = os.stat(place).st_mode
        if stat.S_ISDIR(mode):
            return sorted(item.path for item in os.scandir(place) if item.is_file())[:_MOST_FILES]
    except OSError:
        return ()
    return (place,) if stat.S_ISREG(mode) else ()


def context_files(places: Iterable[ContextPlace]) -> list[ContextFile]:
    """What they say. What is the same file under two names, or says the same, is told once; all is bounded."""
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
    """Changes when one of the files does."""
    found = []
    for place in places:
        with suppress(OSError):
            status = os.stat(place.path)
            found.append((place.path, status.st_mtime_ns, status.st_size))
    return tuple(found)


async def git_state(directory: Path) -> GitState | None:
    """None outside of a repository, or if git is missing or too slow: a prompt does not wait for it. None as well
    where the repository's settings name programs: nobody has agreed to run them.
    """
    if git_root(directory) is None or not git_is_quiet(str(directory)):
        return None
    try:
        async with asyncio.timeout(_GIT_SECONDS):
            status, log = await asyncio.gather(
                _git(directory, "status", "--short", "--branch", "--ignore-submodules=all"),
                _git(directory, "log", "--oneline", "--no-decorate", f"-{_COMMITS}"),
            )
    except (OSError, TimeoutError):
        return None
    head, *changes = status or [""]
    branch = head.removeprefix("## ").partition("...")[0].removeprefix("No commits yet on ")
    shown = tuple(line[:200] for line in changes[:_MOST_CHANGES])
    return GitState(branch, shown, len(changes) - len(shown), tuple(line[:200] for line in log))


async def _git(directory: Path, *arguments: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    child = await asyncio.create_subprocess_exec(
        *_QUIET_GIT,
        *arguments,
        cwd=directory,
        env={**environment, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        output, _ = await child.communicate()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return output.decode("utf-8", "replace").splitlines() if child.returncode == 0 else []


class Manners(msgspec.Struct, frozen=True):
    """What the settings say about it: more context files, the line below commits."""

    context_paths: tuple[str, ...] = ()
    own_files: tuple[Path, ...] = ()
    trailer: str = ""
    notes: tuple[str, ...] = ()


class Lookout:
    """Remembers for each session what was seen when it began."""

    def __init__(
        self, directory: str, manners: Callable[[], Manners] = Manners, today: Callable[[], str] = lambda: ""
    ) -> None:
        self._directory = Path(directory)
        self._manners = manners
        self._today = today
        self._seen: OrderedDict[SessionId, tuple[object, Surroundings]] = OrderedDict()

    async def look(self, session: SessionId) -> Surroundings:
        manners = self._manners()
        places = context_places(self._directory, manners.own_files, manners.context_paths)
        mark = (_fingerprint(places), manners.notes, manners.trailer)
        before, known = self._seen.get(session, (None, None))
        if known is None or before != mark:
            known = await self._look_anew(places, manners, known)
            self._seen[session] = (mark, known)
            if len(self._seen) > _SESSIONS:
                self._seen.popitem(last=False)
        self._seen.move_to_end(session)
        return known

    async def _look_anew(
        self, places: Sequence[ContextPlace], manners: Manners, known: Surroundings | None
    ) -> Surroundings:
        """The date and the state of git stay those of the session's beginning."""
        return Surroundings(
            str(self._directory),
            f"{platform.system()} {platform.release()} ({platform.machine()})",
            known.date if known else self._today(),
            known.git if known else await git_state(self._directory),
            tuple(context_files(places)),
            manners.notes,
            manners.trailer,
        )
