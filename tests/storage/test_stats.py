"""Statistics of messages, sessions and runs."""

from pathlib import Path

import msgspec
import pytest

from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    FinishReason,
    Message,
    Part,
    Role,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
)
from holdfast.domain.store_operations import Admit, CreateSession, EndRun, Operation, PutMessage, StartRun
from holdfast.domain.usage import ModelUse, Stats
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.storage.stats_builder import StatsBuilder
from holdfast.testing.conformance import WorkspaceOwner, run, session


@pytest.mark.parametrize(("reason", "seconds"), [("end_turn", 7), ("tool_use", 7), ("canceled", 0), ("error", 0)])
def test_interrupted_response_is_not_counted_in_response_times(reason: FinishReason, seconds: int) -> None:
    parts = (TextPart(Text("so")), FinishPart(Finish(reason, 1_007)))
    message = Message(parts, MessageId("m"), "assistant", SessionId("s"), "big", "acme", 1_000, 1_007)
    tally = StatsBuilder(0)
    tally.add_message(msgspec.json.encode(message))
    found = tally.result(())
    assert found.response_seconds == seconds
    assert [(item.model, item.messages, item.seconds) for item in found.models] == [("big", 1, seconds)]


MONDAY = 1_699_833_600
"""2023-11-13, 00:00 UTC."""
HOUR = 3_600


def message_at(
    name: str, role: Role, at: int, *parts: Part, session: str = "s", model: str = "big", provider: str = "acme"
) -> PutMessage:
    return PutMessage(Message(parts, MessageId(name), role, SessionId(session), model, provider, at, at))


def call(name: str) -> ToolCallPart:
    return ToolCallPart(ToolCall(ToolCallId("c"), name, "{}"))


def ended_at(at: int, reason: FinishReason = "end_turn") -> FinishPart:
    return FinishPart(Finish(reason, at))


def some_session(name: str, at: int, cost: float, *, parent: str = "") -> CreateSession:
    made = msgspec.structs.replace(session(name, parent=parent), created_at=at, cost=cost)
    return CreateSession(msgspec.structs.replace(made, prompt_tokens=10, completion_tokens=3))


def admission(name: str, at: int) -> Admit:
    return Admit(msgspec.structs.replace(run(name), accepted_at=at * 1000), b"")


HERE: tuple[Operation, ...] = (
    some_session("s", MONDAY + 23 * HOUR, 0.5),
    some_session("child", MONDAY, 0.25, parent="s"),
    some_session("free", MONDAY, 0.0),
    message_at("u1", "user", MONDAY + 23 * HOUR),
    message_at("u2", "user", MONDAY + 25 * HOUR),
    message_at("a1", "assistant", 1_000, call("bash"), call("view"), call("bash"), ended_at(1_004)),
    message_at("a2", "assistant", 1_000, ended_at(1_002, "tool_use")),
    message_at("a3", "assistant", 1_000, ended_at(1_090, "canceled")),
    message_at("a4", "assistant", 1_000, ended_at(999)),
    message_at("a5", "assistant", 1_000, call("edit"), model="small", session="child"),
    message_at("t1", "tool", 1_000, call("never"), ended_at(1_500)),
    admission("r1", MONDAY),
    StartRun(RunId("r1"), MONDAY * 1000),
    EndRun(RunId("r1"), "completed", MONDAY * 1000 + 3_000),
    admission("r2", MONDAY + 23 * HOUR),
    StartRun(RunId("r2"), 5_000),
    EndRun(RunId("r2"), "failed", 99_000),
    admission("r3", MONDAY + 24 * HOUR),
    EndRun(RunId("r3"), "completed", MONDAY * 1000),
    admission("r4", MONDAY + 24 * HOUR),
    StartRun(RunId("r4"), 7_000),
    EndRun(RunId("r4"), "completed", 12_000),
    admission("r5", MONDAY),
    admission("r6", MONDAY),
    StartRun(RunId("r6"), 1_000),
)
THERE: tuple[Operation, ...] = (
    some_session("s", MONDAY, 2.0),
    message_at("a1", "assistant", 1_000, ended_at(1_010), provider="other"),
    admission("r1", MONDAY),
    EndRun(RunId("r1"), "cancelled", 5_000),
)


def hours(*prompts: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int((day, hour) in prompts) for hour in range(24)) for day in range(7))


async def test_everything_is_counted_by_workspace_and_zone(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path)
    here, there = await WorkspaceOwner.open(ledger, "/here"), await WorkspaceOwner.open(ledger, "/bad \udcff")
    await here.do(*HERE, sync=False)
    await there.do(*THERE, sync=False)
    expected = Stats(
        sessions=2,
        messages=8,
        prompt_tokens=30,
        completion_tokens=9,
        cost=0.5,
        runs={"completed": 3, "failed": 1, "open": 2},
        days={"2023-11-13": 4, "2023-11-14": 2},
        seconds=4.0,
        response_seconds=3.0,
        models=(ModelUse("acme", "big", 4, 3.0), ModelUse("acme", "small", 1, 0.0)),
        tools={"bash": 2, "view": 1, "edit": 1},
        week=hours((0, 23), (1, 1)),
        costs={"2023-11-13": 0.5},
        workspaces=("/here",),
    )
    assert await ledger.stats(here.id) == expected
    later = await ledger.stats(here.id, 90)
    assert (later.zone, later.week) == (90, hours((1, 0), (1, 2)))
    assert later.days == {"2023-11-13": 3, "2023-11-14": 3}
    assert later.costs == {"2023-11-14": 0.5}
    earlier = await ledger.stats(here.id, -24 * 60)
    assert (earlier.days, earlier.week) == ({"2023-11-12": 4, "2023-11-13": 2}, hours((6, 23), (0, 1)))
    both = await ledger.stats(None)
    assert both.workspaces == ("/bad \\xff", "/here")
    assert (both.sessions, both.cost, both.messages) == (3, 2.5, 9)
    assert both.runs == {"completed": 3, "failed": 1, "open": 2, "cancelled": 1}
    assert both.response_seconds == pytest.approx((4 + 2 + 10) / 3)
    assert both.models[0] == ModelUse("acme", "big", 4, 3.0)
    assert set(both.models[1:]) == {ModelUse("acme", "small", 1, 0.0), ModelUse("other", "big", 1, 10.0)}
    assert both.costs == {"2023-11-13": 2.5}
    nothing = await ledger.stats(WorkspaceId("unknown"))
    assert (nothing.sessions, nothing.runs, nothing.seconds, nothing.workspaces) == (0, {}, 0.0, ())
    assert nothing.week == hours()
    await ledger.close()
