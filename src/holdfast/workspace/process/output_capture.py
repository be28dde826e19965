"""Output of a command: a bounded buffer for the text that is shown, and files for the rest, which a model can view."""

import codecs
import contextlib
import copy
import hashlib
import itertools
import os
import re
import secrets
import shutil
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

__all__ = ["MAX_SHOWN", "Output", "OutputFile", "OutputFiles", "is_output_file", "shorten"]


_MAX_FILE_SIZE = 16 * 1024 * 1024
_MAX_FILES = 64
_TRUNCATED = b"\n[The rest was not kept.]\n"
MAX_SHOWN = 30_000
"""Maximum number of output characters shown to a model."""
_BUFFER_SIZE = 65_536
_NAME = re.compile(r"[0-9a-f]{8}-\d+-(?:out|err)\.txt")


def is_output_file(path: str, workspace: str) -> bool:
    """Return whether a path has the form of an output of a command in a workspace, on this server or another one."""
    directory, name = os.path.split(path)
    is_below = f"/workspaces/{workspace}/output/" in f"{directory}/"
    return is_below and _NAME.fullmatch(name) is not None


class OutputFile:
    """Created on the first write. A disk failure loses the file, but does not affect the command."""

    def __init__(self, directory: "OutputFiles", kind: str) -> None:
        self._files = directory
        self._kind = kind
        self._file: BinaryIO | None = None
        self._size = 0
        self._is_full = False
        self.has_begun = False
        self.path: Path | None = None

    def describe(self) -> str:
        """Return which part of the output the file contains."""
        return f"Its first {_MAX_FILE_SIZE // 1_048_576} MiB" if self._is_full else "All of it"

    def add(self, text: str) -> None:
        """Append text, up to the maximum size."""
        if not self.has_begun:
            self.has_begun = True
            self._open()
        if self._file is None or self._is_full:
            return
        data = text.encode("utf-8", "replace")
        room = _MAX_FILE_SIZE - self._size
        self._is_full = len(data) > room
        self._size += len(data)
        try:
            self._file.write(data[:room] + _TRUNCATED if self._is_full else data)
        except OSError:
            self.path = None
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> None:
        try:
            self.path = self._files.new_path(self._kind)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self.path, flags, 0o600), "wb", buffering=0)
        except OSError:
            self.path = None


class OutputFiles:
    """A directory of output files with one subdirectory per session. The oldest are removed when there are too many."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._stem = secrets.token_hex(4)
        self._owner = ""

    def for_owner(self, owner: str) -> "OutputFiles":
        """Return a view of this directory for the commands of a session."""
        owned = copy.copy(self)
        owned._owner = owner
        return owned

    def new_file(self, kind: str) -> OutputFile:
        """Return a file that is created on the first write."""
        return OutputFile(self, kind)

    def new_path(self, kind: str) -> Path:
        """Return an unused path in the owner's directory, and remove the oldest files."""
        directory = self._directory_of(self._owner)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = sorted(self._directory.rglob("*.txt"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[: max(0, len(files) - _MAX_FILES + 1)]:
            with contextlib.suppress(OSError):
                os.unlink(file)
        return directory / f"{self._stem}-{next(self._numbers)}-{kind}.txt"

    def remove(self, owner: str, mentioned: Iterable[str] = ()) -> None:
        """Remove the files of a session. Files of earlier versions are not in its directory: `mentioned` are the names
        mentioned in its messages.
        """
        if owner:
            shutil.rmtree(self._directory_of(owner), ignore_errors=True)
        for name in mentioned:
            with contextlib.suppress(OSError):
                os.unlink(self._directory / os.path.basename(name))

    def _directory_of(self, owner: str) -> Path:
        """Return the directory of a session. Session ids may contain characters that are invalid in file names."""
        if not owner:
            return self._directory
        return self._directory / hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()


class Output:
    """One stream. Keeps the first and the last `limit` characters."""

    def __init__(self, limit: int = _BUFFER_SIZE) -> None:
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._head_size = 0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._lines = 0
        self.size = 0
        """Total number of characters, kept or not."""

    def feed(self, data: bytes) -> str:
        """Add bytes. Returns the newly completed text."""
        return self._add(self._decoder.decode(data))

    def finish(self) -> str:
        """Flush the decoder: an incomplete character is replaced. Idempotent."""
        return self._add(self._decoder.decode(b"", final=True))

    @property
    def is_whole(self) -> bool:
        """True if the buffer contains the complete output."""
        return self.size == self._head_size + self._tail_size

    @property
    def buffered(self) -> str:
        """The buffered text; equal to the output only if `is_whole`."""
        return "".join((*self._head, *self._tail))

    def excerpt(self, limit: int = MAX_SHOWN) -> str:
        """Return the text for a model: everything, or the first and last half with a note between them."""
        if self.is_whole:
            return shorten(self.buffered, limit)
        half = min(limit // 2, self._limit)
        return _join_halves("".join(self._head)[:half], "".join(self._tail)[-half:], self._lines)

    def _add(self, text: str) -> str:
        self.size += len(text)
        self._lines += text.count("\n")
        room = self._limit - self._head_size
        if room > 0:
            self._head.append(text[:room])
            self._head_size += len(self._head[-1])
        rest = text[max(room, 0) :]
        if rest:
            self._tail.append(rest[-self._limit :])
            self._tail_size += len(self._tail[-1])
            self._trim()
        return text

    def _trim(self) -> None:
        while self._tail_size - len(self._tail[0]) >= self._limit:
            self._tail_size -= len(self._tail.popleft())
        # Merge small pieces to bound their number.
        if len(self._tail) > 1_024:
            joined = "".join(self._tail)[-self._limit :]
            self._tail = deque([joined])
            self._tail_size = len(joined)


def shorten(text: str, limit: int = MAX_SHOWN) -> str:
    """Return a long text as its first and last half, with a note about the omitted lines between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return _join_halves(text[:half], text[len(text) - half :], text.count("\n"))


def _join_halves(first: str, last: str, lines: int) -> str:
    missing = max(1, lines - first.count("\n") - last.count("\n"))
    return f"{first}\n\n... [{missing} lines truncated] ...\n\n{last}"
