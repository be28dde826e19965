"""The view: snapshots and events folded into the state that every client shows."""

import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.every_event import TYPES, event_of
from client.scripted_server import session_event
from client.worlds import Harness
from holdfast.client.events import StreamEvent, UnknownEvent, decode_event
from holdfast.client.view import View, ViewSettings
from holdfast.domain import message_merge as growth_module
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    Gap,
    GapEvent,
    Hello,
    HelloEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
    ToolOutput,
    ToolOutputEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.messages import Message, Part, Text, TextPart, text_of
from holdfast.domain.runs import Run
from holdfast.http11.sse import SseEvent
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody

S1, S2 = SessionId("s1"), SessionId("s2")


def shown(view: View) -> dict[str, Any]:
    """Return everything a screen could show, in its order."""
    return {
        "cursor": view.cursor,
        "sessions": view.sessions,
        "messages": view.messages(S1),
        "runs": list(view.runs.values()),
        "permissions": view.permissions,
    }


def world_shown(harness: Harness) -> dict[str, Any]:
    return {
        "cursor": harness.number,
        "sessions": harness.sessions,
        "messages": tuple(item for item in harness.messages.values() if item.session_id == S1),
        "runs": list(harness.runs.values()),
        "permissions": harness.permissions,
    }


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_snapshot_with_later_events_equals_all_events(seed: int) -> None:
    """R6: number, time and way of joining change nothing. Also for a view that keeps only the watched session."""
    chance = Random(seed)
    harness = Harness(chance)
    joined: list[tuple[View, int]] = [(View(), 0)]
    for _ in range(chance.randint(1, 60)):
        harness.step()
        if chance.randint(0, 5) == 0:
            view = View(ViewSettings(keeps_all=chance.random() < 0.5))
            view.load(harness.snapshot(S1), S1)
            joined.append((view, len(harness.received_events)))
    for view, start in joined:
        for item in harness.received_events[start:]:
            view.apply(item)
            if chance.randint(0, 9) == 0:
                # Reading changes nothing.
                view.messages(S1)
        assert shown(view) == world_shown(harness)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_snapshot_ahead_of_the_stream_is_not_undone_by_it(seed: int) -> None:
    """A reader of the stream up to one moment takes a later snapshot, then continues reading."""
    chance = Random(seed)
    harness = Harness(chance)
    for _ in range(chance.randint(1, 40)):
        harness.step()
    here = chance.randint(0, len(harness.received_events))
    while harness.received_events and harness.received_events[-1].number is None:
        # The stream repeats growth after the last number itself, in whole parts.
        harness.step()
    snapshot = harness.snapshot(S1)
    for _ in range(chance.randint(0, 20)):
        harness.step()
    view = View()
    view.apply(StreamEvent(HelloEvent(Hello(0, 1, 1))))
    for item in harness.received_events[:here]:
        view.apply(item)
    view.load(snapshot, S1)
    for item in harness.received_events[here:]:
        view.apply(item)
    assert shown(view) == world_shown(harness)


def message_of(text: str = "", name: str = "m", session: SessionId = S1) -> Message:
    return Message((TextPart(Text(text)),), MessageId(name), "assistant", session, "", "", 1, 1)


def delta(offset: int, text: str) -> StreamEvent:
    return StreamEvent(MessageDeltaEvent(MessageDelta(S1, MessageId("m"), 0, offset, text)))


def test_deltas_are_joined_when_a_message_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is copied a few times only, however many deltas arrive."""
    copies: list[int] = []
    extended = growth_module._append_text

    def count(part: Part, text: str) -> Part:
        copies.append(len(text))
        return extended(part, text)

    monkeypatch.setattr(growth_module, "_append_text", count)
    view = View()
    view.apply(StreamEvent(MessageEvent(Change("created", message_of())), 1))
    for place in range(20_000):
        view.apply(delta(place, "x"))
    assert len(copies) < 10
    (message,) = view.messages(S1)
    assert text_of(message) == "x" * 20_000
    assert sum(copies) == 20_000


def test_growth_of_an_unknown_message_is_ignored() -> None:
    view = View()
    assert not view.apply(delta(0, "x"))
    assert view.messages(S1) == ()


def test_unwatched_sessions_keep_no_messages() -> None:
    view = View(ViewSettings(keeps_all=False))
    view.load(SnapshotBody(0, 1, WorkspaceBody(WorkspaceId("w"), "/w"), (), (message_of("hi"),), ()), S1)
    view.apply(StreamEvent(MessageEvent(Change("created", message_of("other", "m2", S2))), 1))
    assert text_of(view.messages(S1)[0]) == "hi"
    assert view.messages(S2) == ()
    view.forget(S1)
    view.apply(StreamEvent(MessageEvent(Change("created", message_of("late"))), 2))
    assert view.messages(S1) == ()


def run_of(name: str) -> Run:
    return Run(RunId(name), S1, "accepted", "queue", 1, prompt="do it")


def end_of(name: str) -> RunCompleteEvent:
    return RunCompleteEvent(Change("updated", RunComplete(S1, MessageId("m"), RunId(name), "completed", "done")))


def test_a_run_keeps_its_prompt_and_has_one_end() -> None:
    view = View()
    view.apply(StreamEvent(RunEvent(Change("created", run_of("r"))), 1))
    view.apply(StreamEvent(RunEvent(Change("updated", Run(RunId("r"), S1, "active", "queue", 1, started_at=5))), 2))
    view.apply(StreamEvent(end_of("r"), 3))
    run = view.runs[RunId("r")]
    assert (run.prompt, run.started_at, run.state, run.outcome, run.message_id) == (
        "do it",
        5,
        "ended",
        "completed",
        "m",
    )


def test_only_the_last_ended_runs_are_kept() -> None:
    view = View(ViewSettings(ended_runs=2))
    for number, name in enumerate("abcd"):
        view.apply(StreamEvent(RunEvent(Change("created", run_of(name))), 2 * number + 1))
        if name != "b":
            view.apply(StreamEvent(end_of(name), 2 * number + 2))
    assert list(view.runs) == ["b", "c", "d"]


def test_a_gap_makes_the_view_stale_until_a_snapshot() -> None:
    view = View()
    view.apply(StreamEvent(session_event("s1"), 5))
    view.apply(StreamEvent(GapEvent(Gap(90, 80, 1))))
    assert (view.is_stale, view.cursor) == (True, 90)
    view.load(SnapshotBody(95, 1, WorkspaceBody(WorkspaceId("w"), "/w"), (), (message_of("a"),), ()), S1)
    assert not view.is_stale
    # The stream is at 90 and the snapshot at 95: growth between them is in the snapshot.
    assert not view.apply(delta(1, "old"))
    assert not view.apply(StreamEvent(session_event("s1"), 95))
    assert view.apply(delta(1, "b"))
    assert text_of(view.messages(S1)[0]) == "ab"


def test_a_hello_that_is_as_new_as_the_snapshot_ends_the_waiting() -> None:
    view = View()
    view.apply(StreamEvent(session_event("s1"), 5))
    view.load(SnapshotBody(9, 1, WorkspaceBody(WorkspaceId("w"), "/w"), (), (message_of("a"),), ()), S1)
    view.apply(StreamEvent(HelloEvent(Hello(8, 1, 1))))
    assert not view.apply(delta(1, "b"))
    view.apply(StreamEvent(HelloEvent(Hello(9, 1, 1))))
    assert view.apply(delta(1, "b"))


def test_notices_are_bounded() -> None:
    view = View(ViewSettings(notices=3))
    for number in range(9):
        view.apply(StreamEvent(AgentEvent(Change("created", AgentNotice("error", str(number))))))
    assert [notice.error for notice in view.notices] == ["6", "7", "8"]


def request_event(kind: str, payload: dict[str, object]) -> StreamEvent:
    """Build a request as it is on the wire."""
    known: dict[str, object] = {}
    if kind == "permission_request":
        known = {"session_id": "s", "tool_name": "bash", "description": "", "action": "x", "params": {}, "path": "/"}
    elif kind == "question_batch_request":
        known = {"session_id": "s", "tool_call_id": "c", "questions": []}
    body = {"type": kind, "payload": {"type": "created", "payload": {**known, **payload}}}
    return decode_event(SseEvent(json.dumps(body).encode()))


def test_requests_are_added_and_removed() -> None:
    view = View()
    view.apply(request_event("permission_request", {"id": "p1", "tool_call_id": "c"}))
    view.apply(request_event("permission_request", {"id": "p2", "tool_call_id": "c2"}))
    view.apply(request_event("question_batch_request", {"id": "q"}))
    view.apply(request_event("permission_notification", {"tool_call_id": "c", "granted": False, "denied": False}))
    assert (list(view.permissions), list(view.questions)) == (["p1", "p2"], ["q"])
    view.apply(request_event("permission_notification", {"tool_call_id": "c", "granted": False, "denied": True}))
    view.apply(
        request_event("permission_notification", {"tool_call_id": "?", "id": "p2", "granted": False, "denied": True})
    )
    view.apply(request_event("question_batch_notification", {"batch_id": "q"}))
    assert (view.permissions, view.questions) == ({}, {})


@pytest.mark.parametrize("word", ["granted", "denied", "withdrawn"])
def test_each_way_to_close_a_permission_request(word: str) -> None:
    view = View()
    view.apply(request_event("permission_request", {"id": "p1", "tool_call_id": "c"}))
    notice: dict[str, object] = {"granted": False, "denied": False, "withdrawn": False, word: True}
    assert view.apply(request_event("permission_notification", {"tool_call_id": "c", **notice}))
    assert view.permissions == {}


def test_the_end_of_a_run_closes_its_requests() -> None:
    """Also if they were not withdrawn, because their server is gone."""
    view = View()
    view.apply(request_event("permission_request", {"id": "p1", "tool_call_id": "c", "run_id": "r1"}))
    view.apply(request_event("permission_request", {"id": "p2", "tool_call_id": "c2", "run_id": "r2"}))
    view.apply(request_event("question_batch_request", {"id": "q", "run_id": "r1"}))
    end = RunComplete(SessionId("s"), MessageId(""), RunId("r1"), "interrupted")
    view.apply(StreamEvent(RunCompleteEvent(Change("updated", end)), 9))
    assert (list(view.permissions), list(view.questions)) == (["p2"], [])


def test_presence_and_unknown_events() -> None:
    view = View()
    assert view.apply(StreamEvent(UnknownEvent("presence", {"clients": 2})))
    assert view.presence == {"clients": 2}
    assert not view.apply(StreamEvent(UnknownEvent("weather", {"payload": {}}), 3))
    assert not view.apply(StreamEvent(UnknownEvent("permission_request", "nonsense"), 4))
    assert view.cursor == 4


def snapshot(cursor: int, **fields: Any) -> SnapshotBody:  # noqa: ANN401
    made = SnapshotBody(cursor, 1, WorkspaceBody(WorkspaceId("w"), "/w"), (), (), ())
    return msgspec.structs.replace(made, **fields)


def output_of(text: str, call: str = "c", session: SessionId = S1) -> StreamEvent:
    return StreamEvent(ToolOutputEvent(ToolOutput(session, MessageId("m"), ToolCallId(call), 0, text)))


def test_a_snapshot_replaces_everything() -> None:
    view = View(ViewSettings(keeps_all=False))
    view.load(snapshot(1, messages=(message_of("a"),)), S1)
    view.apply(output_of("old"))
    assert view.outputs == {"c": "old"}
    view.load(snapshot(2), S2)
    assert (view.outputs, view.messages(S1)) == ({}, ())
    view.apply(StreamEvent(MessageEvent(Change("created", message_of("b"))), 3))
    view.apply(StreamEvent(MessageEvent(Change("created", message_of("c", session=S2))), 4))
    assert view.messages(S1) == (), "it is not watched any more"
    assert [text_of(message) for message in view.messages(S2)] == ["c"]


def test_the_end_of_a_long_output_is_kept() -> None:
    view = View(ViewSettings(output=4))
    view.load(snapshot(1), S1)
    for text in ("abc", "def"):
        assert view.apply(output_of(text))
    assert view.outputs == {"c": "cdef"}
    assert not view.apply(output_of("x", "d", S2)), "its session is not shown"


def test_runs_of_a_snapshot_are_forgotten_in_the_order_of_their_ends() -> None:
    ended = [
        msgspec.structs.replace(run_of(name), state="ended", number=number, ended_at=at)
        for name, number, at in (("a", 1, 9), ("b", 2, 5), ("c", 3, 9))
    ]
    view = View(ViewSettings(ended_runs=3))
    view.load(snapshot(1, runs=(ended[2], ended[0], ended[1])))
    assert list(view.runs) == ["a", "b", "c"]
    for number, (name, left) in enumerate({"d": "acd", "e": "cde"}.items()):
        view.apply(StreamEvent(RunEvent(Change("created", run_of(name))), 2 * number + 2))
        view.apply(StreamEvent(end_of(name), 2 * number + 3))
        assert "".join(view.runs) == left


def test_a_deleted_run_makes_room_for_another() -> None:
    view = View(ViewSettings(ended_runs=2))
    for number, name in enumerate("ab"):
        view.apply(StreamEvent(RunEvent(Change("created", run_of(name))), 2 * number + 1))
        view.apply(StreamEvent(end_of(name), 2 * number + 2))
    view.apply(StreamEvent(RunEvent(Change("deleted", run_of("b"))), 5))
    view.apply(StreamEvent(RunEvent(Change("created", run_of("c"))), 6))
    view.apply(StreamEvent(end_of("c"), 7))
    assert list(view.runs) == ["a", "c"]


def test_every_fact_of_an_end_is_in_the_run() -> None:
    view = View()
    view.apply(StreamEvent(RunEvent(Change("created", run_of("r"))), 1))
    changed = msgspec.structs.replace(run_of("r"), prompt="do that")
    view.apply(StreamEvent(RunEvent(Change("updated", changed)), 2))
    assert view.runs[RunId("r")].prompt == "do that"
    end = RunComplete(S1, MessageId("m"), RunId("r"), "failed", error="no", folded_into=RunId("q"))
    view.apply(StreamEvent(RunCompleteEvent(Change("updated", end)), 3))
    run = view.runs[RunId("r")]
    assert (run.state, run.outcome, run.error, run.message_id, run.folded_into) == ("ended", "failed", "no", "m", "q")


@pytest.mark.parametrize(("at", "expected"), [(3, 7), (9, 9)])
def test_a_message_never_makes_a_session_older(at: int, expected: int) -> None:
    view = View()
    session = session_event("s1")
    assert isinstance(session, SessionEvent)
    view.apply(
        StreamEvent(SessionEvent(Change("created", msgspec.structs.replace(session.change.object, updated_at=7))), 1)
    )
    message = msgspec.structs.replace(message_of("a"), updated_at=at)
    view.apply(StreamEvent(MessageEvent(Change("created", message)), 2))
    assert view.sessions[S1].updated_at == expected


@pytest.mark.parametrize("keeps_all", [True, False])
def test_forgetting_a_session(keeps_all: bool) -> None:
    view = View(ViewSettings(keeps_all=keeps_all))
    view.load(snapshot(1, messages=(message_of("a"),)), S1)
    view.forget(S1)
    view.apply(StreamEvent(MessageEvent(Change("created", message_of("b", "n"))), 2))
    assert [text_of(message) for message in view.messages(S1)] == (["a", "b"] if keeps_all else [])


def test_deltas_after_a_gap_belong_to_the_snapshot_that_follows() -> None:
    """A gap moves the stream too: a snapshot of the same number is not ahead of it."""
    view = View()
    view.apply(StreamEvent(session_event("s1"), 5))
    view.apply(StreamEvent(GapEvent(Gap(90, 80, 1))))
    view.load(snapshot(90, messages=(message_of("a"),)), S1)
    assert view.apply(delta(1, "b"))
    assert text_of(view.messages(S1)[0]) == "ab"


@pytest.mark.parametrize("name", TYPES)
def test_an_event_that_the_view_does_not_show_changes_nothing(name: str) -> None:
    """Only presence is received as a plain object; events without an effect have types of their own."""
    view = View()
    assert view.presence is None
    view.apply(event_of(name, S1, 1))
    assert view.presence is None
    for kind in ("later", "", "presence"):
        assert view.apply(StreamEvent(UnknownEvent(kind, {"a": 1}))) is (kind == "presence")
        assert view.presence == ({"a": 1} if kind == "presence" else None)


def test_a_notice_with_the_id_of_a_request_closes_only_this_request() -> None:
    """Notices for Crush clients name the tool call, and close all of its requests."""

    def asked(view: View) -> View:
        for name, call in (("a", "c1"), ("b", "c1"), ("c", "c2")):
            view.permissions[name] = {"id": name, "tool_call_id": call}
        return view

    rows: list[tuple[dict[str, object], list[str]]] = [
        ({"id": "a", "tool_call_id": "c1"}, ["b", "c"]),
        ({"id": "other"}, ["a", "b", "c"]),
        ({"tool_call_id": "c1"}, ["c"]),
        ({"tool_call_id": "c3"}, ["a", "b", "c"]),
    ]
    for notice, left in rows:
        view = asked(View())
        view._resolve_permission(notice)
        assert list(view.permissions) == left, notice
