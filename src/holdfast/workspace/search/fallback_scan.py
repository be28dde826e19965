"""Search without external programs: walks the files in a separate process that can be killed at any time.

`python -m holdfast.workspace.search.fallback_scan '{"root": …}'` prints `path NUL line:column:text` for each match,
or without a pattern `path NUL` for each file. Paths are relative to the root.
"""

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.workspace.files.ignore_files import IgnoreRules
from holdfast.workspace.files.safe_open import entries_of, open_beneath, stream_of

__all__ = ["ScanRequest", "main", "walk"]

_MAX_FILE_SIZE = 64 * 1024 * 1024
_MAX_LINE = 1_000
_CONTEXT_DEPENDENT = re.compile(r"\\[AZzbB]|\(\?|\\n|\\s|\\r|\[\^|\\[WDS]")
"""Constructs whose meaning may differ between a whole file and a single line."""


class ScanRequest(NamedTuple):
    """Search request. `name`: only this file. `limit`: maximum matches per file."""

    root: str
    name: str = ""
    pattern: str | None = None
    is_literal: bool = False
    limit: int = 101


def walk(handle: int, root: str, ignore: IgnoreRules) -> Iterator[str]:
    """Yield the relative paths of all plain files below an open directory that are not ignored. Links
    are not followed.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = entries_of(handle, folder)
        except OSError:
            continue
        folders: list[str] = []
        for name, is_folder, is_file, _ in entries:
            path = os.path.join(folder, name)
            if ignore.is_ignored(os.path.join(root, path), is_folder=is_folder):
                continue
            if is_folder:
                folders.append(path)
            elif is_file:
                yield path
        pending += reversed(folders)


def main() -> int:
    """Run the search given as JSON in the first argument; print the results."""
    request = ScanRequest(**json.loads(sys.argv[1]))
    out = sys.stdout.buffer
    # The caller has verified the working directory.
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    paths = iter([request.name]) if request.name else walk(handle, request.root, IgnoreRules(request.root))
    if request.pattern is None:
        for path in paths:
            out.write(os.fsencode(path) + b"\0")
        return 0
    try:
        finder = re.compile(re.escape(request.pattern) if request.is_literal else request.pattern)
    except re.error as error:
        sys.stderr.write(f"{error}")
        return 2
    search = _make_search(request, finder, handle)
    for path in paths:
        name = os.fsencode(path)
        for line, column, text in search(path):
            out.write(b"%s\0%d:%d:%s\n" % (name, line, column, text.encode("utf-8", "replace")))
        out.flush()
    return 0


SearchFile = Callable[[str], Iterator[tuple[int, int, str]]]


def _make_search(request: ScanRequest, finder: re.Pattern[str], handle: int) -> SearchFile:
    is_simple = request.is_literal or not _CONTEXT_DEPENDENT.search(request.pattern or "")
    quick = re.compile(finder.pattern, re.MULTILINE) if is_simple else None

    def search(path: str) -> Iterator[tuple[int, int, str]]:
        text = _text(handle, path)
        if not text or (quick is not None and quick.search(_with_plain_ends(text)) is None):
            return
        shown = 0
        for number, line in enumerate(text.split("\n"), 1):
            match = finder.search(line.removesuffix("\r"))
            if match is not None:
                # Columns count bytes, as in ripgrep and git.
                column = len(line[: match.start()].encode("utf-8", "replace")) + 1
                yield number, column, line[:_MAX_LINE]
                shown += 1
                if shown >= request.limit:
                    return

    return search


def _with_plain_ends(text: str) -> str:
    """Return the text with the line ends that the search in single lines sees: `$` matches before a CRLF."""
    return text.replace("\r\n", "\n").removesuffix("\r") if "\r" in text else text


def _text(handle: int, path: str) -> str:
    """Return the content of a text file; empty for a binary or a very large one."""
    try:
        with stream_of(open_beneath(handle, path, os.O_RDONLY | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_SIZE:
                return ""
            head = stream.read(8_192)
            return "" if b"\0" in head else (head + stream.read()).decode("utf-8", "replace")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
