"""Several replacements in one text file, one after the other."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.changing import Remark, change, no_remark
from holdfast.tools.edit import current_or_new
from holdfast.workspace.edits import replaced

__all__ = ["EditPiece", "Multiedit", "MultieditArguments"]


class EditPiece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old_string: Annotated[str, Meta(description="The text as it stands after the edits before this one.")]
    new_string: Annotated[str, Meta(description="What takes its place; empty to remove it.")]
    replace_all: Annotated[bool, Meta(description="Change every place, not exactly one.")] = False


class MultieditArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: Annotated[str, Meta(description="The file, absolute or from the workspace's directory.")]
    edits: Annotated[tuple[EditPiece, ...], Meta(min_length=1, description="What to replace, in this order.")]


class _Failed(msgspec.Struct, frozen=True):
    index: int
    error: str
    edit: EditPiece


class Multiedit(BaseTool[MultieditArguments]):
    name = "multiedit"
    arguments = MultieditArguments

    def __init__(self, remark: Remark = no_remark) -> None:
        super().__init__()
        self._remark = remark

    async def act(self, context: ToolContext, arguments: MultieditArguments) -> ToolOutcome:
        first, *others = arguments.edits
        now = await current_or_new(context, arguments.file_path, makes=not first.old_string)
        if now.text is None:
            text, notes, failed = await asyncio.to_thread(_apply, first.new_string, others, 2)
        else:
            text, notes, failed = await asyncio.to_thread(_apply, now.text, arguments.edits, 1)
        applied = len(arguments.edits) - len(failed)
        if not applied or text == now.text:
            raise ToolError("\n".join(["No edit could be made; the file is as it was.", *_listed(failed)]))
        difference, before, after = await change(context, self.name, now, text)
        told = metadata(
            additions=difference.additions,
            removals=difference.removals,
            old_content=before,
            new_content=after,
            edits_applied=applied,
            edits_failed=[msgspec.to_builtins(item) for item in failed] or None,
        )
        total = f"Made {applied} of {len(arguments.edits)} edits in {now.place.name}"
        counts = f"({difference.counts})."
        remarks = filter(None, [await self._remark(now.place.path)])
        return ToolOutcome("\n".join([f"{total} {counts}", *notes, *_listed(failed), *remarks]), told)


def _apply(text: str, edits: Sequence[EditPiece], first: int) -> tuple[str, list[str], list[_Failed]]:
    notes: list[str] = []
    failed: list[_Failed] = []
    for index, edit in enumerate(edits, first):
        try:
            if not edit.old_string:
                raise ToolError("Only the first edit of a new file may have an empty old_string.")
            edited = replaced(text, edit.old_string, edit.new_string, replace_all=edit.replace_all)
        except ToolError as error:
            failed.append(_Failed(index, str(error), edit))
            continue
        text = edited.text
        if edited.note:
            notes.append(f"Edit {index}: {edited.note}")
    return text, notes, failed


def _listed(failed: Sequence[_Failed]) -> list[str]:
    return [f"Edit {item.index} failed: {item.error}" for item in failed]
