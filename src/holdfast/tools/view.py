"""Read a text file."""

import json

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.files import ReadMark
from holdfast.domain.ledger import MarkRead
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, inside

__all__ = ["View", "ViewArguments"]

_MOST_BYTES = 200 * 1024
_LONGEST_LINE = 2_000


class ViewArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_path: str
    offset: int = 0
    limit: int = 200


class View(BaseTool[ViewArguments]):
    name = "view"
    arguments = ViewArguments

    async def act(self, context: ToolContext, arguments: ViewArguments) -> ToolOutcome:
        place = inside(context, arguments.file_path)
        if not place.is_file():
            raise ToolError(f"There is no file {arguments.file_path}.")
        if place.stat().st_size > _MOST_BYTES:
            raise ToolError(f"{arguments.file_path} is larger than {_MOST_BYTES} bytes.")
        try:
            lines = place.read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ToolError(f"{arguments.file_path} is not a UTF-8 text file.") from error
        await context.record(MarkRead(ReadMark(context.session_id, str(place), context.now_ms())))
        shown = lines[max(0, arguments.offset) :][: max(1, arguments.limit)]
        numbered = [f"{number:>6}|{_cut(line)}" for number, line in enumerate(shown, max(0, arguments.offset) + 1)]
        left = len(lines) - max(0, arguments.offset) - len(shown)
        more = [f"({left} more lines)"] if left > 0 else []
        metadata = json.dumps({"file_path": str(place), "content": "\n".join(shown)})
        return ToolOutcome("\n".join(["<file>", *numbered, *more, "</file>"]), metadata)


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "..."
