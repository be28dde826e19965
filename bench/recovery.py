"""Time until a workspace with many sessions is ready again after its server was killed."""

import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import apsw
import msgspec
import uvloop

from bench.figures import Figure
from bench.in_process import HeldModels, directory
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Finish, FinishPart, Text, TextPart
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Admit, CreateSession, EndRun, Operation, PutMessage, StartRun, Write
from holdfast.engine.message_factory import MessageFactory
from holdfast.runtime.workspace import FixedServices, SystemClock, new_id, open_workspace
from holdfast.storage.sqlite_ledger import SqliteLedger

__all__ = ["EVENTS_PER_TURN", "measure", "stored_session"]

SESSIONS = 10_000
UNFINISHED = 20
ROUNDS = 3
_AT_ONCE = 250
_WORKSPACE = "/bench"
_QUESTION = "What is wrong with this test? " * 4
_ANSWER = "It waits for the wrong event. "
_MODEL = ModelInfo("bench", "large")
EVENTS_PER_TURN = 5
"""Stored events of each turn of `stored_session`."""


def stored_session(number: int, now: int, turns: int = 1, *, is_ended: bool = True) -> Write:
    """Return the write of a session with turns of a prompt and an answer each. With `is_ended` the last run has one."""
    session = SessionId(f"session-{number:06}")
    made = Session(session, SessionId(""), f"Session {number}", 0, 0, 0, MessageId(""), 0.0, now, now, False, 0)
    operations: list[Operation] = [CreateSession(made)]
    for turn in range(turns):
        run = RunId(f"run-{number:06}-{turn}")
        author = MessageFactory(session, run, now // 1000, new_id)
        prompt, parts = (
            author.user(_QUESTION),
            (TextPart(Text(_ANSWER * 8)), FinishPart(Finish("end_turn", now // 1000))),
        )
        answer = msgspec.structs.replace(author.assistant(_MODEL), parts=parts)
        accepted = Run(run, session, "accepted", "queue", now, prompt=_QUESTION)
        operations += [Admit(accepted, b"hash"), StartRun(run, now), PutMessage(prompt), PutMessage(answer)]
        if is_ended or turn < turns - 1:
            operations.append(EndRun(run, "completed", now, message_id=answer.id, text=_ANSWER))
    return Write(tuple(operations), sync=False)


async def _fill(data: Path, killed: Path) -> None:
    """Make the sessions, then put the files into `killed` as a killed server would leave them."""
    ledger = SqliteLedger(data)
    record = await ledger.open_workspace(_WORKSPACE)
    now = SystemClock().now_ms()
    writes: Iterator[Write] = (stored_session(number, now, is_ended=number >= UNFINISHED) for number in range(SESSIONS))
    ticket = 0
    while batch := list(islice(writes, _AT_ONCE)):
        ticket += 1
        await ledger.commit(record.id, record.epoch, ticket, batch)
    for name in ("holdfast.db", "holdfast.db-wal"):
        shutil.copy(data / name, killed / name)
    await ledger.close()


async def _recover(data: Path) -> float:
    began = time.perf_counter()
    ledger = SqliteLedger(data)
    workspace = await open_workspace(_WORKSPACE, FixedServices(ledger, HeldModels()))
    seconds = time.perf_counter() - began
    assert len(workspace.recovered.ends) == UNFINISHED
    await workspace.close()
    await ledger.close()
    return seconds


def _bare(data: Path) -> float:
    began = time.perf_counter()
    connection = apsw.Connection(str(data / "holdfast.db"))
    [(count,)] = connection.execute("SELECT count(*) FROM runs WHERE workspace = 1 AND outcome IS NULL")
    seconds = time.perf_counter() - began
    assert count == UNFINISHED
    connection.close()
    return seconds


def measure() -> list[Figure]:
    values, limits = [], []
    with directory() as path:
        (path / "killed").mkdir()
        uvloop.run(_fill(path / "data", path / "killed"))
        for number in range(ROUNDS):
            for name in ("ours", "bare"):
                shutil.copytree(path / "killed", path / f"{name}-{number}")
            values.append(uvloop.run(_recover(path / f"ours-{number}")))
            limits.append(_bare(path / f"bare-{number}"))
    beside = "opening the file and counting the unended runs"
    name = f"recovery with {SESSIONS:,} sessions"
    return [Figure(name, median(values) * 1e3, "ms", median(limits) * 1e3, beside)]
