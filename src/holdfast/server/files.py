"""Handlers for files that a prompt can attach, for clients without access to the disk."""

import asyncio
import os

from holdfast.domain.errors import NotFound, ToolError
from holdfast.domain.runs import Attachment
from holdfast.protocol.attachments import LARGEST_FILE, kind_of
from holdfast.protocol.bodies import FileNames
from holdfast.protocol.problems import TooLarge
from holdfast.server.calls import Call
from holdfast.workspace.files import locate, look, read
from holdfast.workspace.search import Search, Searcher

__all__ = ["list_files", "read_file"]

_SECONDS = 5.0
_MOST = 20_000


class NoSuchFile(NotFound):
    """There is no such file in the workspace, or none that a model could read."""


class FileTooLarge(TooLarge):
    """The file is larger than 5 MB: a prompt cannot take it along. Name it by its path, and the model looks into it."""


async def list_files(call: Call) -> FileNames:
    """Return the files that a search would cover, without ignored ones."""
    root = await asyncio.to_thread(os.path.realpath, call.desk.path)
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        found = await Searcher(git=call.desk.outfit.git).files(Search(root, root, environment, _SECONDS, _MOST), "**")
    except (OSError, ToolError):
        raise NotFound("The directory of the workspace cannot be read.") from None
    return FileNames(found.paths, found.is_truncated or found.is_late)


async def read_file(call: Call) -> Attachment:
    """Return a file as an attachment."""
    given = call.query["path"]
    content = await asyncio.to_thread(_content, call.desk.path, given)
    kind = kind_of(given, content)
    if kind is None:
        raise NoSuchFile
    return Attachment(content, given, os.path.basename(given), kind)


def _content(root: str, given: str) -> bytes:
    try:
        place = locate(root, given)
        status = look(place) if place.is_inside else None
        if status is None:
            raise NoSuchFile
        if status.st_size > LARGEST_FILE:
            raise FileTooLarge
        return read(place, LARGEST_FILE).data
    except ToolError:
        raise NoSuchFile from None
