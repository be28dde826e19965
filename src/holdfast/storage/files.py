"""The tables of file versions and read marks. A content is stored once, however many versions have it."""

import hashlib

import apsw
import msgspec

from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import SessionId
from holdfast.storage.large import may_keep

__all__ = ["FileTable"]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(FileVersion)
_SELECT = "SELECT f.body, c.content FROM files AS f LEFT JOIN contents AS c ON c.key = f.content"


def _version(body: bytes, content: str | None) -> FileVersion:
    """Rows from before there were contents have theirs in the body."""
    file = _decoder.decode(body)
    return file if content is None else msgspec.structs.replace(file, content=content)


class FileTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        for row in self._connection.execute(
            f"{_SELECT} WHERE f.workspace = ? AND f.session = ? AND f.path = ? ORDER BY f.version DESC LIMIT 1",
            (self._workspace, session_id, path),
        ):
            return _version(*row)
        return None

    def add(self, file: FileVersion) -> None:
        body = _encoder.encode(msgspec.structs.replace(file, content=""))
        self._connection.execute(
            "INSERT INTO files (workspace, session, path, version, body, content) VALUES (?, ?, ?, ?, ?, ?)",
            (self._workspace, file.session_id, file.path, file.version, body, self._content_key(file.content)),
        )

    def _content_key(self, content: str) -> int:
        digest = hashlib.blake2b(content.encode(), digest_size=32).digest()
        for (key,) in self._connection.execute(
            "SELECT key FROM contents WHERE workspace = ? AND digest = ?", (self._workspace, digest)
        ):
            return int(key)
        self._connection.execute(
            "INSERT INTO contents (workspace, digest, content) VALUES (?, ?, ?)",
            (self._workspace, digest, content),
            can_cache=may_keep(content),
        )
        return self._connection.last_insert_rowid()

    def mark(self, mark: ReadMark) -> None:
        self._connection.execute(
            "INSERT INTO read_marks (workspace, session, path, read_at, digest) VALUES (?1, ?2, ?3, ?4, ?5)"
            " ON CONFLICT (workspace, session, path) DO UPDATE SET read_at = ?4, digest = ?5",
            (self._workspace, mark.session_id, mark.path, mark.read_at, mark.digest),
        )

    def of_session(self, session_id: SessionId) -> list[FileVersion]:
        rows = self._connection.execute(
            f"{_SELECT} WHERE f.workspace = ? AND f.session = ? ORDER BY f.path, f.version",
            (self._workspace, session_id),
        )
        return [_version(*row) for row in rows]

    def read_mark(self, session_id: SessionId, path: str) -> ReadMark | None:
        for read_at, digest in self._connection.execute(
            "SELECT read_at, digest FROM read_marks WHERE workspace = ? AND session = ? AND path = ?",
            (self._workspace, session_id, path),
        ):
            return ReadMark(session_id, path, read_at, digest)
        return None

    def read_marks(self, session_id: SessionId) -> list[ReadMark]:
        rows = self._connection.execute(
            "SELECT path, read_at, digest FROM read_marks WHERE workspace = ? AND session = ?"
            " ORDER BY read_at DESC, path",
            (self._workspace, session_id),
        )
        return [ReadMark(session_id, path, read_at, digest) for path, read_at, digest in rows]
