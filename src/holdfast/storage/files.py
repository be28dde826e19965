"""The tables of file versions and read marks."""

import apsw
import msgspec

from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import SessionId

__all__ = ["FileTable"]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(FileVersion)


class FileTable:
    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self._connection = connection
        self._workspace = workspace

    def latest(self, session_id: SessionId, path: str) -> FileVersion | None:
        for (body,) in self._connection.execute(
            "SELECT body FROM files WHERE workspace = ? AND session = ? AND path = ? ORDER BY version DESC LIMIT 1",
            (self._workspace, session_id, path),
        ):
            return _decoder.decode(body)
        return None

    def add(self, file: FileVersion) -> None:
        self._connection.execute(
            "INSERT INTO files (workspace, session, path, version, body) VALUES (?, ?, ?, ?, ?)",
            (self._workspace, file.session_id, file.path, file.version, _encoder.encode(file)),
        )

    def mark(self, mark: ReadMark) -> None:
        self._connection.execute(
            "INSERT INTO read_marks (workspace, session, path, read_at) VALUES (?1, ?2, ?3, ?4)"
            " ON CONFLICT (workspace, session, path) DO UPDATE SET read_at = ?4",
            (self._workspace, mark.session_id, mark.path, mark.read_at),
        )

    def of_session(self, session_id: SessionId) -> list[FileVersion]:
        rows = self._connection.execute(
            "SELECT body FROM files WHERE workspace = ? AND session = ? ORDER BY path, version",
            (self._workspace, session_id),
        )
        return [_decoder.decode(body) for (body,) in rows]

    def read_mark(self, session_id: SessionId, path: str) -> ReadMark | None:
        for (read_at,) in self._connection.execute(
            "SELECT read_at FROM read_marks WHERE workspace = ? AND session = ? AND path = ?",
            (self._workspace, session_id, path),
        ):
            return ReadMark(session_id, path, read_at)
        return None

    def read_marks(self, session_id: SessionId) -> list[ReadMark]:
        rows = self._connection.execute(
            "SELECT path, read_at FROM read_marks WHERE workspace = ? AND session = ? ORDER BY read_at DESC, path",
            (self._workspace, session_id),
        )
        return [ReadMark(session_id, path, read_at) for path, read_at in rows]
