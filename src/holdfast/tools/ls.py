"""List a directory as a tree."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.domain.errors import ToolError
from holdfast.domain.settings import ToolSettings
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.changing import place_of
from holdfast.workspace.files import Place, descend
from holdfast.workspace.git_repository import repository_of
from holdfast.workspace.ignore import Ignore
from holdfast.workspace.paths import in_one_line

__all__ = ["Ls", "LsArguments"]

_MOST = 1_000
_MOST_ELSEWHERE = 100
_DEPTH_ELSEWHERE = 2


class LsArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="The directory; the workspace's if left out.")] = "."
    ignore: Annotated[tuple[str, ...], Meta(description="Patterns to leave out, as in .gitignore.")] = ()
    depth: Annotated[int, Meta(description="How many levels to show; 0 means all.")] = 0


class _Listing:
    """A walk, level by level, so that a long list is cut at the bottom of the tree and not at its side."""

    def __init__(self, root: str, ignore: Ignore, most: int, depth: int) -> None:
        self.children: dict[str, list[tuple[str, bool]]] = {}
        self.files = 0
        self.is_truncated = False
        self.stop = threading.Event()
        self._root, self._ignore, self._most, self._depth = root, ignore, most, depth

    def walk(self) -> None:
        waiting = deque([(self._root, 1)])
        count = 0
        while waiting and not self.stop.is_set() and not self.is_truncated:
            folder, level = waiting.popleft()
            entries = self._entries(folder)
            room = self._most - count
            if len(entries) > room:
                self.is_truncated = True
                entries = entries[:room]
            self.children[folder] = [(name, is_folder) for name, is_folder in entries]
            count += len(entries)
            self.files += len(entries)
            below = [os.path.join(folder, name) for name, is_folder in entries if is_folder]
            if not self._depth or level < self._depth:
                waiting += [(path, level + 1) for path in below]

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        try:
            with os.scandir(folder) as items:
                for item in items:
                    is_folder = item.is_dir(follow_symlinks=False)
                    if not self._ignore.is_ignored(item.path, is_folder=is_folder):
                        found.append((item.name, is_folder))
        except OSError:
            return []
        return sorted(found)

    def lines(self) -> list[str]:
        lines = [f"- {self._root.rstrip('/')}/"]
        waiting = [(self._root, name, is_folder, 1) for name, is_folder in reversed(self.children[self._root])]
        while waiting:
            folder, name, is_folder, level = waiting.pop()
            path = os.path.join(folder, name)
            lines.append(f"{'  ' * level}- {in_one_line(name)}{'/' if is_folder else _target(path)}")
            below = self.children.get(path, []) if is_folder else []
            waiting += [(path, child, kind, level + 1) for child, kind in reversed(below)]
        return lines


class Ls(BaseTool[LsArguments]):
    name = "ls"
    arguments = LsArguments
    is_parallel = True

    def __init__(self, settings: Callable[[], ToolSettings] = ToolSettings) -> None:
        super().__init__()
        self._settings = settings

    async def act(self, context: ToolContext, arguments: LsArguments) -> ToolOutcome:
        place = await place_of(context, arguments.path)
        params = {"path": place.path, "ignore": list(arguments.ignore), "depth": arguments.depth}
        await context.permit(Permit(self.name, "list", place.path, f"List directory {place.path}", params))
        listing = await asyncio.to_thread(self._prepared, place, arguments)
        try:
            await asyncio.to_thread(listing.walk)
        finally:
            listing.stop.set()
        told = metadata(number_of_files=listing.files, truncated=listing.is_truncated)
        lines = listing.lines()
        if len(lines) == 1:
            lines.append("(nothing in it, or only what is ignored)")
        if listing.is_truncated:
            lines.append(f"(more than {listing.files} entries; only the upper levels are shown. List a part of it.)")
        return ToolOutcome("\n".join(lines), told)

    def _prepared(self, place: Place, arguments: LsArguments) -> _Listing:
        try:
            os.close(descend(place.path))
        except FileNotFoundError:
            raise ToolError(f"There is no directory {place.name}.") from None
        except NotADirectoryError:
            raise ToolError(f"{place.name} is a file, not a directory. Use view to read it.") from None
        except OSError as error:
            raise ToolError(f"{place.name} cannot be listed: {(error.strerror or 'refused').lower()}.") from None
        limits = self._settings().ls
        is_repository = repository_of(place.path) is not None
        most = limits.get("max_items") or (_MOST if is_repository else _MOST_ELSEWHERE)
        depth = arguments.depth or limits.get("max_depth") or (0 if is_repository else _DEPTH_ELSEWHERE)
        return _Listing(place.path, Ignore(place.path, extra=arguments.ignore), most, max(0, depth))


def _target(path: str) -> str:
    """Where a link leads."""
    try:
        return f" -> {in_one_line(os.readlink(path))}" if os.path.islink(path) else ""
    except OSError:
        return ""
