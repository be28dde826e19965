"""The `glob` tool: finds files by name."""

import posixpath
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.settings import ToolSettings
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.grep import search_environment, searched
from holdfast.workspace.files.path_strings import as_one_line, is_within
from holdfast.workspace.search.search import Searcher, SearchScope

__all__ = ["Glob", "GlobArguments"]

_SECONDS = 30.0


class GlobArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `glob`."""

    pattern: Annotated[str, Meta(min_length=1, description='Such as "*.py", "src/**/*.{ts,tsx}" or "**/test_*".')]
    path: Annotated[str, Meta(description="The directory to search; default: the workspace.")] = "."


class Glob(BaseTool[GlobArguments]):
    """The tool `glob`: finds files by their names."""

    name = "glob"
    arguments = GlobArguments
    is_parallel = True

    def __init__(self, searcher: Searcher | None = None, settings: Callable[[], ToolSettings] = ToolSettings) -> None:
        super().__init__()
        self._searcher = searcher or Searcher()
        self._settings = settings

    async def act(self, context: ToolContext, arguments: GlobArguments) -> ToolOutcome:
        """Return the paths that match."""
        location, is_folder = await searched(context, self.name, arguments.path, {"pattern": arguments.pattern})
        if not is_folder:
            raise ToolError(f"{location.name} is a file: give the directory to search.")
        pattern = arguments.pattern
        if is_within(location.path, pattern):
            pattern = pattern.removeprefix(location.path)
        seconds = self._settings().glob.get("timeout", 0) / 1e9 or _SECONDS
        where = SearchScope(location.root, location.path, search_environment(context), seconds)
        found = await self._searcher.files(where, pattern)
        lines = [as_one_line(posixpath.join(location.path, path)) for path in found.paths]
        if found.is_truncated:
            lines += ["", "(there are more: use a more specific pattern or path)"]
        if found.is_timed_out:
            lines += ["", f"(the search was stopped after {seconds:g} s: give a path)"]
        details = metadata(number_of_files=len(found.paths), truncated=found.is_truncated or found.is_timed_out)
        return ToolOutcome("\n".join(lines).strip() or "No files found", details)
