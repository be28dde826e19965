"""The `view` tool: reads a text file or an image."""

import asyncio
import base64
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.files import ReadMark
from holdfast.domain.store_operations import MarkRead
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import Remark, no_remark, resolve_location
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.files.safe_open import FileLocation, open_plain_file, read_whole_file, too_large_error
from holdfast.workspace.files.text_encoding import decode

__all__ = ["NamedSkill", "ViewArguments", "ViewTool"]

_LINES = 200
_MAX_BYTES = 200 * 1024
_MAX_LINE_LENGTH = 2_000
_MAX_FILE_SIZE = 20 * 1024 * 1024
"""Files up to this size are read whole, so that a later write can compare the digest."""

_IMAGE_TYPES = {
    ".jpg": ("image/jpeg", b"\xff\xd8\xff"),
    ".jpeg": ("image/jpeg", b"\xff\xd8\xff"),
    ".png": ("image/png", b"\x89PNG\r\n\x1a\n"),
    ".gif": ("image/gif", b"GIF8"),
    ".webp": ("image/webp", b"RIFF"),
}


class ViewArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `view`."""

    file_path: Annotated[str, Meta(description="The path of the file, absolute or relative to the workspace.")]
    offset: Annotated[int, Meta(description="The number of lines to skip.")] = 0
    limit: Annotated[int, Meta(description="The number of lines to show.")] = _LINES


class _Section(msgspec.Struct, frozen=True):
    lines: list[str]
    total: int | None
    """Number of lines of the file; None if they were not counted."""
    digest: str


class NamedSkill(Protocol):
    """A skill: its instructions are labelled as such and never truncated."""

    @property
    def name(self) -> str:
        """The name of the skill."""

    @property
    def description(self) -> str:
        """The description of the skill."""


class ViewTool(BaseTool[ViewArguments]):
    """Reads files. `readable` returns the directories elsewhere that need no approval, as real paths."""

    name = "view"
    arguments = ViewArguments
    is_parallel = True

    def __init__(
        self,
        readable: Callable[[], Sequence[str]] = tuple,
        remark: Remark = no_remark,
        skill_at: Callable[[str], NamedSkill | None] = lambda _: None,
        unavailable: Callable[[str], str] = lambda _: "",
    ) -> None:
        super().__init__()
        self._unavailable = unavailable
        self._skill_at = skill_at
        self._readable = readable
        self._remark = remark

    async def act(self, context: ToolContext, arguments: ViewArguments) -> ToolOutcome:
        """Return a part of a text file with line numbers, or an image."""
        location = await resolve_location(context, arguments.file_path)
        if reason := self._unavailable(location.path):
            raise ToolError(reason)
        skip, limit = max(0, arguments.offset), max(1, arguments.limit)
        if location.is_inside or not any(is_within(top, location.path) for top in self._readable()):
            # Inside the workspace no approval is needed, unless a rule asks for one or denies it.
            params = {"file_path": location.path, "offset": skip, "limit": limit}
            await context.permit(Permit(self.name, "read", location.path, f"Read file {location.path}", params))
        suffix = os.path.splitext(location.path)[1].lower()
        if suffix in _IMAGE_TYPES:
            return await self._picture(context, location, *_IMAGE_TYPES[suffix])
        skill = self._skill_at(location.path)
        if skill is not None and limit == _LINES:
            # A part of the instructions would be worse than none.
            limit = _MAX_FILE_SIZE
        section = await asyncio.to_thread(_section, location, skip, limit)
        await context.record(
            MarkRead(ReadMark(context.session_id, location.path, context.now_ms(), digest=section.digest))
        )
        shown = section.lines if skill is not None else [_truncate(line) for line in section.lines]
        size = sum(len(line.encode()) + 1 for line in shown)
        if size > _MAX_BYTES and skill is None:
            raise ToolError(
                f"These {len(shown)} lines of {location.name} have {size:,} bytes; at most {_MAX_BYTES:,} are shown."
                " Request fewer with limit, or search with grep first."
            )
        numbered = [f"{number:>6}|{line}" for number, line in enumerate(shown, skip + 1)]
        remarks = filter(None, [await self._remark(location.path)])
        content = "\n".join(["<file>", *numbered, *_note(section, skip), "</file>", *remarks])
        shows = {"file_path": location.path, "content": "\n".join(section.lines)}
        if skill is not None:
            shows |= {"resource_type": "skill", "resource_name": skill.name, "resource_description": skill.description}
        return ToolOutcome(content, metadata(**shows))

    async def _picture(self, context: ToolContext, location: FileLocation, mime_type: str, magic: bytes) -> ToolOutcome:
        if not context.takes_images:
            raise ToolError(f"{location.name} is an image, and this model does not accept images.")
        seen = await asyncio.to_thread(read_whole_file, location, _MAX_BYTES)
        if not seen.data.startswith(magic):
            raise ToolError(f"{location.name} does not match its name: its content is not {mime_type}.")
        await context.record(MarkRead(ReadMark(context.session_id, location.path, context.now_ms(), seen.digest)))
        data = base64.b64encode(seen.data).decode()
        text = f"{location.name}: {mime_type}, {len(seen.data):,} bytes"
        return ToolOutcome(text, metadata(file_path=location.path, content=""), data=data, mime_type=mime_type)


def _section(location: FileLocation, skip: int, limit: int) -> _Section:
    with open_plain_file(location) as (_, status):
        size = status.st_size
    if size > _MAX_FILE_SIZE:
        return _part(location, skip, limit)
    seen = read_whole_file(location, _MAX_FILE_SIZE)
    text, _ = decode(seen.data, location.name)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return _Section([line.removesuffix("\r") for line in lines[skip : skip + limit]], len(lines), seen.digest)


def _part(location: FileLocation, skip: int, limit: int) -> _Section:
    """Read some lines of a file that is too large for memory, and nothing after them."""
    lines: list[str] = []
    size = 0
    with open_plain_file(location) as (file, _), os.fdopen(os.dup(file), "rb") as stream:
        for _ in range(skip):
            # A very long line is read in pieces, each treated as a line; such a file is not meant for reading.
            if not stream.readline(_MAX_FILE_SIZE):
                break
        for _ in range(limit):
            line = stream.readline(_MAX_FILE_SIZE)
            if not line:
                break
            if len(line) == _MAX_FILE_SIZE:
                raise too_large_error(f"A line of {location.name}", len(line), _MAX_FILE_SIZE)
            lines.append(decode(line, location.name)[0].removesuffix("\n").removesuffix("\r"))
            size += len(line)
            if size > _MAX_FILE_SIZE:
                break
    return _Section(lines, None, "")


def _note(section: _Section, skip: int) -> list[str]:
    if section.total is None:
        return ["(the file continues)"] if section.lines else ["(the file ends before this)"]
    left = section.total - skip - len(section.lines)
    if left > 0:
        return [f"({left} more lines; continue with offset={skip + len(section.lines)})"]
    if section.total == 0:
        return ["(the file is empty)"]
    return [] if section.lines else [f"(the file has only {section.total} lines)"]


def _truncate(line: str) -> str:
    """Truncate to this many bytes without splitting a character."""
    if len(line) * 4 <= _MAX_LINE_LENGTH or len(raw := line.encode("utf-8", "replace")) <= _MAX_LINE_LENGTH:
        return line
    return raw[:_MAX_LINE_LENGTH].decode("utf-8", "ignore") + "..."
