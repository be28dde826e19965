"""Deleted content is in no file: neither in pages of the database nor in its write-ahead log."""

import random
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain.events import MessageDelta
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    CancelSession,
    CreateSession,
    DeleteSession,
    EndRun,
    GrowMessage,
    PutMessage,
    Receipt,
    StartRun,
    StepRun,
    Write,
)
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.storage.writer_thread import Writer
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from holdfast.testing.gates import until


def files_containing(data: Path, text: str) -> list[str]:
    return [path.name for path in data.iterdir() if path.is_file() and text.encode() in path.read_bytes()]


class SessionWriter:
    """Writes texts of all lengths into sessions, so that pages are split, merged and reused."""

    def __init__(self, workspace_owner: WorkspaceOwner, seed: int) -> None:
        self._desk = workspace_owner
        self._dice = random.Random(seed)
        self._count = 0
        self._messages: list[tuple[MessageId, str]] = []

    def _text(self, name: str) -> str:
        return " ".join(
            f"canary-{name}-{self._dice.randrange(10**9)}" for _ in range(int(10 ** self._dice.uniform(0, 3)))
        )

    def write(self, name: str) -> Write:
        self._count += 1
        number, where = self._count, SessionId(name)
        match self._dice.randrange(5):
            case 0:
                end = EndRun(RunId(f"r{number}"), "failed", 9, error=self._text(name), text=self._text(name))
                return Write((Admit(run(f"r{number}", session=name, prompt=self._text(name)), b""), end))
            case 1 if self._messages:
                known, owner = self._dice.choice(self._messages)
                return Write((PutMessage(message(known, self._text(owner), session=owner)),))
            case 2 if self._messages:
                known, owner = self._dice.choice(self._messages)
                delta = MessageDelta(SessionId(owner), known, 0, 0, self._text(owner))
                return Write((GrowMessage((delta,)),))
            case 3:
                return Write((AddFile(FileVersion(f"f{number}", where, f"/p/{number}", self._text(name), 0, 1, 1)),))
            case _:
                self._messages.append((MessageId(f"m{number}"), name))
                return Write((PutMessage(message(f"m{number}", self._text(name), session=name)),))

    def delete(self, name: str) -> None:
        self._messages = [item for item in self._messages if item[1] != name]


@pytest.mark.parametrize("seed", [17, 18])
async def test_content_of_a_deleted_session_is_in_no_file(seed: int, tmp_path: Path) -> None:
    """Both seeds leave bytes in a page that was split, which `secure_delete` does not overwrite."""
    workspace_owner = await WorkspaceOwner.open(SqliteLedger(tmp_path))
    names = [f"s{number}" for number in range(6)]
    await workspace_owner.do(*(CreateSession(session(name)) for name in names))
    scribe, rng = SessionWriter(workspace_owner, seed), random.Random(seed)
    for _ in range(80):
        await workspace_owner.batch(*(scribe.write(rng.choice(names)) for _ in range(5)))
    for name in names[:4]:
        await workspace_owner.do(DeleteSession(SessionId(name)))
        scribe.delete(name)
        assert files_containing(tmp_path, f"canary-{name}-") == []
    assert files_containing(tmp_path, "canary-s5-") != []
    await workspace_owner.ledger.close()  # type: ignore[attr-defined]
    with closing(apsw.Connection(str(tmp_path / "holdfast.db"))) as connection:
        assert connection.pragma("integrity_check") == "ok"


async def test_the_answer_to_a_cancel_does_not_keep_the_prompt(tmp_path: Path) -> None:
    """The answers of the last batch are stored: they name the runs that a cancel returned, without their content."""
    ledger = SqliteLedger(tmp_path)
    owner = await WorkspaceOwner.with_session(ledger)
    await owner.do(Admit(run("r1", prompt="canary-s-1"), b"hash"))
    operations = (CancelSession(SessionId("s")), EndRun(RunId("r1"), "cancelled", 9), DeleteSession(SessionId("s")))
    answer, *_ = await owner.batch(*(Write((operation,)) for operation in operations))
    assert isinstance(answer, Receipt)
    assert [item.prompt for item in answer.runs] == ["canary-s-1"]
    assert files_containing(tmp_path, "canary-s-1") == []
    await ledger.close()


async def test_each_large_content_is_stored_once(tmp_path: Path) -> None:
    """A prompt is shown by every row of its run, and a content may be that of several versions and files."""
    ledger = SqliteLedger(tmp_path)
    owner = await WorkspaceOwner.with_session(ledger)
    texts = {name: f"canary-{name}-" + "x" * 40_000 for name in ("prompt", "message", "file")}
    await owner.do(Admit(run("r1", prompt=texts["prompt"]), b"hash"))
    await owner.do(StartRun(RunId("r1"), 5))
    await owner.do(StepRun(RunId("r1"), 1))
    await owner.do(PutMessage(message("m1", texts["message"])))
    for number in range(3):
        await owner.do(AddFile(FileVersion(f"f{number}", SessionId("s"), f"/{number % 2}", texts["file"], 0, 1, 1)))
    assert (await owner.get("r1")).prompt == texts["prompt"]
    await ledger.close()
    columns = ("runs.body", "inputs.prompt", "messages.body", "files.body", "contents.content")
    with closing(apsw.Connection(str(tmp_path / "holdfast.db"))) as connection:
        found = {
            column: [
                text
                for (value,) in connection.execute(f"SELECT {column} FROM {column.partition('.')[0]}")
                for text in texts
                if f"canary-{text}-" in (value if isinstance(value, str) else bytes(value or b"").decode())
            ]
            for column in columns
        }
        digests = connection.execute("SELECT length(digest) FROM contents").fetchall()
    assert digests == [(32,)], "as in databases of earlier versions, whose contents are found by them"
    assert found == dict(zip(columns, ([], ["prompt"], ["message"], [], ["file"]), strict=True))


@pytest.mark.parametrize("attempts", [1, 4])
async def test_reader_with_an_old_snapshot_only_delays_the_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """The deletion is acknowledged; the log is erased as soon as the other program has finished reading, however often
    that was tried before.
    """
    monkeypatch.setattr("holdfast.storage.writer_thread._ERASE_TIMEOUT_MS", 10)
    monkeypatch.setattr("holdfast.storage.writer_thread._IDLE_SECONDS", 0.01)
    tried: list[int] = []
    erase = Writer._erase_wal

    def count_and_erase(writer: Writer, timeout: int) -> None:
        tried.append(timeout)
        erase(writer, timeout)

    monkeypatch.setattr(Writer, "_erase_wal", count_and_erase)
    ledger = SqliteLedger(tmp_path)
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    await workspace_owner.do(PutMessage(message("m", "canary-s-1")))
    with closing(apsw.Connection(str(tmp_path / "holdfast.db"))) as reader:
        with reader:
            assert reader.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]
            await workspace_owner.do(DeleteSession(SessionId("s")))
            await until(lambda: len(tried) >= attempts)
            assert files_containing(tmp_path, "canary-s-1") != []
        await until(lambda: not files_containing(tmp_path, "canary-s-1"))
    await ledger.close()
