"""Versions of files a session changed, what it has read, and taking changes back."""

from typing import Literal

import msgspec

from holdfast.domain.ids import RunId, SessionId

__all__ = ["FileVersion", "Origin", "ReadMark", "UndoAsk", "UndoReport", "UndoneFile"]

Origin = Literal["tool", "outside", "undo"]
"""Who made a version: a tool of the session, somebody else before it, or somebody who took a change back."""


class FileVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state of a file in a session's history. Versions count from 0 per session and path; the store counts.

    Before a file is changed its old state is stored, so every change has a version before it. `is_missing`: there
    was no file, which is another state than an empty one. `restores` is the version an undo went back to.
    """

    id: str
    session_id: SessionId
    path: str
    content: str
    version: int
    created_at: int
    updated_at: int
    run_id: RunId = RunId("")
    origin: Origin = "tool"
    is_missing: bool = False
    restores: int = -1

    def is_same_state(self, other: "FileVersion") -> bool:
        return self.content == other.content and self.is_missing == other.is_missing


class ReadMark(msgspec.Struct, frozen=True):
    """When a session last read a file, in Unix milliseconds, and the digest of the bytes it read; empty if nobody
    knows, then only the time counts.
    """

    session_id: SessionId
    path: str
    read_at: int
    digest: str = ""


class UndoAsk(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be taken back: the last change of a file, or all that a run changed, or the last run's changes.

    Without a `session_id` it is the run's session, or the one that changed something last. `force` goes on where
    a file has changed since; `dry_run` only says what would be done.
    """

    path: str = ""
    run_id: RunId = RunId("")
    dry_run: bool = False
    force: bool = False
    session_id: SessionId = SessionId("")


class UndoneFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one file: `restored` to what it was, `removed` because it was made by the change, left
    `unchanged` because it is so already, or `refused`. `diff` shows what is gained by it, or why not.
    """

    path: str
    outcome: Literal["restored", "removed", "unchanged", "refused"]
    version: int
    diff: str = ""
    reason: str = ""


class UndoReport(msgspec.Struct, frozen=True):
    """Unless `is_done`, nothing was changed: because only a plan was asked for, or one file was refused."""

    files: tuple[UndoneFile, ...]
    is_done: bool
