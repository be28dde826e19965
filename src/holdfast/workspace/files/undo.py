"""Undo the changes of a session: all selected files, or none of them.

`plan` selects, from the stored history alone, the version that each file returns to. `undo` then compares the files on
disk with the history, prepares all of them without effect, applies all, and records the result; if any step or the
record fails, all are reverted.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.domain.errors import BadRequest, NotFound, ToolError
from holdfast.domain.files import FileVersion, UndoneFile, UndoReport, UndoRequest
from holdfast.domain.ids import RunId
from holdfast.domain.line_diff import unified_diff
from holdfast.domain.store_operations import AddFile, Operation
from holdfast.tasks import run_to_completion
from holdfast.workspace.files.atomic_write import AtomicWrite, remove_abandoned
from holdfast.workspace.files.path_strings import join_path
from holdfast.workspace.files.safe_open import FileLocation, digest_file, locate, read_whole_file, status_of
from holdfast.workspace.files.text_encoding import TextFormat, decode, placeholder

__all__ = ["FileRestore", "last_change", "last_run", "plan", "recorded_path", "undo"]

_NO_RUN = RunId("")
_MAX_TEXT_SIZE = 64 * 1024 * 1024


class FileRestore(msgspec.Struct, frozen=True):
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
        history = _history_of(versions, item)
        changed = [version for version in history[: _position(history) + 1] if version.origin == "tool"]
        if changed and (best is None or changed[-1].updated_at >= best.updated_at):
            best = changed[-1]
    return best


def last_run(versions: Sequence[FileVersion]) -> RunId:
    """Return the run of the last change. Raises `NotFound` if there is none."""
    best = last_change(versions)
    if best is None:
        raise NotFound("There is nothing to undo: this session has changed no file, or all changes are undone.")
    return best.run_id


def plan(versions: Sequence[FileVersion], *, path: str = "", run_id: RunId = _NO_RUN) -> list[FileRestore]:
    """Return the files to restore: the last change of one file, or the changes of a run, or of a run in one file."""
    if not run_id:
        history = _history_of(versions, path)
        if not history:
            raise NotFound("This session has not changed that file: see its history.")
        return [_before_last_change(history)]
    paths = [path] if path else _paths(versions)
    histories = (_history_of(versions, item) for item in paths)
    found = [_before_run(history, run_id) for history in histories if history]
    returns = [item for item in found if item is not None]
    if not returns:
        raise NotFound("That run has changed no file here.")
    return returns


def _paths(versions: Sequence[FileVersion]) -> list[str]:
    return sorted({version.path for version in versions})


def _history_of(versions: Sequence[FileVersion], path: str) -> list[FileVersion]:
    return sorted((version for version in versions if version.path == path), key=lambda version: version.version)


def _index(history: Sequence[FileVersion], version: int) -> int:
    return next((index for index, item in enumerate(history) if item.version == version), 0)


def _position(history: Sequence[FileVersion]) -> int:
    """Return the position of the current state in the history; an undo counts as the version it restored."""
    index = len(history) - 1
    while index >= 0 and history[index].origin == "undo":
        index = _index(history[:index], history[index].restores)
    return index


def _before_last_change(history: Sequence[FileVersion]) -> FileRestore:
    position = _position(history)
    changed = next((index for index in range(position, 0, -1) if history[index].origin == "tool"), 0)
    if changed == 0:
        return FileRestore(history[0].path, history[-1], history[-1], is_done=True)
    is_foreign = changed != position
    reason = "it was changed outside of this session after that, and those changes would be lost" if is_foreign else ""
    return FileRestore(history[0].path, history[-1], history[changed - 1], reason)


def _before_run(history: Sequence[FileVersion], run_id: RunId) -> FileRestore | None:
    """Return to the state before all changes of a run. Later changes by others are an objection."""
    own = [index for index, item in enumerate(history) if item.run_id == run_id and item.origin == "tool" and index]
    if not own:
        return None
    first, position = own[0], _position(history)
    target = history[first - 1]
    if position < first:
        return FileRestore(target.path, history[-1], target, is_done=True)
    others = [item for item in history[first : position + 1] if item.run_id != run_id or item.origin == "outside"]
    reason = "others changed it after that, and their changes would be lost" if others else ""
    return FileRestore(target.path, history[-1], target, reason)


class _FileState(msgspec.Struct, frozen=True):
    """Present state of a file; without a status it does not exist."""

    location: FileLocation
    status: os.stat_result | None = None
    text: str = ""
    text_format: TextFormat = TextFormat()
    is_text: bool = True


async def undo(
    request: UndoRequest,
    versions: Sequence[FileVersion],
    *,
    root: str,
    record: Callable[[tuple[Operation, ...]], Awaitable[object]],
    now_ms: Callable[[], int],
    new_id: Callable[[], str],
) -> UndoReport:
    """Execute an undo request on the files of one session. Each restored file gets a new version, stored by `record`.
    If a file has changed since, the whole request is refused unless it is forced.
    """
    returns = _plan_request(request, versions, root)
    if not request.dry_run:
        # A server that is killed during an undo leaves temporary files; the user's next attempt removes them.
        await asyncio.to_thread(_remove_abandoned, versions)
    states = [await asyncio.to_thread(_read_state, root, item.path) for item in returns]
    checked = [_check(item, now, force=request.force) for item, now in zip(returns, states, strict=True)]
    refused = any(item.outcome == "refused" for item in checked)
    if request.dry_run or refused:
        return UndoReport(tuple(checked), is_done=False)
    steps = [
        _Step(item, now)
        for item, now, verdict in zip(returns, states, checked, strict=True)
        if verdict.outcome != "unchanged"
    ]
    new = [_versions(step.item, step.now, now_ms() // 1000, new_id) for step in steps]
    if steps:
        # A caller that is cancelled, such as the request of a client that has gone, must not leave half an undo.
        await run_to_completion(_apply(steps, new, record), name="undo")
    return UndoReport(tuple(checked), is_done=True)


async def _apply(
    steps: Sequence["_Step"],
    versions: Sequence[tuple[FileVersion, FileVersion]],
    record: Callable[[tuple[Operation, ...]], Awaitable[object]],
) -> None:
    """Make the steps and record them; revert all of them if the record is refused."""
    # Store the present state first: it may be in no history yet.
    await record(tuple(AddFile(before) for before, _ in versions))
    await asyncio.to_thread(_execute, steps)
    try:
        await record(tuple(AddFile(after) for _, after in versions))
    except Exception:
        await asyncio.to_thread(_revert, steps)
        raise
    await asyncio.to_thread(_finish_all, steps)


def _remove_abandoned(versions: Sequence[FileVersion]) -> None:
    for folder in sorted({os.path.dirname(version.path) for version in versions}):
        remove_abandoned(folder)


def _plan_request(request: UndoRequest, versions: Sequence[FileVersion], root: str) -> list[FileRestore]:
    path = recorded_path(request.path, versions, root) if request.path else ""
    run_id = request.run_id or (RunId("") if path else last_run(versions))
    return plan(versions, path=path, run_id=run_id)


def recorded_path(given: str, versions: Sequence[FileVersion], root: str) -> str:
    """Return the path of a file by the name it had when it was changed: it may be a link by now."""
    try:
        named = join_path(root, given)
        real = locate(root, given).path
    except ToolError as error:
        raise BadRequest(str(error)) from None
    return named if any(version.path == named for version in versions) else real


def _read_state(root: str, path: str) -> _FileState:
    location = locate(root, path)
    try:
        if location.path != path:
            raise ToolError(f"{path} is a link now, or below one: remove the link first.")
        if status_of(location) is None:
            return _FileState(location)
        try:
            seen = read_whole_file(location, _MAX_TEXT_SIZE)
            text, text_format = decode(seen.data, location.name)
            return _FileState(location, seen.status, text, text_format)
        except ToolError:
            digest, status = digest_file(location)
            return _FileState(location, status, placeholder(digest.size, digest.text), is_text=False)
    except ToolError as error:
        raise BadRequest(str(error)) from None


def _check(item: FileRestore, now: _FileState, *, force: bool) -> UndoneFile:
    target, expected = item.target, item.expected
    is_missing = now.status is None
    if item.is_done or (now.text == target.content and is_missing == target.is_missing):
        return UndoneFile(item.path, "unchanged", target.version)
    difference = unified_diff(now.text, target.content, item.path).text
    reason = item.reason
    if now.text != expected.content or is_missing != expected.is_missing:
        reason = "it was removed since" if is_missing else "it has changed since"
        difference = unified_diff(expected.content, now.text, item.path).text
        if not now.is_text:
            # No version could restore it.
            reason += " and is not a text file: move it away first"
            return UndoneFile(item.path, "refused", target.version, difference, reason)
    if reason and not force:
        return UndoneFile(item.path, "refused", target.version, difference, reason)
    return UndoneFile(item.path, "removed" if target.is_missing else "restored", target.version, difference)


def _versions(
    item: FileRestore, now: _FileState, seconds: int, new_id: Callable[[], str]
) -> tuple[FileVersion, FileVersion]:
    """Return the version of the present state, which may not be stored yet, and the version of the target."""
    target = item.target
    common = {"created_at": seconds, "updated_at": seconds, "run_id": RunId(""), "restores": -1}
    before = msgspec.structs.replace(
        target, id=new_id(), content=now.text, is_missing=now.status is None, origin="outside", **common
    )
    common["restores"] = target.version
    return before, msgspec.structs.replace(target, id=new_id(), origin="undo", **common)


class _Step:
    """The return of one file in two phases: prepared without effect, then made."""

    def __init__(self, item: FileRestore, now: _FileState) -> None:
        self.item = item
        self.now = now
        self._write = AtomicWrite(now.location, now.status)

    def prepare(self) -> None:
        if not self.item.target.is_missing:
            self._write.open()
            self._write.add(self.now.text_format.encode(self.item.target.content))
            self._write.finish()

    def apply(self) -> None:
        if self.item.target.is_missing:
            self._write.set_aside()
        else:
            self._write.publish()

    def revert(self) -> None:
        if self.item.target.is_missing:
            self._write.restore()
        else:
            self._write.revert(None if self.now.status is None else self.now.text_format.encode(self.now.text))

    def finish(self) -> None:
        self._write.discard()
        self._write.sync()

    def discard(self) -> None:
        self._write.discard()


def _execute(steps: Sequence[_Step]) -> None:
    """Make all steps. Raises `BadRequest` if a file has just been changed; all files are then restored."""
    applied: list[_Step] = []
    try:
        for step in steps:
            step.prepare()
        for step in steps:
            step.apply()
            applied.append(step)
    except ToolError as error:
        _revert(applied)
        raise BadRequest(str(error)) from None
    finally:
        if len(applied) < len(steps):
            for step in steps:
                step.discard()


def _revert(steps: Sequence[_Step]) -> None:
    """Revert steps. Files changed by others meanwhile are kept."""
    for step in reversed(steps):
        with contextlib.suppress(ToolError):
            step.revert()
        step.discard()


def _finish_all(steps: Sequence[_Step]) -> None:
    for step in steps:
        step.finish()
