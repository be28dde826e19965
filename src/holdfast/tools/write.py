"""Write a text file."""

import difflib
import json
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ledger import AddFile, MarkRead, Operation
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, inside

__all__ = ["Write", "WriteArguments"]


class WriteArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: str
    content: str


class Write(BaseTool[WriteArguments]):
    name = "write"
    arguments = WriteArguments

    async def act(self, context: ToolContext, arguments: WriteArguments) -> ToolOutcome:
        place = inside(context, arguments.file_path)
        old = _old_content(place, await context.read_mark(str(place)), arguments.file_path)
        if old == arguments.content:
            raise ToolError(f"{arguments.file_path} has this content already; nothing was written.")
        # The old content is on record before it is gone.
        before: list[Operation] = [] if old is None else [AddFile(_version(context, place, old, "before"))]
        await context.record(*before)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(arguments.content.encode())
        now = context.now_ms()
        await context.record(
            AddFile(_version(context, place, arguments.content, "after")),
            MarkRead(ReadMark(context.session_id, str(place), now + 1)),
        )
        diff, added, removed = _diff(old or "", arguments.content, arguments.file_path)
        metadata = json.dumps({"diff": diff, "additions": added, "removals": removed})
        return ToolOutcome(f"Wrote {arguments.file_path} ({added} lines added, {removed} removed).", metadata)


def _old_content(place: Path, mark: ReadMark | None, shown: str) -> str | None:
    """What the file holds now, None if there is none; an error if the model does not know what it overwrites."""
    if place.is_dir():
        raise ToolError(f"{shown} is a directory.")
    if not place.exists():
        return None
    if mark is None:
        raise ToolError(f"{shown} exists and was not read in this session. Use view first.")
    if place.stat().st_mtime_ns // 1_000_000 > mark.read_at:
        raise ToolError(f"{shown} has changed since it was read. Use view again.")
    # Bytes, so that line ends are compared and kept as they are.
    return place.read_bytes().decode("utf-8", "replace")


def _version(context: ToolContext, place: Path, content: str, when: Literal["before", "after"]) -> FileVersion:
    seconds = context.now_ms() // 1000
    return FileVersion(
        id=f"{context.message_id}-{context.tool_call_id}-{when}",
        session_id=context.session_id,
        path=str(place),
        content=content,
        version=0,
        created_at=seconds,
        updated_at=seconds,
    )


def _diff(old: str, new: str, name: str) -> tuple[str, int, int]:
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm=""))
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return "\n".join(lines), added, removed
