"""Undo the changes of a session: all selected files, or none of them."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.domain.errors import BadRequest, NotFound, ToolError
from holdfast.domain.files import FileVersion, UndoAsk, UndoneFile, UndoReport
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import AddFile, Operation
from holdfast.domain.line_diff import unified_diff
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.file_paths import joined
from holdfast.workspace.files.open_files import FileLocation, locate, look, read, weigh
from holdfast.workspace.files.text_encoding import TextFormat, decoded, stand_in

__all__ = ["Return", "last_change", "last_run", "path_in", "plan", "undo"]


# Undo planning: selects the version that each file returns to. Pure.

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


# Undo the changes of a session: all selected files, or none of them.

_LARGEST = 64 * 1024 * 1024


class _Now(msgspec.Struct, frozen=True):
    """Present state of a file; without a status it does not exist."""

    place: FileLocation
    status: os.stat_result | None = None
    text: str = ""
    form: TextFormat = TextFormat()
    is_text: bool = True


async def undo(
    ask: UndoAsk,
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
    returns = _planned(ask, versions, root)
    states = [await asyncio.to_thread(_look, root, item.path) for item in returns]
    judged = [_judged(item, now, force=ask.force) for item, now in zip(returns, states, strict=True)]
    refused = any(item.outcome == "refused" for item in judged)
    if ask.dry_run or refused:
        return UndoReport(tuple(judged), is_done=False)
    steps = [
        _Step(item, now)
        for item, now, verdict in zip(returns, states, judged, strict=True)
        if verdict.outcome != "unchanged"
    ]
    new = [_versions(step.item, step.now, now_ms() // 1000, new_id) for step in steps]
    if steps:
        # Store the present state first: it may be in no history yet.
        await record(tuple(AddFile(before) for before, _ in new))
        await asyncio.to_thread(_carry_out, steps)
        try:
            await record(tuple(AddFile(after) for _, after in new))
        except Exception:
            await asyncio.to_thread(_take_back, steps)
            raise
        await asyncio.to_thread(_finish, steps)
    return UndoReport(tuple(judged), is_done=True)


def _planned(ask: UndoAsk, versions: Sequence[FileVersion], root: str) -> list[Return]:
    path = path_in(ask.path, versions, root) if ask.path else ""
    run_id = ask.run_id or (RunId("") if path else last_run(versions))
    return plan(versions, path=path, run_id=run_id)


def path_in(given: str, versions: Sequence[FileVersion], root: str) -> str:
    """Return the path of a file by the name it had when it was changed: it may be a link by now."""
    try:
        named = joined(root, given)
        real = locate(root, given).path
    except ToolError as error:
        raise BadRequest(str(error)) from None
    return named if any(version.path == named for version in versions) else real


def _look(root: str, path: str) -> _Now:
    place = locate(root, path)
    try:
        if place.path != path:
            raise ToolError(f"{path} is a link now, or below one: take the link away first.")
        if look(place) is None:
            return _Now(place)
        try:
            seen = read(place, _LARGEST)
            text, form = decoded(seen.data, place.name)
            return _Now(place, seen.status, text, form)
        except ToolError:
            digest, status = weigh(place)
            return _Now(place, status, stand_in(digest.size, digest.text), is_text=False)
    except ToolError as error:
        raise BadRequest(str(error)) from None


def _judged(item: Return, now: _Now, *, force: bool) -> UndoneFile:
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
            reason += " and is no text: move it away first"
            return UndoneFile(item.path, "refused", target.version, difference, reason)
    if reason and not force:
        return UndoneFile(item.path, "refused", target.version, difference, reason)
    return UndoneFile(item.path, "removed" if target.is_missing else "restored", target.version, difference)


def _versions(item: Return, now: _Now, seconds: int, new_id: Callable[[], str]) -> tuple[FileVersion, FileVersion]:
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

    def __init__(self, item: Return, now: _Now) -> None:
        self.item = item
        self.now = now
        self._draft = AtomicWrite(now.place, now.status)

    def prepare(self) -> None:
        if not self.item.target.is_missing:
            self._draft.open()
            self._draft.add(self.now.form.encoded(self.item.target.content))
            self._draft.finish()

    def make(self) -> None:
        if self.item.target.is_missing:
            self._draft.set_aside()
        else:
            self._draft.put()

    def take_back(self) -> None:
        if self.item.target.is_missing:
            self._draft.put_back()
        else:
            self._draft.take_back(None if self.now.status is None else self.now.form.encoded(self.now.text))

    def finish(self) -> None:
        self._draft.give_up()
        self._draft.sync()

    def give_up(self) -> None:
        self._draft.give_up()


def _carry_out(steps: Sequence[_Step]) -> None:
    """Make all steps. Raises `BadRequest` if a file has just been changed; all files are then restored."""
    made: list[_Step] = []
    try:
        for step in steps:
            step.prepare()
        for step in steps:
            step.make()
            made.append(step)
    except ToolError as error:
        _take_back(made)
        raise BadRequest(str(error)) from None
    finally:
        if len(made) < len(steps):
            for step in steps:
                step.give_up()


def _take_back(steps: Sequence[_Step]) -> None:
    """Revert steps. Files changed by others meanwhile are kept."""
    for step in reversed(steps):
        with contextlib.suppress(ToolError):
            step.take_back()
        step.give_up()


def _finish(steps: Sequence[_Step]) -> None:
    for step in steps:
        step.finish()
