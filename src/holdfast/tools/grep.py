"""The `grep` tool: searches the contents of files."""

import asyncio
import os
import posixpath
import stat
from collections.abc import Callable
from itertools import groupby
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.settings import ToolSettings
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import resolve_location
from holdfast.workspace.files.path_strings import as_one_line
from holdfast.workspace.files.safe_open import FileLocation, replaced_error, status_of
from holdfast.workspace.search.search import GrepRequest, Searcher, SearchScope, TextMatches

__all__ = ["Grep", "GrepArguments", "search_environment", "searched"]

_SECONDS = 5.0
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "XDG_CONFIG_HOME")


class GrepArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `grep`."""

    pattern: Annotated[str, Meta(min_length=1, description="A regular expression, matched against each line.")]
    path: Annotated[str, Meta(description="A directory or one file; default: the workspace.")] = "."
    include: Annotated[str, Meta(description='Only files that match, such as "*.py" or "src/**/*.{ts,tsx}".')] = ""
    literal_text: Annotated[bool, Meta(description="Match the pattern as plain text.")] = False


class Grep(BaseTool[GrepArguments]):
    """The tool `grep`: searches the contents of files."""

    name = "grep"
    arguments = GrepArguments
    is_parallel = True

    def __init__(self, searcher: Searcher | None = None, settings: Callable[[], ToolSettings] = ToolSettings) -> None:
        super().__init__()
        self._searcher = searcher or Searcher()
        self._settings = settings

    async def act(self, context: ToolContext, arguments: GrepArguments) -> ToolOutcome:
        """Return the matching lines, newest files first."""
        if "\n" in arguments.pattern:
            raise ToolError("The pattern contains a line break, but lines are searched one by one: remove it.")
        location, is_folder = await searched(context, self.name, arguments.path, {"pattern": arguments.pattern})
        seconds = self._settings().grep.get("timeout", 0) / 1e9 or _SECONDS
        scope = SearchScope(location.root, location.path, search_environment(context), seconds, is_file=not is_folder)
        request = GrepRequest(arguments.pattern, arguments.literal_text, arguments.include)
        found = await self._searcher.grep(scope, request)
        details = metadata(number_of_matches=len(found.matches), truncated=found.is_truncated or found.is_timed_out)
        return ToolOutcome(
            _text(found, location.path if is_folder else posixpath.dirname(location.path), seconds), details
        )


async def searched(context: ToolContext, tool: str, given: str, params: dict[str, object]) -> tuple[FileLocation, bool]:
    """Return the directory or file to search and whether it is a directory. Permission is requested outside of the
    workspace, and inside it only if a rule demands it.
    """
    location = await resolve_location(context, given)
    shown = {"path": location.path, **params}
    await context.permit(Permit(tool, "list", location.path, f"Search {location.path}", shown))
    status = await asyncio.to_thread(status_of, location)
    if status is None:
        raise ToolError(f"There is no file or directory {location.name}.")
    if stat.S_ISLNK(status.st_mode):
        # A real path contains no links: this one was created after the path was checked.
        raise replaced_error(location.path)
    return location, stat.S_ISDIR(status.st_mode)


def search_environment(context: ToolContext) -> dict[str, str]:
    """Return the environment of search programs, which contains no secrets."""
    known = {name: context.environment[name] for name in _KEPT_VARIABLES if name in context.environment}
    return {"PATH": os.environ.get("PATH", os.defpath), **known}


def _text(found: TextMatches, folder: str, seconds: float) -> str:
    timeout_note = f"The search was stopped after {seconds:g} s: narrow it with path or include."
    if not found.matches:
        return f"No matches so far. {timeout_note}" if found.is_timed_out else "No matches found"
    more = " or more" if found.is_truncated or found.is_timed_out else ""
    lines = [f"Found {len(found.matches)}{more} match{'es' * (len(found.matches) != 1)}"]
    for path, matches in groupby(found.matches, key=lambda match: match.path):
        lines += ["", f"{as_one_line(os.path.join(folder, path))}:"]
        lines += [f"  Line {match.line}, Char {match.column}: {match.text}" for match in matches]
    if found.is_truncated:
        lines += ["", "(only the newest files are shown: use a more specific pattern, path or include)"]
    return "\n".join([*lines, *(["", f"({timeout_note})"] if found.is_timed_out else [])])
