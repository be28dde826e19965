"""List a directory."""

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, inside

__all__ = ["Ls", "LsArguments"]

_MOST = 200


class LsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`path`: the directory; the workspace itself if left out."""

    path: str = "."


class Ls(BaseTool[LsArguments]):
    name = "ls"
    arguments = LsArguments

    async def act(self, context: ToolContext, arguments: LsArguments) -> ToolOutcome:
        place = inside(context, arguments.path)
        if not place.is_dir():
            raise ToolError(f"{arguments.path} is not a directory.")
        names = sorted(f"{item.name}/" if item.is_dir() else item.name for item in place.iterdir())
        shown = [name for name in names if not name.startswith(".")]
        more = [f"… and {len(shown) - _MOST} more"] if len(shown) > _MOST else []
        return ToolOutcome("\n".join(shown[:_MOST] + more) or "The directory is empty.")
