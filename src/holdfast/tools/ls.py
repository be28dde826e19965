"""The `ls` tool: lists a directory as a tree."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.settings import ToolSettings
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.file_edit import resolve_location
from holdfast.workspace.files.ignore_files import IgnoreRules
from holdfast.workspace.files.path_strings import as_one_line
from holdfast.workspace.files.safe_open import FileLocation, entries_of, open_directory
from holdfast.workspace.git.repository import repository_of

__all__ = ["Listing", "Ls", "LsArguments"]

_MAX_ITEMS = 1_000
_MAX_ITEMS_ELSEWHERE = 100
_MAX_DEPTH_ELSEWHERE = 2


class LsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `ls`."""

    path: Annotated[str, Meta(description="The directory; default: the workspace.")] = "."
    ignore: Annotated[tuple[str, ...], Meta(description="Patterns to exclude, as in .gitignore.")] = ()
    depth: Annotated[int, Meta(description="The number of levels to show; 0 means all.")] = 0


class _Entry(NamedTuple):
    name: str
    is_folder: bool
    target: str
    """Target of a link."""


class Listing:
    """A walk level by level, so that a long list is truncated at the bottom of the tree and not at its side.

    Everything is opened below the directory that was checked.
    """

    def __init__(
        self,
        location: FileLocation,
        handle: int,
        ignore: IgnoreRules,
        most: int,
        depth: int,
        stop: threading.Event | None = None,
    ) -> None:
        self.children: dict[str, list[_Entry]] = {}
        self.files = 0
        self.is_truncated = False
        self._stop = stop or threading.Event()
        self._root, self._handle, self._ignore, self._most, self._depth = location.path, handle, ignore, most, depth

    def walk(self) -> None:
        """Walk, and close the directory."""
        try:
            self._walk()
        finally:
            os.close(self._handle)

    def _walk(self) -> None:
        waiting = deque([("", 1)])
        count = 0
        while waiting and not self._stop.is_set() and not self.is_truncated:
            folder, level = waiting.popleft()
            entries = self._entries(folder)
            room = self._most - count
            if len(entries) > room:
                self.is_truncated = True
                entries = entries[:room]
            self.children[folder] = entries
            count += len(entries)
            self.files += len(entries)
            if not self._depth or level < self._depth:
                waiting += [(os.path.join(folder, entry.name), level + 1) for entry in entries if entry.is_folder]

    def _entries(self, folder: str) -> list[_Entry]:
        try:
            known = entries_of(self._handle, folder)
        except OSError:
            return []
        absolute = os.path.join(self._root, folder)
        return [
            _Entry(name, is_folder, target)
            for name, is_folder, _, target in known
            if not self._ignore.is_ignored(os.path.join(absolute, name), is_folder=is_folder)
        ]

    def lines(self) -> list[str]:
        """Return the entries as indented lines."""
        lines = [f"- {self._root.rstrip('/')}/"]
        waiting = [("", entry, 1) for entry in reversed(self.children.get("", []))]
        while waiting:
            folder, entry, level = waiting.pop()
            path = os.path.join(folder, entry.name)
            end = "/" if entry.is_folder else f" -> {as_one_line(entry.target)}" if entry.target else ""
            lines.append(f"{'  ' * level}- {as_one_line(entry.name)}{end}")
            waiting += [(path, child, level + 1) for child in reversed(self.children.get(path, []))]
        return lines


class Ls(BaseTool[LsArguments]):
    """The tool `ls`: lists a directory as a tree."""

    name = "ls"
    arguments = LsArguments
    is_parallel = True

    def __init__(self, settings: Callable[[], ToolSettings] = ToolSettings) -> None:
        super().__init__()
        self._settings = settings

    async def act(self, context: ToolContext, arguments: LsArguments) -> ToolOutcome:
        """Return the tree below the directory."""
        location = await resolve_location(context, arguments.path)
        params = {"path": location.path, "ignore": list(arguments.ignore), "depth": arguments.depth}
        await context.permit(Permit(self.name, "list", location.path, f"List directory {location.path}", params))
        stop = threading.Event()
        try:
            listing = await asyncio.to_thread(self._list_directory, location, arguments, stop)
        finally:
            stop.set()
        counts = metadata(number_of_files=listing.files, truncated=listing.is_truncated)
        lines = listing.lines()
        if len(lines) == 1:
            lines.append("(empty, or only ignored entries)")
        if listing.is_truncated:
            lines.append(f"(more than {listing.files} entries; only the upper levels are shown. List a subdirectory.)")
        return ToolOutcome("\n".join(lines), counts)

    def _list_directory(self, location: FileLocation, arguments: LsArguments, stop: threading.Event) -> Listing:
        limits = self._settings().ls
        is_repository = repository_of(location.path) is not None
        most = limits.get("max_items") or (_MAX_ITEMS if is_repository else _MAX_ITEMS_ELSEWHERE)
        depth = arguments.depth or limits.get("max_depth") or (0 if is_repository else _MAX_DEPTH_ELSEWHERE)
        ignore = IgnoreRules(location.path, extra=arguments.ignore)
        try:
            handle = open_directory(location.path)
        except FileNotFoundError:
            raise ToolError(f"There is no directory {location.name}.") from None
        except NotADirectoryError:
            raise ToolError(f"{location.name} is a file, not a directory. Use view to read it.") from None
        except OSError as error:
            raise ToolError(f"{location.name} cannot be listed: {(error.strerror or 'refused').lower()}.") from None
        listing = Listing(location, handle, ignore, most, max(0, depth), stop)
        listing.walk()
        return listing
