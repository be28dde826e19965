"""Replace a piece of a text file."""

import asyncio
import functools
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.changing import Current, Remark, change, current, no_remark, place_of
from holdfast.workspace.edits import Edited, replaced
from holdfast.workspace.files import look

__all__ = ["Edit", "EditArguments", "current_or_new"]

_MOST_SHOWN = 3_000


class EditArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: Annotated[str, Meta(description="The file, absolute or from the workspace's directory.")]
    old_string: Annotated[str, Meta(description="The text as it stands in the file; empty to make a new file.")] = ""
    new_string: Annotated[str, Meta(description="What takes its place; empty to remove it.")] = ""
    replace_all: Annotated[bool, Meta(description="Change every place, not exactly one.")] = False


class Edit(BaseTool[EditArguments]):
    name = "edit"
    arguments = EditArguments

    def __init__(self, remark: Remark = no_remark) -> None:
        super().__init__()
        self._remark = remark

    async def act(self, context: ToolContext, arguments: EditArguments) -> ToolOutcome:
        now = await current_or_new(context, arguments.file_path, makes=not arguments.old_string)
        if now.text is None:
            edited = Edited(arguments.new_string, 1)
        else:
            work = functools.partial(
                replaced, now.text, arguments.old_string, arguments.new_string, replace_all=arguments.replace_all
            )
            edited = await asyncio.to_thread(work)
        difference, before, after = await change(context, self.name, now, edited.text)
        told = metadata(
            additions=difference.additions, removals=difference.removals, old_content=before, new_content=after
        )
        what = "Made" if now.text is None else f"Replaced {edited.places} place{'s' * (edited.places > 1)} in"
        lines = [f"{what} {now.place.name} ({difference.counts})."]
        if edited.note:
            lines += [edited.note, difference.text[:_MOST_SHOWN]]
        lines += filter(None, [await self._remark(now.place.path)])
        return ToolOutcome("\n".join(lines), told)


async def current_or_new(context: ToolContext, given: str, *, makes: bool) -> Current:
    """The file to be edited; one that is to be made must not be there, any other must."""
    if makes:
        place = await place_of(context, given)
        if await asyncio.to_thread(look, place) is not None:
            raise ToolError(f"{place.name} exists already. Give the old_string to replace, or use write.")
        return Current(place)
    now = await current(context, given)
    if now.text is None:
        raise ToolError(f"There is no file {now.place.name}. To make it, leave old_string empty or use write.")
    return now
