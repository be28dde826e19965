"""The `write` tool: creates or replaces a text file."""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import Remark, change_file, current_file, no_remark
from holdfast.workspace.files.text_encoding import line_ending, with_line_ending

__all__ = ["WriteArguments", "WriteTool"]


class WriteArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `write`."""

    file_path: Annotated[str, Meta(description="The path of the file, absolute or relative to the workspace.")]
    content: Annotated[str, Meta(description="The complete content of the file.")]


class WriteTool(BaseTool[WriteArguments]):
    """The tool `write`: writes a text file."""

    name = "write"
    arguments = WriteArguments

    def __init__(self, remark: Remark = no_remark) -> None:
        super().__init__()
        self._remark = remark

    async def act(self, context: ToolContext, arguments: WriteArguments) -> ToolOutcome:
        """Request permission and write the file."""
        now = await current_file(context, arguments.file_path)
        content, note = arguments.content, ""
        if now.text is not None and line_ending(now.text) == "\r\n" and "\n" in content and "\r" not in content:
            # A view does not show line endings; a model that rewrites the file did not mean to change them.
            content, note = with_line_ending(content, "\r\n"), " Its Windows line ends were kept."
        if content == now.text:
            raise ToolError(f"{arguments.file_path} has this content already; nothing was written.")
        difference, _, _ = await change_file(context, self.name, now, content)
        details = metadata(diff=difference.text, additions=difference.additions, removals=difference.removals)
        done = f"Wrote {now.location.name} ({difference.counts}).{note}"
        return ToolOutcome("\n".join(filter(None, [done, await self._remark(now.location.path)])), details)
