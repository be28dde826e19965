"""Wire format of events, key by key. C-31: every field of an event survives encoding and decoding."""

import pytest

from engine.helpers import MESSAGE, RUN, SESSION, finish_part, message, session, text_part
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    Event,
    FileEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
    decode_event,
    encode_event,
)
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.runs import Run

WIRE: list[tuple[Event, str]] = [
    (
        MessageEvent(Change("created", message("user", text_part("hi"), finish_part("stop", 0)))),
        '{"type":"message","payload":{"type":"created","payload":{"parts":[{"type":"text","data":{"text":"hi"}},'
        '{"type":"finish","data":{"reason":"stop","time":0}}],"id":"m1","role":"user","session_id":"s1","model":"",'
        '"provider":"","created_at":1,"updated_at":1,"run_id":"r1"}}}',
    ),
    (
        SessionEvent(Change("updated", session("T"))),
        '{"type":"session","payload":{"type":"updated","payload":{"id":"s1","parent_session_id":"","title":"T",'
        '"message_count":0,"prompt_tokens":0,"completion_tokens":0,"summary_message_id":"","cost":0.0,'
        '"created_at":1,"updated_at":1,"is_busy":false,"attached_clients":0}}}',
    ),
    (
        FileEvent(Change("created", FileVersion("f", SESSION, "/a", "text", 0, 1, 2))),
        '{"type":"file","payload":{"type":"created","payload":{"id":"f","session_id":"s1","path":"/a",'
        '"content":"text","version":0,"created_at":1,"updated_at":2}}}',
    ),
    (
        RunEvent(Change("deleted", Run(RUN, SESSION, "waiting", "queue", 7))),
        '{"type":"run","payload":{"type":"deleted","payload":{"run_id":"r1","session_id":"s1","state":"waiting",'
        '"delivery":"queue","accepted_at":7}}}',
    ),
    (
        RunCompleteEvent(Change("updated", RunComplete(SESSION, MESSAGE, RUN, "completed", "done"))),
        '{"type":"run_complete","payload":{"type":"updated","payload":{"session_id":"s1","message_id":"m1",'
        '"run_id":"r1","outcome":"completed","text":"done"}}}',
    ),
    (
        RunCompleteEvent(Change("updated", RunComplete(SESSION, MessageId(""), RUN, "cancelled", cancelled=True))),
        '{"type":"run_complete","payload":{"type":"updated","payload":{"session_id":"s1","message_id":"",'
        '"run_id":"r1","outcome":"cancelled","cancelled":true}}}',
    ),
    (
        RunCompleteEvent(
            Change("updated", RunComplete(SESSION, MESSAGE, RUN, "failed", "", "boom", folded_into=RunId("r0")))
        ),
        '{"type":"run_complete","payload":{"type":"updated","payload":{"session_id":"s1","message_id":"m1",'
        '"run_id":"r1","outcome":"failed","error":"boom","folded_into":"r0"}}}',
    ),
    (
        AgentEvent(Change("created", AgentNotice("agent_finished", session_id=SESSION, session_title="T"))),
        '{"type":"agent_event","payload":{"type":"created","payload":{"type":"agent_finished","session_id":"s1",'
        '"session_title":"T"}}}',
    ),
    (
        AgentEvent(Change("created", AgentNotice("error", "boom", RUN, SESSION))),
        '{"type":"agent_event","payload":{"type":"created","payload":{"type":"error","error":"boom","run_id":"r1",'
        '"session_id":"s1"}}}',
    ),
    (
        MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 0, "é\n")),
        '{"type":"message_delta","payload":{"session_id":"s1","message_id":"m1","part":0,"offset":0,"text":"é\\n"}}',
    ),
    (
        MessagePartEvent(MessagePart(SESSION, MESSAGE, 2, text_part("x"))),
        '{"type":"message_part","payload":{"session_id":"s1","message_id":"m1","part":2,'
        '"content":{"type":"text","data":{"text":"x"}}}}',
    ),
]


@pytest.mark.parametrize(("event", "wire"), WIRE)
def test_wire_format_of_each_event(event: Event, wire: str) -> None:
    assert encode_event(event).decode() == wire
    assert decode_event(wire.encode()) == event


@pytest.mark.parametrize(("event", "wire"), WIRE)
def test_an_event_is_one_line(event: Event, wire: str) -> None:
    """A line break would end the SSE frame."""
    assert b"\n" not in encode_event(event)
    assert b"\r" not in encode_event(event)


def test_every_event_type_has_a_row() -> None:
    shown = {type(event).__name__ for event, _ in WIRE}
    assert shown == {
        "AgentEvent", "FileEvent", "MessageDeltaEvent", "MessageEvent", "MessagePartEvent", "RunCompleteEvent",
        "RunEvent", "SessionEvent",
    }  # fmt: skip


def test_a_run_complete_always_has_its_ids() -> None:
    """C-31: even if all other fields are empty."""
    empty = RunComplete(SessionId(""), MessageId(""), RunId(""), "failed")
    wire = encode_event(RunCompleteEvent(Change("updated", empty))).decode()
    for key in ("session_id", "message_id", "run_id", "outcome"):
        assert f'"{key}":' in wire
