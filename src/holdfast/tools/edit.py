"""The `edit` and `multiedit` tools: replace text in a file, once or several times in order."""

import asyncio
import functools
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import Current, Remark, change_file, current_file, no_remark, resolve_location
from holdfast.workspace.files.safe_open import status_of
from holdfast.workspace.files.text_edit import EditResult, replace_text

__all__ = ["Edit", "EditArguments", "EditPiece", "Multiedit", "MultieditArguments", "current_or_new"]


_MAX_SHOWN = 3_000


class EditArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `edit`."""

    file_path: Annotated[str, Meta(description="The path of the file, absolute or relative to the workspace.")]
    old_string: Annotated[str, Meta(description="The exact text in the file; empty to create a new file.")] = ""
    new_string: Annotated[str, Meta(description="The replacement; empty to remove the text.")] = ""
    replace_all: Annotated[bool, Meta(description="Replace every occurrence instead of exactly one.")] = False


class Edit(BaseTool[EditArguments]):
    """The tool `edit`: replaces a piece of a text file."""

    name = "edit"
    arguments = EditArguments

    def __init__(self, remark: Remark = no_remark) -> None:
        super().__init__()
        self._remark = remark

    async def act(self, context: ToolContext, arguments: EditArguments) -> ToolOutcome:
        """Replace the text, or create the file."""
        now = await current_or_new(context, arguments.file_path, makes=not arguments.old_string)
        if now.text is None:
            edited = EditResult(arguments.new_string, 1)
        else:
            work = functools.partial(
                replace_text, now.text, arguments.old_string, arguments.new_string, replace_all=arguments.replace_all
            )
            edited = await asyncio.to_thread(work)
        difference, before, after = await change_file(context, self.name, now, edited.text)
        details = metadata(
            additions=difference.additions, removals=difference.removals, old_content=before, new_content=after
        )
        what = "Made" if now.text is None else f"Replaced {edited.places} place{'s' * (edited.places > 1)} in"
        lines = [f"{what} {now.location.name} ({difference.counts})."]
        if edited.note:
            lines += [edited.note, difference.text[:_MAX_SHOWN]]
        lines += filter(None, [await self._remark(now.location.path)])
        return ToolOutcome("\n".join(lines), details)


async def current_or_new(context: ToolContext, given: str, *, makes: bool) -> Current:
    """Return the file to edit. Raises `ToolError` if a new file exists already or an existing one is missing."""
    if makes:
        location = await resolve_location(context, given)
        if await asyncio.to_thread(status_of, location) is not None:
            raise ToolError(f"{location.name} exists already. Give the old_string to replace, or use write.")
        return Current(location)
    now = await current_file(context, given)
    if now.text is None:
        raise ToolError(f"There is no file {now.location.name}. To create it, leave old_string empty or use write.")
    return now


class EditPiece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replacement of the tool `multiedit`."""

    old_string: Annotated[str, Meta(description="The exact text after the preceding edits.")]
    new_string: Annotated[str, Meta(description="The replacement; empty to remove the text.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence instead of exactly one.")] = False


class MultieditArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `multiedit`."""

    file_path: Annotated[str, Meta(description="The path of the file, absolute or relative to the workspace.")]
    edits: Annotated[tuple[EditPiece, ...], Meta(min_length=1, description="The replacements, in order.")]


class _Failed(msgspec.Struct, frozen=True):
    index: int
    error: str
    edit: EditPiece


class Multiedit(BaseTool[MultieditArguments]):
    """The tool `multiedit`: several replacements in one file, one after the other."""

    name = "multiedit"
    arguments = MultieditArguments

    def __init__(self, remark: Remark = no_remark) -> None:
        super().__init__()
        self._remark = remark

    async def act(self, context: ToolContext, arguments: MultieditArguments) -> ToolOutcome:
        """Make the replacements in order and report those that failed."""
        first, *others = arguments.edits
        now = await current_or_new(context, arguments.file_path, makes=not first.old_string)
        if now.text is None:
            text, notes, failed = await asyncio.to_thread(_apply, first.new_string, others, 2)
        else:
            text, notes, failed = await asyncio.to_thread(_apply, now.text, arguments.edits, 1)
        applied = len(arguments.edits) - len(failed)
        if not applied or text == now.text:
            raise ToolError("\n".join(["No edit could be made; the file is unchanged.", *_failure_lines(failed)]))
        difference, before, after = await change_file(context, self.name, now, text)
        details = metadata(
            additions=difference.additions,
            removals=difference.removals,
            old_content=before,
            new_content=after,
            edits_applied=applied,
            edits_failed=[msgspec.to_builtins(item) for item in failed] or None,
        )
        total = f"Made {applied} of {len(arguments.edits)} edits in {now.location.name}"
        counts = f"({difference.counts})."
        remarks = filter(None, [await self._remark(now.location.path)])
        return ToolOutcome("\n".join([f"{total} {counts}", *notes, *_failure_lines(failed), *remarks]), details)


def _apply(text: str, edits: Sequence[EditPiece], first: int) -> tuple[str, list[str], list[_Failed]]:
    notes: list[str] = []
    failed: list[_Failed] = []
    for index, edit in enumerate(edits, first):
        try:
            if not edit.old_string:
                raise ToolError("Only the first edit of a new file may have an empty old_string.")
            edited = replace_text(text, edit.old_string, edit.new_string, replace_all=edit.replace_all)
        except ToolError as error:
            failed.append(_Failed(index, str(error), edit))
            continue
        text = edited.text
        if edited.note:
            notes.append(f"Edit {index}: {edited.note}")
    return text, notes, failed


def _failure_lines(failed: Sequence[_Failed]) -> list[str]:
    return [f"Edit {item.index} failed: {item.error}" for item in failed]
