"""Undo planning: selects the version that each file returns to. Pure.

Every change of a session is preceded by the version before it. Each undo goes back one more change, because a version
created by an undo counts as the version it restored.
"""

from collections.abc import Sequence

import msgspec

from holdfast.domain.errors import NotFound
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId

__all__ = ["Return", "last_change", "last_run", "plan"]

_NO_RUN = RunId("")


class Return(msgspec.Struct, frozen=True):
    """The return of one file: it is expected to contain `expected` and will contain `target`. `reason` is an
    objection, if there is one; `is_done` means that the file is already in the target state.
    """

    path: str
    expected: FileVersion
    target: FileVersion
    reason: str = ""
    is_done: bool = False


def last_change(versions: Sequence[FileVersion], path: str = "") -> FileVersion | None:
    """Return the last change of a file, or of any file, that was not undone."""
    best: FileVersion | None = None
    for item in [path] if path else _paths(versions):
        history = _of(versions, item)
        changed = [version for version in history[: _position(history) + 1] if version.origin == "tool"]
        if changed and (best is None or changed[-1].updated_at >= best.updated_at):
            best = changed[-1]
    return best


def last_run(versions: Sequence[FileVersion]) -> RunId:
    """Return the run of the last change. Raises `NotFound` if there is none."""
    best = last_change(versions)
    if best is None:
        raise NotFound("There is nothing to take back: this session has changed no file, or all was taken back.")
    return best.run_id


def plan(versions: Sequence[FileVersion], *, path: str = "", run_id: RunId = _NO_RUN) -> list[Return]:
    """Return the files to restore: the last change of one file, or the changes of a run, or of a run in one file."""
    if not run_id:
        history = _of(versions, path)
        if not history:
            raise NotFound("This session has not changed that file: look at its history for those it has.")
        return [_one_change(history)]
    paths = [path] if path else _paths(versions)
    found = [_of_run(history, run_id) for history in (_of(versions, item) for item in paths) if history]
    returns = [item for item in found if item is not None]
    if not returns:
        raise NotFound("That run has changed no file here.")
    return returns


def _paths(versions: Sequence[FileVersion]) -> list[str]:
    return sorted({version.path for version in versions})


def _of(versions: Sequence[FileVersion], path: str) -> list[FileVersion]:
    return sorted((version for version in versions if version.path == path), key=lambda version: version.version)


def _index(history: Sequence[FileVersion], version: int) -> int:
    return next((place for place, item in enumerate(history) if item.version == version), 0)


def _position(history: Sequence[FileVersion]) -> int:
    """Return the position of the current state in the history; an undo counts as the version it restored."""
    place = len(history) - 1
    while place >= 0 and history[place].origin == "undo":
        place = _index(history[:place], history[place].restores)
    return place


def _one_change(history: Sequence[FileVersion]) -> Return:
    position = _position(history)
    changed = next((place for place in range(position, 0, -1) if history[place].origin == "tool"), 0)
    if changed == 0:
        return Return(history[0].path, history[-1], history[-1], is_done=True)
    is_foreign = changed != position
    reason = "it was changed outside of this session after that, and those changes would be lost" if is_foreign else ""
    return Return(history[0].path, history[-1], history[changed - 1], reason)


def _of_run(history: Sequence[FileVersion], run_id: RunId) -> Return | None:
    """Return to the state before all changes of a run. Later changes by others are an objection."""
    own = [place for place, item in enumerate(history) if item.run_id == run_id and item.origin == "tool" and place]
    if not own:
        return None
    first, position = own[0], _position(history)
    target = history[first - 1]
    if position < first:
        return Return(target.path, history[-1], target, is_done=True)
    strangers = [item for item in history[first : position + 1] if item.run_id != run_id or item.origin == "outside"]
    reason = "others changed it after that, and their changes would be lost" if strangers else ""
    return Return(target.path, history[-1], target, reason)
