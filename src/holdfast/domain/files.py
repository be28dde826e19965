"""Versions of files a session changed, and what it has read."""

import msgspec

from holdfast.domain.ids import SessionId

__all__ = ["FileVersion", "ReadMark"]


class FileVersion(msgspec.Struct, frozen=True):
    """One state of a file in a session's history. Versions count from 0 per session and path; the store counts."""

    id: str
    session_id: SessionId
    path: str
    content: str
    version: int
    created_at: int
    updated_at: int


class ReadMark(msgspec.Struct, frozen=True):
    """When a session last read a file, in Unix milliseconds."""

    session_id: SessionId
    path: str
    read_at: int
