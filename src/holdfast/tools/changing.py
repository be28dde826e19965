"""What write, edit and multiedit do alike: know the file, ask, keep its history, put the new content in place.

A cancel before the new content is in place leaves the file as it was; after that, what happened is on record.
"""

import asyncio
import functools
import os
from collections.abc import Callable

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.files import FileVersion, Origin, ReadMark
from holdfast.domain.ledger import AddFile, MarkRead
from holdfast.domain.tools import Permit, ToolContext
from holdfast.workspace import diffs
from holdfast.workspace.drafts import Draft
from holdfast.workspace.files import Place, digest_of, locate, look, read
from holdfast.workspace.text import Form, decoded

__all__ = ["Current", "change", "current", "place_of"]

MOST_BYTES = 20 * 1024 * 1024
_MOST_IN_METADATA = 200_000


class Current(msgspec.Struct, frozen=True):
    """A file as it is now; `text` is None if there is none."""

    place: Place
    text: str | None = None
    form: Form = Form()
    status: os.stat_result | None = None


async def place_of(context: ToolContext, given: str) -> Place:
    return await asyncio.to_thread(locate, context.workspace_path, given, context.environment.get("HOME", ""))


async def current(context: ToolContext, given: str) -> Current:
    """The file that is to be changed. Raises `ToolError` if the model does not know what is in it."""
    place = await place_of(context, given)
    if await asyncio.to_thread(look, place) is None:
        return Current(place)
    mark = await context.read_mark(place.path)
    seen = await asyncio.to_thread(read, place, MOST_BYTES)
    text, form = decoded(seen.data, place.name)
    if mark is None:
        raise ToolError(f"{place.name} exists and was not read in this session. Use view first.")
    is_known = mark.digest == seen.digest if mark.digest else seen.status.st_mtime_ns // 1_000_000 <= mark.read_at
    if not is_known:
        raise ToolError(f"{place.name} has changed since it was read. Use view again.")
    return Current(place, text, form, seen.status)


async def change(context: ToolContext, tool: str, now: Current, text: str) -> tuple[diffs.Diff, str, str]:
    """Ask, then put `text` in place of what is there. Answers the difference, and both texts for a screen."""
    place, old = now.place, now.text or ""
    name = place.given
    data = now.form.encoded(text)
    if len(data) > MOST_BYTES:
        raise ToolError(f"The content has {len(data):,} bytes; at most {MOST_BYTES:,} are written.")
    difference = await asyncio.to_thread(diffs.diff, old, text, name)
    before, after = diffs.excerpt(old, text, _MOST_IN_METADATA)
    verb = "Create" if now.text is None else "Change"
    params = {"file_path": place.path, "old_content": before, "new_content": after}
    await context.permit(Permit(tool, "write", place.path, f"{verb} file {place.path}", params))
    # The old state is on record before it is gone.
    await context.record(AddFile(_version(context, now, old, "outside", is_missing=now.text is None)))
    draft = Draft(place, now.status)
    try:
        await asyncio.to_thread(functools.partial(_prepare, draft, data))
        # From here to the record nothing waits: a cancel has come before, or it comes too late to undo what is told.
        draft.put()
    finally:
        draft.give_up()
    await context.record(
        AddFile(_version(context, now, text, "tool")),
        MarkRead(ReadMark(context.session_id, place.path, context.now_ms(), digest_of(data))),
    )
    return difference, before, after


def _prepare(draft: Draft, data: bytes) -> None:
    steps: tuple[Callable[[], None], ...] = (draft.open, functools.partial(draft.add, data), draft.finish)
    for step in steps:
        step()


def _version(
    context: ToolContext, now: Current, content: str, origin: Origin, *, is_missing: bool = False
) -> FileVersion:
    seconds = context.now_ms() // 1000
    return FileVersion(
        id=f"{context.message_id}-{context.tool_call_id}-{origin}",
        session_id=context.session_id,
        path=now.place.path,
        content=content,
        version=0,
        created_at=seconds,
        updated_at=seconds,
        run_id=context.run_id,
        origin=origin,
        is_missing=is_missing,
    )
