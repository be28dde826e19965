"""What a sandboxed command may not make, because it would be obeyed outside of the sandbox.

What is there can be mounted read-only. What is not there cannot, short of putting something in its place that
everybody would see. So a command can make it, and when the command is over it is taken away: moved to a directory of
the server's, never deleted, as it may be somebody else who made it meanwhile. A fresh repository in which nothing
names a program may stay, and is protected from then on like any other.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast.workspace.git_settings import is_bare, is_plain, offences, submodules
from holdfast.workspace.paths import is_within

__all__ = ["Ward", "linked_directories", "protected_in"]

_log = logging.getLogger("holdfast.sandbox")
_DEEPEST = 4
_GIT = ("hooks", "config", "config.worktree", "commondir")
"""In the directory of a repository: what runs commands, or says where else to look for it."""


class _State(msgspec.Struct, frozen=True):
    """What is obeyed in a workspace and is there: files and directories, and repositories, known by their inodes. What
    was there when a command began was mounted read-only for it: whoever changed that meanwhile was somebody else.
    """

    there: frozenset[str] = frozenset()
    repositories: Mapping[str, int] = {}

    def new_in(self, later: "_State", root: str, since: int) -> Iterator[str]:
        """What has appeared and must not stay. In a repository that was there only what it did not have before; one
        that was not, but holds what is older than `since`, was somewhere else.
        """
        found = {path for path in later.there - self.there if not (path.endswith("/config") and is_plain(path, root))}
        for place, inode in later.repositories.items():
            if self.repositories.get(place) != inode:
                found -= {os.path.join(place, name) for name in _GIT}
                found.update(path for path in offences(place, root) if _changed(path) >= since)
        yield from found


class Ward:
    """Watches the protected places of one workspace. `kept` is where things go; it is out of reach of every command.

    While a command runs, a note on disk says what was there before: if the server is killed, the next one looks.
    """

    def __init__(self, workspace: str, names: tuple[str, ...], kept: str) -> None:
        self._workspace = workspace
        self._names = names
        self._kept = Path(kept)
        self._note = Path(f"{kept}.json")
        self._running: list[_State] = []
        self._since = _stamp(f"{kept}.since")
        self._look_back()

    def begin(self) -> Callable[[], str]:
        """A command begins. What is returned is to be called when it is over, and says what was taken away."""
        before = self._state()
        links = {path: os.readlink(path) for path in self._places() if os.path.islink(path)}
        self._running.append(before)
        self._write_note()

        def over() -> str:
            bent = {path for path, target in links.items() if _leads(path) != target}
            # Another that still runs, perhaps for days, may have made it as well.
            later = self._state()
            found = bent.union(*(state.new_in(later, self._workspace, self._since) for state in self._running))
            self._running.remove(before)
            told = self._take_away(found)
            for path in bent:
                _mend(path, links[path])
            self._write_note()
            return told

        return over

    def _places(self) -> Iterator[str]:
        return (os.path.join(self._workspace, name) for name in self._names)

    def _state(self) -> _State:
        there = {path for path in self._places() if os.path.lexists(path)}
        own = os.path.join(self._workspace, ".git")
        if os.path.lexists(own) and (os.path.islink(own) or not os.path.isdir(own)):
            there.add(own)
        if is_bare(self._workspace):
            # With HEAD, objects and refs in it the workspace itself is a repository.
            there.add(os.path.join(self._workspace, "HEAD"))
        found, unread = repositories(self._workspace)
        names = (os.path.join(place, name) for place in found for name in _GIT)
        there.update(unread, filter(os.path.lexists, names))
        return _State(frozenset(there), {place: _inode(place) for place in found})

    def _take_away(self, found: set[str]) -> str:
        moved: list[str] = []
        for path in sorted(found):
            if not os.path.lexists(path):
                continue
            target = self._moved(path)
            name = os.path.relpath(path, self._workspace)
            moved.append(f"{name} (now {target})" if target else f"{name} (it could not be moved: remove it)")
        if not moved:
            return ""
        told = (
            f"[Made while the command ran, and taken out of the workspace: {', '.join(moved)}. It would be obeyed"
            " outside of the sandbox. Ask the user if it is needed.]"
        )
        _log.warning("%s", told)
        return told

    def _moved(self, path: str) -> str:
        """Where it is now; nothing if it could not be moved."""
        for number in range(1, 1_000):
            target = self._kept / f"{number}-{os.path.basename(path)}"
            if os.path.lexists(target):
                continue
            try:
                self._kept.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.move(path, target)
            except OSError as error:
                _log.warning("%s could not be moved away: %s", path, error)
                return ""
            return str(target)
        return ""

    def _look_back(self) -> None:
        try:
            before = msgspec.json.decode(self._note.read_bytes(), type=_State)
        except (OSError, msgspec.DecodeError):
            return
        self._take_away(set(before.new_in(self._state(), self._workspace, self._since)))
        self._write_note()

    def _write_note(self) -> None:
        """Best effort: a disk that refuses does not keep commands from running."""
        try:
            if self._running:
                self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._note.write_bytes(msgspec.json.encode(_common(self._running)))
            else:
                self._note.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._note, error)


def _common(states: list[_State]) -> _State:
    """What was there at the beginning of all of them."""
    first, *others = states
    there = first.there.intersection(*(state.there for state in others))
    known = first.repositories.items()
    same = {place: inode for place, inode in known if all(item.repositories.get(place) == inode for item in others)}
    return _State(there, same)


def _stamp(path: str) -> int:
    """When there was a sandbox here for the first time: what is older was not made in it."""
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            Path(path).touch(mode=0o600, exist_ok=False)
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _changed(path: str) -> int:
    """The time that nobody can set back: it also tells when a file was moved."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return time.time_ns()


def _inode(path: str) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def _leads(path: str) -> str | None:
    return os.readlink(path) if os.path.islink(path) else None


def _mend(path: str, target: str) -> None:
    """A link cannot be mounted: what it was is put back."""
    try:
        os.symlink(target, path)
    except OSError as error:
        _log.warning("the link %s cannot be made again: %s", path, error)


def git_directories(workspace: str) -> tuple[str, ...]:
    """The directories of the repository that belong to the workspace: its own, or those of a linked worktree."""
    own = os.path.join(workspace, ".git")
    return ((own,) if os.path.isdir(own) else ()) + linked_directories(workspace)


def linked_directories(workspace: str) -> tuple[str, ...]:
    """Where a linked worktree keeps its repository: outside of the workspace, and still to be written."""
    try:
        kind, _, target = Path(workspace, ".git").read_text("utf-8").partition(":")
        if kind != "gitdir":
            return ()
        own = Path(workspace, target.strip()).resolve()
        named = own / "commondir"
        common = (own / named.read_text("utf-8").strip()).resolve() if named.exists() else own
    except (OSError, UnicodeDecodeError):
        return ()
    return (str(own), str(common)) if own != common else (str(own),)


def repositories(workspace: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The repository of a workspace and those of its submodules; and what cannot be read of what names them."""
    own = git_directories(workspace)
    found: list[str] = [*own]
    unread: list[str] = []
    for directory in own:
        modules, index = (os.path.join(directory, name) for name in ("modules", "index"))
        for place, listed in ((modules, _modules(modules)), (index, submodules(directory, workspace))):
            try:
                found += listed
            except (OSError, ValueError):
                unread.append(place)
    tops = tuple(os.path.realpath(path) for path in (workspace, *own))
    real = dict.fromkeys(map(os.path.realpath, found))
    # What lies elsewhere cannot be written from inside, and is nobody's business here.
    return tuple(path for path in real if any(is_within(top, path) for top in tops)), tuple(unread)


def protected_in(workspace: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What is there and nobody may change from inside: what git obeys, and the paths named."""
    for directory in git_directories(workspace):
        # A directory that is not there cannot be mounted, and could be made: git makes it empty too.
        if os.path.exists(os.path.join(directory, "HEAD")):
            os.makedirs(os.path.join(directory, "hooks"), exist_ok=True)
    found = [os.path.join(place, name) for place in repositories(workspace)[0] for name in _GIT]
    # A linked worktree has a file there, which says where its repository is.
    found += [os.path.join(workspace, path) for path in (*((".git",) * _is_file(workspace)), *more)]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in found if os.path.exists(path)))


def _is_file(workspace: str) -> bool:
    return os.path.isfile(os.path.join(workspace, ".git"))


def _modules(folder: str, depth: int = 0) -> Iterator[str]:
    """The repositories of submodules: git goes into them by itself."""
    if depth > _DEEPEST or not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        place = os.path.join(folder, name)
        if os.path.exists(os.path.join(place, "HEAD")):
            yield place
            yield from _modules(os.path.join(place, "modules"), depth + 1)
        else:
            yield from _modules(place, depth + 1)
