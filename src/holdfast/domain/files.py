"""Versions of the files that a session changed, marks of the files that it read, and undo."""

from typing import Literal

import msgspec

from holdfast.domain.ids import RunId, SessionId

__all__ = ["FileVersion", "Origin", "ReadMark", "UndoReport", "UndoRequest", "UndoneFile"]

Origin = Literal["tool", "outside", "undo"]
"""The origin of a version: a tool of the session, a change from outside before it, or an undo."""


class FileVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One state of a file in a session's history. The store numbers the versions from 0 per session and path.

    The old state of a file is stored before the file is changed, so every change has a preceding version. `is_missing`:
    there was no file, which differs from an empty one. `restores` is the version to which an undo returned.
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
        """Return True if both versions have the same content or are both missing."""
        return self.content == other.content and self.is_missing == other.is_missing


class ReadMark(msgspec.Struct, frozen=True):
    """The time at which a session last read a file, in Unix milliseconds, and the digest of the bytes. If the digest is
    unknown it is empty, and only the time is compared.
    """

    session_id: SessionId
    path: str
    read_at: int
    digest: str = ""


class UndoRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """An undo request: for the last change of a file, for all changes of a run, or for those of the last run.

    Without a `session_id` it applies to the run's session, or to the one that changed a file last. `force` proceeds
    even
    if a file has changed since; `dry_run` only reports the plan.
    """

    path: str = ""
    run_id: RunId = RunId("")
    dry_run: bool = False
    force: bool = False
    session_id: SessionId = SessionId("")


class UndoneFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result for one file: `restored` to its earlier content, `removed` because the change created it, `unchanged`
    because it already has that content, or `refused` with a `reason`. `diff` shows the effect.
    """

    path: str
    outcome: Literal["restored", "removed", "unchanged", "refused"]
    version: int
    diff: str = ""
    reason: str = ""


class UndoReport(msgspec.Struct, frozen=True):
    """The result of an undo. Unless `is_done`, nothing was changed: it was a dry run, or one file was refused."""

    files: tuple[UndoneFile, ...]
    is_done: bool
