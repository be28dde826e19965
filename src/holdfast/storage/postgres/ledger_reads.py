"""The reads of the ledger: each is one statement, decoded into domain types. An unknown workspace reads as empty."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.domain.errors import OwnerChanged
from holdfast.domain.events import MessageDelta, MessageDeltaEvent, MessagePart, MessagePartEvent
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.message_merge import grow
from holdfast.domain.messages import Message
from holdfast.domain.runs import Attachment, PromptExpansion, Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Briefing, RunRecord, Snapshot
from holdfast.domain.usage import Stats
from holdfast.storage.postgres.apply_call import sections
from holdfast.storage.postgres.batch_keys import encode_path, searchable
from holdfast.storage.postgres.connection_pool import Pool, Row
from holdfast.storage.postgres.loaded_tables import decode_run, decode_session, decode_version
from holdfast.storage.stats_builder import StatsBuilder

__all__ = ["Reads", "statements"]

_ENDED_IN_SNAPSHOT = 50
"""Number of ended runs in a snapshot."""
_MAX_NUMBER = (1 << 63) - 1

statements = sections("read.sql")

_message_decoder = msgspec.json.Decoder(Message)
_growth_decoder = msgspec.json.Decoder(tuple[MessageDeltaEvent | MessagePartEvent, ...])
_mark_decoder = msgspec.json.Decoder(ReadMark)
_attachment_decoder = msgspec.msgpack.Decoder(tuple[Attachment, ...])
_brief_decoder = msgspec.msgpack.Decoder(PromptExpansion)


class Reads:
    """The read methods of the ledger. Workspaces are found by a small key, which never changes."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._keys: dict[WorkspaceId, int] = {}

    async def key(self, workspace: WorkspaceId) -> int:
        """Return the key of a workspace, or 0, which no workspace has."""
        if workspace not in self._keys:
            rows = await self.pool.fetch(statements["key"], searchable(workspace))
            if not rows:
                return 0
            self._keys[workspace] = rows[0]["key"]
        return self._keys[workspace]

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return numbers and bodies of the events after `cursor`, at most `limit`."""
        return [(row["number"], row["body"]) for row in await self._events(workspace, cursor, limit)]

    async def dated_events(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, int, bytes]]:
        """Return numbers, times and bodies of the events after `cursor`, at most `limit`."""
        return [(row["number"], row["at"], row["body"]) for row in await self._events(workspace, cursor, limit)]

    async def _events(self, workspace: WorkspaceId, cursor: int, limit: int) -> list[Row]:
        key = await self.key(workspace)
        return await self.pool.fetch(statements["events"], key, min(cursor, _MAX_NUMBER), limit)

    async def inputs_after(
        self, workspace: WorkspaceId, epoch: int, cursor: int, limit: int
    ) -> Sequence[tuple[int, bytes]]:
        """Return the events after `cursor`. Raises `OwnerChanged` if `epoch` is not the current one."""
        key = await self.key(workspace)
        rows = await self.pool.fetch(statements["inputs"], key, min(cursor, _MAX_NUMBER), limit)
        if not rows or rows[0]["epoch"] != epoch:
            raise OwnerChanged
        return [(row["number"], row["body"]) for row in rows if row["number"] is not None]

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        """Return the numbers of the oldest and the newest event. The oldest is larger if the log is empty."""
        rows = await self._fetch("bounds", workspace)
        if not rows:
            return 1, 0
        return rows[0]["oldest"] or rows[0]["newest"] + 1, rows[0]["newest"]

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        """Return the state of a workspace at one cursor, with the messages of one session."""
        wanted = None if session is None else searchable(session)
        found: dict[str, list[Row]] = defaultdict(list)
        for row in await self._fetch("snapshot", workspace, wanted, _ENDED_IN_SNAPSHOT):
            found[row["kind"]].append(row)
        if not found["workspace"]:
            return Snapshot(0, 0, (), (), ())
        sessions = [(decode_session(row["body"]), row["a"]) for row in found["session"]]
        sessions.sort(key=lambda item: (item[0].updated_at, item[1]), reverse=True)
        runs = sorted(found["run"], key=lambda row: row["a"])
        return Snapshot(
            cursor=found["workspace"][0]["b"],
            epoch=found["workspace"][0]["a"],
            sessions=tuple(item for item, _ in sessions),
            messages=tuple(_messages((*found["message"], *found["growth"]))),
            runs=tuple(decode_run(row["body"], row["extra"]) for row in runs),
        )

    async def sessions(self, workspace: WorkspaceId) -> Sequence[Session]:
        """Return the sessions without a parent, latest change first."""
        return [decode_session(row["body"]) for row in await self._fetch("sessions", workspace)]

    async def session(self, workspace: WorkspaceId, session: SessionId) -> Session | None:
        """Return a session, or None."""
        rows = await self._fetch("session", workspace, searchable(session))
        return decode_session(rows[0]["body"]) if rows else None

    async def messages(self, workspace: WorkspaceId, session: SessionId) -> Sequence[Message]:
        """Return the messages of a session in conversation order."""
        return _messages(await self._fetch("messages", workspace, searchable(session)))

    async def messages_of_run(self, workspace: WorkspaceId, run: RunId) -> Sequence[Message]:
        """Return the messages of a run in conversation order."""
        return _messages(await self._fetch("messages_of_run", workspace, searchable(run)))

    async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None:
        """Return a run with its input, or None."""
        rows = await self._fetch("run", workspace, searchable(run))
        return _record(rows[0]) if rows else None

    async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
        """Return a run with its session and the session's messages, or None."""
        rows = await self._fetch("briefing", workspace, searchable(run))
        records = [_record(row) for row in rows if row["kind"] == "run"]
        sessions = [decode_session(row["body"]) for row in rows if row["kind"] == "session"]
        if not records or not sessions:
            return None
        return Briefing(records[0], sessions[0], tuple(_messages(rows)))

    async def open_runs(self, workspace: WorkspaceId) -> Sequence[Run]:
        """Return all runs without an outcome, in queue order."""
        return _runs(await self._fetch("open_runs", workspace))

    async def runs(self, workspace: WorkspaceId, session: SessionId | None, limit: int, before: int) -> Sequence[Run]:
        """Return runs of one session or of all, newest first. `before` is a number, 0 for the newest page."""
        last = min(before or _MAX_NUMBER, _MAX_NUMBER)
        if session is None:
            return _runs(await self._fetch("runs", workspace, last, limit))
        return _runs(await self._fetch("runs_of_session", workspace, last, limit, searchable(session)))

    async def files(self, workspace: WorkspaceId, session: SessionId) -> Sequence[FileVersion]:
        """Return all file versions of a session by path and version."""
        rows = await self._fetch("files", workspace, searchable(session))
        return [decode_version(row["body"], row["content"]) for row in rows]

    async def read_mark(self, workspace: WorkspaceId, session: SessionId, path: str) -> ReadMark | None:
        """Return the read mark of a file, or None."""
        rows = await self._fetch("read_mark", workspace, searchable(session), encode_path(path))
        return _mark_decoder.decode(rows[0]["body"]) if rows else None

    async def read_marks(self, workspace: WorkspaceId, session: SessionId) -> Sequence[ReadMark]:
        """Return the read marks of a session, latest first."""
        rows = await self._fetch("read_marks", workspace, searchable(session))
        marks = [_mark_decoder.decode(row["body"]) for row in rows]
        return sorted(marks, key=lambda mark: (-mark.read_at, mark.path))

    async def stats(self, workspace: WorkspaceId | None, zone: int = 0) -> Stats:
        """Return usage figures of one workspace or of all, by a clock that is `zone` minutes ahead of UTC."""
        builder = StatsBuilder(zone)
        paths: list[str] = []
        for row in await self.pool.fetch(statements["stats"], workspace):
            paths.append(bytes(row["path"]).decode("utf-8", "backslashreplace"))
            for session in await self.pool.fetch(statements["stats_sessions"], row["key"]):
                builder.add_session(session["body"])
            for message in await self.pool.fetch(statements["stats_messages"], row["key"]):
                builder.add_message(message["body"])
            for run in await self.pool.fetch(statements["stats_runs"], row["key"]):
                builder.add_run(run["outcome"], run["body"])
        return builder.result(tuple(paths))

    async def _fetch(self, name: str, workspace: WorkspaceId, *arguments: object) -> list[Row]:
        return await self.pool.fetch(statements[name], await self.key(workspace), *arguments)


def _runs(rows: Iterable[Row]) -> list[Run]:
    return [decode_run(row["body"], row["prompt"]) for row in rows]


def _record(row: Row) -> RunRecord:
    attachments, brief = row["attachments"], row["brief"]
    return RunRecord(
        decode_run(row["body"], row["prompt"]),
        row["body_hash"],
        _attachment_decoder.decode(attachments) if attachments else (),
        _brief_decoder.decode(brief) if brief else None,
    )


def _messages(rows: Iterable[Row]) -> list[Message]:
    """Return the messages among the rows in conversation order, with their growth applied."""
    growth: dict[str, list[MessageDelta | MessagePart]] = defaultdict(list)
    ordered = sorted((row for row in rows if row["kind"] in {"message", "growth"}), key=lambda row: row["a"])
    for row in ordered:
        if row["kind"] == "growth":
            growth[row["id"]].extend(event.payload for event in _growth_decoder.decode(row["body"]))
    messages = (row for row in ordered if row["kind"] == "message")
    return [grow(_message_decoder.decode(row["body"]), growth.get(row["id"], ())) for row in messages]
