"""Wire format of messages and their parts, key by key."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import call_part, finish_part, json_of, message, reasoning_part, result_part, text_part
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Finish,
    FinishPart,
    Message,
    Part,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    text_of,
)

PARTS: list[tuple[Part, str]] = [
    (TextPart(Text("")), '{"type":"text","data":{"text":""}}'),
    (TextPart(Text("hi")), '{"type":"text","data":{"text":"hi"}}'),
    (ReasoningPart(Reasoning("", "")), '{"type":"reasoning","data":{"thinking":"","signature":""}}'),
    (
        ReasoningPart(Reasoning("why", "sig", 3, 4, ("x",))),
        '{"type":"reasoning","data":'
        '{"thinking":"why","signature":"sig","started_at":3,"finished_at":4,"redacted":["x"]}}',
    ),
    (
        BinaryPart(Binary("a.png", "image/png", b"hi")),
        '{"type":"binary","data":{"Path":"a.png","MIMEType":"image/png","Data":"aGk="}}',
    ),
    (
        ToolCallPart(ToolCall(ToolCallId("c1"), "view", "")),
        '{"type":"tool_call","data":{"id":"c1","name":"view","input":""}}',
    ),
    (
        ToolCallPart(ToolCall(ToolCallId("c1"), "view", '{"a":1}', finished=True)),
        '{"type":"tool_call","data":{"id":"c1","name":"view","input":"{\\"a\\":1}","finished":true}}',
    ),
    (
        ToolResultPart(ToolResult(ToolCallId("c1"), "", "", "", is_error=False)),
        '{"type":"tool_result","data":{"tool_call_id":"c1","name":"","content":"","metadata":"","is_error":false}}',
    ),
    (
        ToolResultPart(
            ToolResult(ToolCallId("c1"), "view", "no", "{}", is_error=True, data="aGk=", mime_type="image/png")
        ),
        '{"type":"tool_result","data":{"tool_call_id":"c1","name":"view","content":"no","metadata":"{}",'
        '"is_error":true,"data":"aGk=","mime_type":"image/png"}}',
    ),
    (FinishPart(Finish("stop", 0)), '{"type":"finish","data":{"reason":"stop","time":0}}'),
    (
        FinishPart(Finish("error", 9, "Oh", "it broke")),
        '{"type":"finish","data":{"reason":"error","time":9,"message":"Oh","details":"it broke"}}',
    ),
]


@pytest.mark.parametrize(("part", "wire"), PARTS)
def test_wire_format_of_each_part(part: Part, wire: str) -> None:
    assert json_of(part) == wire
    assert msgspec.json.decode(wire, type=Part) == part


def test_a_message_has_every_key_that_clients_require() -> None:
    plain = Message((), MessageId("m"), "user", SessionId("s"), "", "", 5, 6)
    wire = '{"parts":[],"id":"m","role":"user","session_id":"s","model":"","provider":"","created_at":5,"updated_at":6}'
    assert json_of(plain) == wire
    assert msgspec.json.decode(wire, type=Message) == plain


def test_a_message_omits_default_values() -> None:
    summary = Message((), MessageId("m"), "assistant", SessionId("s"), "x", "y", 5, 6, True, RunId("r"))
    assert json_of(summary).endswith('"updated_at":6,"is_summary_message":true,"run_id":"r"}')


@pytest.mark.parametrize("wire", ['{"type":"shout","data":{}}', '{"data":{"text":"x"}}', '{"type":"text","data":{}}'])
def test_unknown_part_types_are_refused(wire: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wire, type=Part)


def test_unknown_keys_are_ignored() -> None:
    """A newer writer may add keys."""
    wire = '{"type":"text","data":{"text":"x","more":1},"also":2}'
    assert msgspec.json.decode(wire, type=Part) == TextPart(Text("x"))


def test_the_last_finish_counts() -> None:
    assert message("assistant", text_part("a")).finish is None
    both = message("assistant", finish_part("tool_use", 1), text_part("a"), finish_part("canceled", 2))
    assert both.finish == Finish("canceled", 2)


def test_parts_of_a_message() -> None:
    full = message(
        "assistant",
        reasoning_part("hm"),
        text_part("a"),
        call_part("c1"),
        text_part("b"),
        call_part("c2"),
        result_part("c3"),
    )
    assert text_of(full) == "ab"
    assert [call.id for call in full.tool_calls] == ["c1", "c2"]
    assert [result.tool_call_id for result in full.tool_results] == ["c3"]


_text = st.text(st.characters(codec="utf-8"), max_size=20)
_parts = st.lists(
    st.one_of(
        _text.map(lambda text: TextPart(Text(text))),
        st.builds(lambda text, end: ReasoningPart(Reasoning(text, text, end, end)), _text, st.integers(0, 9)),
        st.builds(lambda path, data: BinaryPart(Binary(path, "text/plain", data)), _text, st.binary(max_size=9)),
        st.builds(lambda text, done: ToolCallPart(ToolCall(ToolCallId(text), text, text, done)), _text, st.booleans()),
        st.builds(
            lambda text, error: ToolResultPart(ToolResult(ToolCallId(text), text, text, text, error, text, text)),
            _text,
            st.booleans(),
        ),
        st.builds(lambda text, time: FinishPart(Finish("error", time, text, text)), _text, st.integers(0, 9)),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(_parts, st.booleans())
def test_every_message_survives_encoding(parts: list[Part], is_summary: bool) -> None:
    original = message("assistant", *parts, is_summary=is_summary)
    assert msgspec.json.decode(msgspec.json.encode(original), type=Message) == original
