"""What a sandboxed command may not make, because it would be obeyed outside of the sandbox.

What is there can be mounted read-only. What is not there cannot, short of putting something in its place that
everybody would see. So a command can make it, and when the command is over it is taken away: moved to a directory of
the server's, never deleted, as it may be somebody else who made it meanwhile. A fresh repository in which nothing
names a program may stay, and is protected from then on like any other.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.workspace.git_settings import is_bare, is_plain_repository

__all__ = ["Ward", "linked_directories", "protected_in"]

_log = logging.getLogger("holdfast.sandbox")
_DEEPEST = 4
_GIT = ("hooks", "config", "config.worktree", "commondir")
"""In the directory of a repository: what runs commands, or says where else to look for it."""


class Ward:
    """Watches the protected places of one workspace. `kept` is where things go; it is out of reach of every command.

    While a command runs, a note on disk says what was not there before: if the server is killed, the next one looks.
    """

    def __init__(self, workspace: str, names: tuple[str, ...], kept: str) -> None:
        self._workspace = workspace
        self._names = names
        self._kept = Path(kept)
        self._note = Path(f"{kept}.json")
        self._running: list[frozenset[str]] = []
        self._look_back()

    def begin(self) -> Callable[[], str]:
        """A command begins. What is returned is to be called when it is over, and says what was taken away."""
        missing = frozenset(path for path in self._places() if not os.path.lexists(path))
        if not is_bare(self._workspace):
            # A file of that name may be there, and become the head of a repository.
            missing |= {os.path.join(self._workspace, "HEAD")}
        links = {path: os.readlink(path) for path in self._places() if os.path.islink(path)}
        self._running.append(missing)
        self._write_note()

        def over() -> str:
            self._running.remove(missing)
            bent = frozenset(path for path, target in links.items() if _leads(path) != target)
            # Another that still runs, perhaps for days, may have made it as well.
            told = self._take_away(missing.union(bent, *self._running))
            for path in bent:
                _mend(path, links[path])
            self._write_note()
            return told

        return over

    def _places(self) -> Iterator[str]:
        yield from (os.path.join(self._workspace, name) for name in (".git", *self._names))
        for directory in git_directories(self._workspace):
            yield from (os.path.join(directory, name) for name in _GIT)
        # With HEAD, objects and refs in it the workspace itself is a repository.
        yield os.path.join(self._workspace, "HEAD")

    def _take_away(self, missing: frozenset[str]) -> str:
        moved: list[str] = []
        for path in sorted(missing):
            if not os.path.lexists(path) or self._may_stay(path):
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

    def _may_stay(self, path: str) -> bool:
        name = os.path.relpath(path, self._workspace)
        if name == "HEAD":
            return not is_bare(self._workspace)
        return name == ".git" and is_plain_repository(path)

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
            missing = frozenset(msgspec.json.decode(self._note.read_bytes(), type=list[str]))
        except (OSError, msgspec.DecodeError):
            return
        self._take_away(missing & frozenset(self._places()))
        self._write_note()

    def _write_note(self) -> None:
        """Best effort: a disk that refuses does not keep commands from running."""
        try:
            if self._running:
                self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._note.write_bytes(msgspec.json.encode(sorted(frozenset().union(*self._running))))
            else:
                self._note.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._note, error)


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


def protected_in(workspace: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What is there and nobody may change from inside: what git obeys, and the paths named."""
    found: list[str] = []
    for directory in git_directories(workspace):
        # A directory that is not there cannot be mounted, and could be made: git makes it empty too.
        if os.path.exists(os.path.join(directory, "HEAD")):
            os.makedirs(os.path.join(directory, "hooks"), exist_ok=True)
        for place in (directory, *_modules(os.path.join(directory, "modules"))):
            found += [os.path.join(place, name) for name in _GIT]
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
