"""What write, edit and multiedit do alike: know the file, ask, keep its history, put the new content in place.

A cancel before the new content is in place leaves the file as it was; after that, what happened is on record.
"""

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import msgspec

from holdfast.domain import line_diff
from holdfast.domain.errors import ToolError
from holdfast.domain.files import FileVersion, Origin, ReadMark
from holdfast.domain.ledger import AddFile, MarkRead
from holdfast.domain.tools import Permit, ToolContext
from holdfast.tasks import run_to_completion
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.open_files import (
    Digest,
    FileLocation,
    digest_of,
    locate,
    read_whole_file,
    require_workspace,
    status_of,
)
from holdfast.workspace.files.text_encoding import TextFormat, decode, placeholder

__all__ = [
    "MAX_FILE_BYTES",
    "Current",
    "PlannedChange",
    "Remark",
    "change_file",
    "current_file",
    "make_change",
    "no_remark",
    "plan_change",
    "read_current",
    "record_change",
    "record_new_file",
    "resolve_location",
]

MAX_FILE_BYTES = 20 * 1024 * 1024
_MAX_METADATA_TEXT = 200_000

Remark: TypeAlias = Callable[[str], Awaitable[str]]
"""What somebody has to say about a file, by its real path; empty if nothing."""


async def no_remark(_: str) -> str:
    return ""


class Current(msgspec.Struct, frozen=True):
    """A file as it is now; `text` is None if there is none."""

    location: FileLocation
    text: str | None = None
    text_format: TextFormat = TextFormat()
    status: os.stat_result | None = None


class PlannedChange(msgspec.Struct, frozen=True):
    """A change that may be made: the file as it is, and what it is to be."""

    now: Current
    text: str
    data: bytes
    difference: line_diff.Diff
    before: str
    after: str


async def resolve_location(context: ToolContext, given: str) -> FileLocation:
    return await asyncio.to_thread(
        _resolve_location, context.workspace_path, given, context.environment.get("HOME", "")
    )


def _resolve_location(root: str, given: str, home: str) -> FileLocation:
    location = locate(root, given, home)
    if location.is_inside:
        require_workspace(root)
    return location


async def current_file(context: ToolContext, given: str) -> Current:
    """The file that is to be changed. Raises `ToolError` if the model does not know what is in it."""
    now, is_known = await read_current(context, given)
    if is_known is None:
        raise ToolError(f"{now.location.name} exists and was not read in this session. Use view first.")
    if not is_known:
        raise ToolError(f"{now.location.name} has changed since it was read. Use view again.")
    return now


async def read_current(context: ToolContext, given: str) -> tuple[Current, bool | None]:
    """A file, and whether the model knows what is in it; None if it was never read."""
    location = await resolve_location(context, given)
    if await asyncio.to_thread(status_of, location) is None:
        return Current(location), True
    mark = await context.read_mark(location.path)
    seen = await asyncio.to_thread(read_whole_file, location, MAX_FILE_BYTES)
    text, text_format = decode(seen.data, location.name)
    now = Current(location, text, text_format, seen.status)
    if mark is None:
        return now, None
    return now, mark.digest == seen.digest if mark.digest else seen.status.st_mtime_ns // 1_000_000 <= mark.read_at


async def change_file(context: ToolContext, tool: str, now: Current, text: str) -> tuple[line_diff.Diff, str, str]:
    """Ask, then put `text` in place of what is there. Answers the difference, and both texts for a screen."""
    plan = await plan_change(context, tool, now, text)
    await make_change(context, plan)
    return plan.difference, plan.before, plan.after


async def plan_change(context: ToolContext, tool: str, now: Current, text: str) -> PlannedChange:
    """Ask whether `text` may take the place of what is there."""
    location, old = now.location, now.text or ""
    name = location.given
    data = now.text_format.encode(text)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"The content has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are written.")
    difference = await asyncio.to_thread(line_diff.unified_diff, old, text, name)
    before, after = line_diff.excerpt(old, text, _MAX_METADATA_TEXT)
    verb = "Create" if now.text is None else "Change"
    params = {"file_path": location.path, "old_content": before, "new_content": after}
    await context.permit(Permit(tool, "write", location.path, f"{verb} file {location.path}", params))
    return PlannedChange(now, text, data, difference, before, after)


async def make_change(context: ToolContext, plan: PlannedChange, *, part: int = 0, is_known: bool = True) -> None:
    """Make a change that was allowed. `part` numbers the files of a call that changes several; a file that the model
    does not know does not count as read because of it.
    """
    now, location, data = plan.now, plan.now.location, plan.data
    version = functools.partial(_version, context, location, part)
    # The old state is on record before it is gone.
    await context.record(AddFile(version(now.text or "", "outside", is_missing=now.text is None)))
    write = AtomicWrite(location, now.status)
    try:
        await asyncio.to_thread(functools.partial(_prepare, write, data))
        # From here to the record nothing waits: a cancel has come before, or it comes too late to undo what is told.
        write.publish()
    finally:
        write.discard()
    mark = MarkRead(ReadMark(context.session_id, location.path, context.now_ms(), digest_of(data)))
    old = None if now.text is None else now.text_format.encode(now.text)
    await record_change(write, old, context.record(AddFile(version(plan.text, "tool")), *([mark] if is_known else [])))


async def record_change(write: AtomicWrite, old: bytes | None, record: Coroutine[Any, Any, object]) -> None:
    """Await the record of a published change, then sync the change.

    If the store refuses the record, restore the old content: an undo would not know of the change. The outcome is
    awaited even if the call is cancelled meanwhile, because only the outcome decides whether the change stays.
    """
    await run_to_completion(_record_or_revert(write, old, record), name="record of a changed file")
    await asyncio.to_thread(write.sync)


async def _record_or_revert(write: AtomicWrite, old: bytes | None, record: Coroutine[Any, Any, object]) -> None:
    try:
        await record
    except Exception:
        with contextlib.suppress(ToolError):
            await asyncio.to_thread(write.revert, old)
        raise


async def record_new_file(context: ToolContext, location: FileLocation, digest: Digest, data: bytes) -> None:
    """A file was made that the model has not seen. `data` is what it begins with; what is no text, or too long, is kept
    by its digest only: enough to take it away again.
    """
    text = placeholder(digest.size, digest.text)
    if len(data) == digest.size:
        with contextlib.suppress(ToolError):
            text, _ = decode(data, location.name)
    before = _version(context, location, 0, "", "outside", is_missing=True)
    await context.record(AddFile(before), AddFile(_version(context, location, 0, text, "tool")))


def _prepare(write: AtomicWrite, data: bytes) -> None:
    steps: tuple[Callable[[], None], ...] = (write.open, functools.partial(write.add, data), write.finish)
    for step in steps:
        step()


def _version(
    context: ToolContext, location: FileLocation, part: int, content: str, origin: Origin, *, is_missing: bool = False
) -> FileVersion:
    seconds = context.now_ms() // 1000
    return FileVersion(
        id=f"{context.message_id}-{context.tool_call_id}-{origin}{f'-{part}' if part else ''}",
        session_id=context.session_id,
        path=location.path,
        content=content,
        version=0,
        created_at=seconds,
        updated_at=seconds,
        run_id=context.run_id,
        origin=origin,
        is_missing=is_missing,
    )
