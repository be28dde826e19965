"""What write, edit and multiedit do alike: know the file, ask, keep its history, put the new content in place.

A cancel before the new content is in place leaves the file as it was; after that, what happened is on record.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import msgspec

from holdfast.domain import line_diff
from holdfast.domain.errors import ToolError
from holdfast.domain.files import FileVersion, Origin, ReadMark
from holdfast.domain.ledger import AddFile, MarkRead
from holdfast.domain.tools import Permit, ToolContext
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.open_files import Digest, FileLocation, digest_of, locate, look, read, require
from holdfast.workspace.files.text_encoding import TextFormat, decoded, stand_in

__all__ = [
    "MOST_BYTES",
    "Current",
    "Planned",
    "Remark",
    "as_it_is",
    "change",
    "current",
    "no_remark",
    "place_of",
    "planned",
    "put",
    "record_new",
    "recorded",
]

MOST_BYTES = 20 * 1024 * 1024
_MOST_IN_METADATA = 200_000

Remark: TypeAlias = Callable[[str], Awaitable[str]]
"""What somebody has to say about a file, by its real path; empty if nothing."""


async def no_remark(_: str) -> str:
    return ""


class Current(msgspec.Struct, frozen=True):
    """A file as it is now; `text` is None if there is none."""

    place: FileLocation
    text: str | None = None
    form: TextFormat = TextFormat()
    status: os.stat_result | None = None


class Planned(msgspec.Struct, frozen=True):
    """A change that may be made: the file as it is, and what it is to be."""

    now: Current
    text: str
    data: bytes
    difference: line_diff.Diff
    before: str
    after: str


async def place_of(context: ToolContext, given: str) -> FileLocation:
    return await asyncio.to_thread(_place_of, context.workspace_path, given, context.environment.get("HOME", ""))


def _place_of(root: str, given: str, home: str) -> FileLocation:
    place = locate(root, given, home)
    if place.is_inside:
        require(root)
    return place


async def current(context: ToolContext, given: str) -> Current:
    """The file that is to be changed. Raises `ToolError` if the model does not know what is in it."""
    now, is_known = await as_it_is(context, given)
    if is_known is None:
        raise ToolError(f"{now.place.name} exists and was not read in this session. Use view first.")
    if not is_known:
        raise ToolError(f"{now.place.name} has changed since it was read. Use view again.")
    return now


async def as_it_is(context: ToolContext, given: str) -> tuple[Current, bool | None]:
    """A file, and whether the model knows what is in it; None if it was never read."""
    place = await place_of(context, given)
    if await asyncio.to_thread(look, place) is None:
        return Current(place), True
    mark = await context.read_mark(place.path)
    seen = await asyncio.to_thread(read, place, MOST_BYTES)
    text, form = decoded(seen.data, place.name)
    now = Current(place, text, form, seen.status)
    if mark is None:
        return now, None
    return now, mark.digest == seen.digest if mark.digest else seen.status.st_mtime_ns // 1_000_000 <= mark.read_at


async def change(context: ToolContext, tool: str, now: Current, text: str) -> tuple[line_diff.Diff, str, str]:
    """Ask, then put `text` in place of what is there. Answers the difference, and both texts for a screen."""
    plan = await planned(context, tool, now, text)
    await put(context, plan)
    return plan.difference, plan.before, plan.after


async def planned(context: ToolContext, tool: str, now: Current, text: str) -> Planned:
    """Ask whether `text` may take the place of what is there."""
    place, old = now.place, now.text or ""
    name = place.given
    data = now.form.encoded(text)
    if len(data) > MOST_BYTES:
        raise ToolError(f"The content has {len(data):,} bytes; at most {MOST_BYTES:,} are written.")
    difference = await asyncio.to_thread(line_diff.unified_diff, old, text, name)
    before, after = line_diff.excerpt(old, text, _MOST_IN_METADATA)
    verb = "Create" if now.text is None else "Change"
    params = {"file_path": place.path, "old_content": before, "new_content": after}
    await context.permit(Permit(tool, "write", place.path, f"{verb} file {place.path}", params))
    return Planned(now, text, data, difference, before, after)


async def put(context: ToolContext, plan: Planned, *, part: int = 0, is_known: bool = True) -> None:
    """Make a change that was allowed. `part` numbers the files of a call that changes several; a file that the model
    does not know does not count as read because of it.
    """
    now, place, data = plan.now, plan.now.place, plan.data
    version = functools.partial(_version, context, place, part)
    # The old state is on record before it is gone.
    await context.record(AddFile(version(now.text or "", "outside", is_missing=now.text is None)))
    draft = AtomicWrite(place, now.status)
    try:
        await asyncio.to_thread(functools.partial(_prepare, draft, data))
        # From here to the record nothing waits: a cancel has come before, or it comes too late to undo what is told.
        draft.put()
    finally:
        draft.give_up()
    mark = MarkRead(ReadMark(context.session_id, place.path, context.now_ms(), digest_of(data)))
    old = None if now.text is None else now.form.encoded(now.text)
    async with recorded(draft, old):
        await context.record(AddFile(version(plan.text, "tool")), *([mark] if is_known else []))


@contextlib.asynccontextmanager
async def recorded(draft: AtomicWrite, old: bytes | None) -> AsyncIterator[None]:
    """Record a change that is in place. If that fails, the old content is put back: an undo would not know of it.

    Nothing waits before the block. After it the change is synced.
    """
    try:
        yield
    except Exception:
        with contextlib.suppress(ToolError):
            await asyncio.to_thread(draft.take_back, old)
        raise
    await asyncio.to_thread(draft.sync)


async def record_new(context: ToolContext, place: FileLocation, digest: Digest, data: bytes) -> None:
    """A file was made that the model has not seen. `data` is what it begins with; what is no text, or too long, is kept
    by its digest only: enough to take it away again.
    """
    text = stand_in(digest.size, digest.text)
    if len(data) == digest.size:
        with contextlib.suppress(ToolError):
            text, _ = decoded(data, place.name)
    before = _version(context, place, 0, "", "outside", is_missing=True)
    await context.record(AddFile(before), AddFile(_version(context, place, 0, text, "tool")))


def _prepare(draft: AtomicWrite, data: bytes) -> None:
    steps: tuple[Callable[[], None], ...] = (draft.open, functools.partial(draft.add, data), draft.finish)
    for step in steps:
        step()


def _version(
    context: ToolContext, place: FileLocation, part: int, content: str, origin: Origin, *, is_missing: bool = False
) -> FileVersion:
    seconds = context.now_ms() // 1000
    return FileVersion(
        id=f"{context.message_id}-{context.tool_call_id}-{origin}{f'-{part}' if part else ''}",
        session_id=context.session_id,
        path=place.path,
        content=content,
        version=0,
        created_at=seconds,
        updated_at=seconds,
        run_id=context.run_id,
        origin=origin,
        is_missing=is_missing,
    )
