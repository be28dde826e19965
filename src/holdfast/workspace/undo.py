"""Undo the changes of a session: all selected files, or none of them."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.domain.errors import BadRequest, ToolError
from holdfast.domain.files import FileVersion, UndoAsk, UndoneFile, UndoReport
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import AddFile, Operation
from holdfast.workspace.diffs import diff
from holdfast.workspace.drafts import Draft
from holdfast.workspace.files import Place, locate, look, read, weigh
from holdfast.workspace.history import Return, last_run, plan
from holdfast.workspace.paths import joined
from holdfast.workspace.text import Form, decoded, stand_in

__all__ = ["path_in", "undo"]

_LARGEST = 64 * 1024 * 1024


class _Now(msgspec.Struct, frozen=True):
    """Present state of a file; without a status it does not exist."""

    place: Place
    status: os.stat_result | None = None
    text: str = ""
    form: Form = Form()
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
    difference = diff(now.text, target.content, item.path).text
    reason = item.reason
    if now.text != expected.content or is_missing != expected.is_missing:
        reason = "it was removed since" if is_missing else "it has changed since"
        difference = diff(expected.content, now.text, item.path).text
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
        self._draft = Draft(now.place, now.status)

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
