"""Common steps of the tools that change files: read, request permission, record the history, publish the change.

A cancel before the change is published leaves the file unchanged. A published change is recorded, or reverted if the
store refuses the record.
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
from holdfast.domain.store_operations import AddFile, MarkRead
from holdfast.domain.tools import Permit, ToolContext
from holdfast.tasks import run_to_completion
from holdfast.workspace.files.atomic_write import AtomicWrite
from holdfast.workspace.files.safe_open import (
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
"""Returns text to add to the result for a file, given by its real path, such as diagnostics; empty if there is none."""


async def no_remark(_: str) -> str:
    """Return no remark."""
    return ""


class Current(msgspec.Struct, frozen=True):
    """Present state of a file; `text` is None if it does not exist."""

    location: FileLocation
    text: str | None = None
    text_format: TextFormat = TextFormat()
    status: os.stat_result | None = None


class PlannedChange(msgspec.Struct, frozen=True):
    """An approved change: the present state of the file and its new content."""

    now: Current
    text: str
    data: bytes
    difference: line_diff.Diff
    before: str
    after: str


async def resolve_location(context: ToolContext, given: str) -> FileLocation:
    """Resolve a path given by the model. Raises `ToolError` if the workspace directory is gone."""
    return await asyncio.to_thread(
        _resolve_location, context.workspace_path, given, context.environment.get("HOME", "")
    )


def _resolve_location(root: str, given: str, home: str) -> FileLocation:
    location = locate(root, given, home)
    if location.is_inside:
        require_workspace(root)
    return location


async def current_file(context: ToolContext, given: str) -> Current:
    """Return the file to change. Raises `ToolError` if the model has not read its present content."""
    now, is_known = await read_current(context, given)
    if is_known is None:
        raise ToolError(f"{now.location.name} exists and was not read in this session. Use view first.")
    if not is_known:
        raise ToolError(f"{now.location.name} has changed since it was read. Use view again.")
    return now


async def read_current(context: ToolContext, given: str) -> tuple[Current, bool | None]:
    """Return a file and whether the model has read its present content; None if it was never read."""
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
    """Request permission, then replace the content by `text`. Returns the difference and both texts for a screen."""
    plan = await plan_change(context, tool, now, text)
    await make_change(context, plan)
    return plan.difference, plan.before, plan.after


async def plan_change(context: ToolContext, tool: str, now: Current, text: str) -> PlannedChange:
    """Request permission to replace the content by `text`."""
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
    """Make an approved change. `part` numbers the files of a call that changes several. With `is_known` false the
    file does not count as read: the model has not seen its content.
    """
    now, location, data = plan.now, plan.now.location, plan.data
    version = functools.partial(_version, context, location, part)
    # Record the old state before it is replaced.
    await context.record(AddFile(version(now.text or "", "outside", is_missing=now.text is None)))
    write = AtomicWrite(location, now.status)
    try:
        await asyncio.to_thread(functools.partial(_prepare, write, data))
        # No await from here to the record: a cancel takes effect before the change, or after its record.
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
    """Record a new file that the model has not seen. `data` is its beginning. Binary or long content is recorded by its
    digest only, which suffices for an undo.
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
