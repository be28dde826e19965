"""Requests and responses in the form of pydantic-ai: settings, history, parts, cache marks. Pure."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import StreamedResponse

from holdfast.domain import messages as ours
from holdfast.domain.ids import SessionId, ToolCallId
from holdfast.domain.model_requests import (
    FinishedPart,
    ModelInfo,
    ReasoningDelta,
    ReasoningSignature,
    RedactedReasoning,
    StreamPart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolSpec,
    UsagePart,
)
from holdfast.domain.model_requests import ModelRequest as Request
from holdfast.domain.settings import Selection
from holdfast.domain.usage import Usage
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.sdk import anthropic, conversion, google, mistral, openai
from planting import CLAUSES, assert_every_clause_decides
from providers.adapters import LIBRARIES, message

pytestmark = LIBRARIES
KINDS = (*CLAUSES, "comparison", "element", "exit", "branch", "argument")
INFO = ModelInfo("acme", "m", can_reason=True, reasoning_levels=("low", "high", "odd"))
NO_REASONING = ModelInfo("acme", "m")


def request(*, most: int = 0, system: str = "", tools: tuple[ToolSpec, ...] = ()) -> Request:
    return Request(SessionId("s"), system, (), tools, most)


# Cache marks


def block(kind: str = "text", **more: object) -> dict[str, Any]:
    return {"type": kind, **more}


def check_marks() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text, seal = block(text="a"), block("thinking")
    assert anthropic.marked({"model": "m"}) == {"model": "m", "messages": []}
    assert anthropic.marked({"tools": [], "system": "", "messages": None}) == {
        "tools": [], "system": "", "messages": [],
    }  # fmt: skip
    body = {"tools": [{"name": "x"}, {"name": "y"}], "system": "a", "messages": []}
    done = anthropic.marked(body)
    assert done["tools"] == [{"name": "x"}, {"name": "y"} | mark]
    assert done["system"] == [text | mark]
    assert body == {"tools": [{"name": "x"}, {"name": "y"}], "system": "a", "messages": []}, "the body is a copy"
    blocks = [block(text="1"), block(text="2")]
    assert anthropic.marked({"system": blocks})["system"] == [blocks[0], blocks[1] | mark]
    rows: list[tuple[object, object]] = [
        ("a", [text | mark]),
        ("", []),
        (None, None),
        ([text, text], [text, text | mark]),
        ([text, seal, block("redacted_thinking")], [text | mark, seal, block("redacted_thinking")]),
        ([text, "odd"], [text | mark, "odd"]),
        ([seal], [seal]),
    ]
    for given, expected in rows:
        (found,) = anthropic.marked({"messages": [{"role": "user", "content": given}]})["messages"]
        assert found == {"role": "user", "content": expected}, given
    three = [{"content": "a"}, {"content": "a"}, {"content": "a"}]
    assert anthropic.marked({"messages": three})["messages"] == [three[0], *[{"content": [text | mark]}] * 2]


def test_cache_marks() -> None:
    functions = [anthropic.marked, anthropic._message_marked, anthropic._last_marked]
    assert_every_clause_decides(functions, check_marks, kinds=KINDS)


# Settings


def settings_of(
    info: ModelInfo = INFO,
    access: ModelAccess | None = None,
    *,
    most: int = 0,
    **selected: Any,  # noqa: ANN401
) -> dict[str, Any]:
    found = conversion.settings_for(
        request(most=most), info, access or ModelAccess(), Selection(**selected), {"h": "1"}
    )
    assert found.pop("extra_headers") == {"h": "1"}
    return found


@pytest.mark.parametrize(
    ("info", "selected", "expected"),
    [
        (INFO, {}, {}),
        *((INFO, {name: 0}, {name: 0}) for name in ("temperature", "top_p", "top_k")),
        *((INFO, {name: 0.5}, {name: 0.5}) for name in ("frequency_penalty", "presence_penalty")),
        (INFO, {"reasoning_effort": "low"}, {"thinking": "low"}),
        (INFO, {"reasoning_effort": "odd"}, {"thinking": True}),
        (INFO, {"think": True}, {"thinking": True}),
        (NO_REASONING, {"think": True}, {}),
        (NO_REASONING, {"reasoning_effort": "odd"}, {}),
        *((INFO, {"reasoning_effort": word}, {"thinking": False}) for word in ("none", "off", "disabled")),
        (
            INFO,
            {"provider_options": {"openai_x": 1, "seed": 2, "x": 3}},
            {"openai_x": 1, "seed": 2, "extra_body": {"x": 3}},
        ),
        *(
            (INFO, {"provider_options": {f"{name}_x": 1}}, {f"{name}_x": 1})
            for name in ("anthropic", "google", "bedrock", "mistral")
        ),
        (INFO, {"provider_options": {"x_openai_": 1}}, {"extra_body": {"x_openai_": 1}}),
    ],
)
def test_settings_of_a_request(info: ModelInfo, selected: dict[str, Any], expected: dict[str, Any]) -> None:
    if selected.get("reasoning_effort") in ("none", "off", "disabled"):
        info = msgspec.structs.replace(info, reasoning_levels=(selected["reasoning_effort"],))
    assert settings_of(info, **selected) == expected


def test_precedence_of_options() -> None:
    """The selection's options precede the provider's; the provider's body comes last and overrides both."""
    access = ModelAccess(options={"seed": 1, "x": 1, "y": 1, "z": 1}, body={"z": 3})
    found = settings_of(access=access, provider_options={"seed": 2, "y": 2, "z": 2}, most=7)
    assert found == {"max_tokens": 7, "seed": 2, "extra_body": {"x": 1, "y": 2, "z": 3}}
    assert conversion.body_for(access, Selection()) == {"x": 1, "y": 1, "z": 3}


@pytest.mark.parametrize("module", [google, mistral])
def test_body_passed_to_the_client_is_not_in_the_settings(module: Any) -> None:  # noqa: ANN401
    assert module.refine({"extra_body": {"x": 1}, "top_k": 2}, "s") == {"top_k": 2}


def test_options_of_the_user_override_those_of_openai() -> None:
    own = openai.refine({"openai_store": True, "top_k": 2}, "s")
    assert own == {"openai_store": True, "openai_reasoning_summary": "auto", "openai_prompt_cache_key": "s", "top_k": 2}


@pytest.mark.parametrize(
    ("signatures", "expected"),
    [((), []), ((None,), [None]), (("a",), ["a"]), (("a", "b"), ["b"]), (("a", None), ["a"])],
)
def test_the_signature_of_reasoning_for_mistral(signatures: tuple[str | None, ...], expected: list[str | None]) -> None:
    parts = [ThinkingPart(content="", signature=signature) for signature in signatures]
    assert list(mistral._signatures([ModelRequest(parts=[]), ModelResponse(parts=parts)])) == expected


# History


def test_system_prompt_and_tools() -> None:
    spec = ToolSpec("ls", "Lists.", "")
    for prefix, system, expected in (("a", "b", ["a", "b"]), (" ", "b", ["b"]), ("a", "\n", ["a"]), ("", "", None)):
        found = conversion.parameters(request(system=system, tools=(spec,)), ModelAccess(system_prefix=prefix))
        texts = None if found.instruction_parts is None else [part.content for part in found.instruction_parts]
        assert texts == expected
        (tool,) = found.function_tools
        assert (tool.name, tool.description, tool.parameters_json_schema, tool.strict) == ("ls", "Lists.", {}, False)


def response_history(*given: ours.Part, own: bool = True, model: str = "m") -> list[Any]:
    source = message("assistant", *given, provider="acme" if own else "other", model=model)
    (found,) = conversion.conversation([source], INFO, "sys")
    assert isinstance(found, ModelResponse)
    assert (found.provider_name, found.model_name) == ("sys", model)
    return list(found.parts)


def reasoning(text: str = "", signature: str = "", *redacted: str) -> ours.ReasoningPart:
    return ours.ReasoningPart(ours.Reasoning(thinking=text, signature=signature, redacted=redacted))


def text(words: str) -> ours.TextPart:
    return ours.TextPart(ours.Text(words))


def call(id: str, given: str = "") -> ours.ToolCallPart:
    return ours.ToolCallPart(ours.ToolCall(ToolCallId(id), "ls", given))


def sealed(**fields: Any) -> str:  # noqa: ANN401
    return msgspec.json.encode(fields).decode()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (reasoning("a"), []),
        (reasoning("a", "sig"), [("a", None, "sig", None)]),
        (reasoning("", "sig"), [("", None, "sig", None)]),
        (reasoning("a", sealed(id="i")), [("a", "i", None, None)]),
        (reasoning("a", sealed(signature="s")), [("a", None, "s", None)]),
        (reasoning("a", sealed(details={"x": 1})), [("a", None, None, {"x": 1})]),
        (reasoning("a", sealed(other=1)), []),
        (reasoning("a", "{broken"), []),
        (reasoning("a", ""), []),
        (reasoning("", "", "block", '{"text":0}'), [("", "redacted_thinking", "block", None)]),
    ],
)
def test_reasoning_is_sent_back_to_its_model(given: ours.ReasoningPart, expected: list[Any]) -> None:
    assert [
        (part.content, part.id, part.signature, part.provider_details) for part in response_history(given)
    ] == expected
    assert all(part.provider_name == "sys" for part in response_history(given))
    assert response_history(given, own=False) == response_history(given, model="other") == []


def test_redacted_reasoning_of_bedrock_has_another_name() -> None:
    source = message("assistant", reasoning("", "", "block"), provider="acme", model="m")
    (found,) = conversion.conversation([source], INFO, "bedrock")
    assert [cast("Any", part).id for part in found.parts] == ["redacted_content"]


def test_signatures_are_sent_back_with_their_text_or_call() -> None:
    marks = reasoning("", "", sealed(text=1, details={"t": 1}), sealed(call=2, details={"c": 2}))
    given: list[ours.Part] = [marks, text("a"), text("b"), call("0"), call("1", '{"x":1}'), call("2")]
    found = response_history(*given)
    assert [(part.provider_name, part.provider_details) for part in found] == [
        (None, None), ("sys", {"t": 1}), (None, None), (None, None), ("sys", {"c": 2}),
    ]  # fmt: skip
    assert [part.args for part in found[2:]] == ["{}", '{"x":1}', "{}"]
    assert {part.provider_name for part in response_history(*given, own=False)} == {None}


def result(id: str, *, data: str = "", is_error: bool = False) -> ours.ToolResultPart:
    made = ours.ToolResult(ToolCallId(id), "ls", f"out {id}", "", is_error, data, "image/png")
    return ours.ToolResultPart(made)


def test_tool_results_precede_their_images() -> None:
    rows = [message("tool", result("1", data="QQ=="), result("2", is_error=True)), message("user", text("hm"))]
    (found,) = conversion.conversation(rows, NO_REASONING, "sys")
    assert isinstance(found, ModelRequest)
    outline = [(type(part).__name__, getattr(part, "outcome", "")) for part in found.parts]
    assert outline == [
        ("ToolReturnPart", "success"), ("ToolReturnPart", "failed"), ("UserPromptPart", ""), ("UserPromptPart", ""),
    ]  # fmt: skip
    shown = cast("Any", found.parts[2]).content
    assert (shown[0], shown[1].data) == ("What ls (call 1) shows:", b"A")
    takes = msgspec.structs.replace(NO_REASONING, takes_media_in_results=True)
    (found,) = conversion.conversation(rows[:1], takes, "sys")
    assert [type(part).__name__ for part in found.parts] == ["ToolReturnPart"] * 2
    assert cast("Any", found.parts[0]).content[0] == "out 1"
    assert cast("Any", found.parts[1]).content == "out 2"


def test_consecutive_requests_are_merged() -> None:
    rows = [message("user", text("a")), message("user", text("b")), message("assistant", text("c"))]
    found = conversion.conversation([*rows, rows[0]], INFO, "sys")
    assert [len(item.parts) for item in found] == [2, 1, 1]


# Parts of a response


def response(reason: str | None = "stop", *, usage: tuple[int, ...] = (0, 0, 0, 0), **more: Any) -> StreamedResponse:  # noqa: ANN401
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    counted = SimpleNamespace(**dict(zip(names, usage, strict=True)))
    given = {"provider_details": None, "state": "complete", "usage": counted, **more}
    return cast("StreamedResponse", SimpleNamespace(finish_reason=reason, **given))


def feed(*events: Any, ends: StreamedResponse | None = None) -> list[StreamPart]:  # noqa: ANN401
    answer = conversion.StreamParts()
    found = [part for event in events for part in answer.feed(event)]
    last = answer.end(ends or response())
    return [*found, *(last or ())]


STOP = FinishedPart("stop")
CALL = PartStartEvent(index=3, part=ToolCallPart("ls", tool_call_id="c"))
BEGUN = ToolCallStart(ToolCallId("c"), "ls")
ENDED = (ToolCallEnd(ToolCallId("c")), FinishedPart("tool_calls"))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], [STOP]),
        ([PartStartEvent(index=0, part=TextPart(""))], [STOP]),
        ([PartStartEvent(index=0, part=TextPart("a"))], [TextDelta("a"), STOP]),
        ([PartStartEvent(index=0, part=ThinkingPart(""))], [STOP]),
        ([PartStartEvent(index=0, part=ThinkingPart("a"))], [ReasoningDelta("a"), STOP]),
        ([PartDeltaEvent(index=0, delta=TextPartDelta(""))], [STOP]),
        ([PartDeltaEvent(index=0, delta=TextPartDelta("a"))], [TextDelta("a"), STOP]),
        ([PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta=""))], [STOP]),
        ([PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="a"))], [ReasoningDelta("a"), STOP]),
        ([CALL], [BEGUN, *ENDED]),
        ([CALL, PartDeltaEvent(index=3, delta=ToolCallPartDelta(args_delta=""))], [BEGUN, *ENDED]),
        ([CALL, PartDeltaEvent(index=2, delta=ToolCallPartDelta(args_delta="x"))], [BEGUN, *ENDED]),
        (
            [CALL, PartDeltaEvent(index=3, delta=ToolCallPartDelta(args_delta={"a": 1}))],
            [BEGUN, ToolCallDelta(ToolCallId("c"), '{"a":1}'), *ENDED],
        ),
        ([PartEndEvent(index=0, part=ThinkingPart("a"))], [STOP]),
        ([PartEndEvent(index=0, part=ThinkingPart("a", signature="s"))], [ReasoningSignature("s"), STOP]),
        (
            [PartEndEvent(index=0, part=ThinkingPart("a", id="i"))],
            [ReasoningSignature('{"id":"i","signature":null,"details":null}'), STOP],
        ),
        (
            [PartEndEvent(index=0, part=ThinkingPart("a", provider_details={"x": 1}))],
            [ReasoningSignature('{"id":null,"signature":null,"details":{"x":1}}'), STOP],
        ),
        *(
            ([PartEndEvent(index=0, part=ThinkingPart("a", id=name, signature="s"))], [RedactedReasoning("s"), STOP])
            for name in ("redacted_thinking", "redacted_content")
        ),
        ([PartEndEvent(index=0, part=ThinkingPart("a", id="redacted_thinking"))], [STOP]),
        (
            [CALL, PartEndEvent(index=3, part=ToolCallPart("ls", provider_details={"x": 1}))],
            [BEGUN, RedactedReasoning('{"call":0,"details":{"x":1}}'), *ENDED],
        ),
        ([CALL, PartEndEvent(index=3, part=ToolCallPart("ls"))], [BEGUN, *ENDED]),
        (
            [
                PartStartEvent(index=4, part=TextPart("")),
                PartEndEvent(index=4, part=TextPart("", provider_details={"thought_signature": "x"})),
            ],
            [RedactedReasoning('{"text":0,"details":{"thought_signature":"x"}}'), STOP],
        ),
        ([PartEndEvent(index=4, part=TextPart("", provider_details={"other": "x"}))], [STOP]),
    ],
)
def test_parts_of_a_response(events: list[Any], expected: list[StreamPart]) -> None:
    assert feed(*events) == expected


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (response(None), []),
        (response("error"), []),
        (response(None, provider_details={"finish_reason": "error"}), []),
        (response(None, provider_details={"finish_reason": "odd"}), [FinishedPart("other")]),
        (response("stop", state="incomplete"), []),
        (response("stop", _has_finish_reason=False), []),
        (response("content_filter", _has_finish_reason=False), [FinishedPart("content_filter")]),
        (response("stop", _has_finish_reason=True), [STOP]),
        (response("length"), [FinishedPart("length")]),
        (response("tool_call"), [FinishedPart("tool_calls")]),
        (response(usage=(9, 1, 2, 3)), [UsagePart(Usage(4, 1, 2, 3)), STOP]),
        (response(usage=(4, 1, 2, 3)), [UsagePart(Usage(0, 1, 2, 3)), STOP]),
        (response(usage=(0, 1, 0, 0)), [UsagePart(Usage(0, 1, 0, 0)), STOP]),
    ],
)
def test_end_of_a_response(ends: StreamedResponse, expected: list[StreamPart]) -> None:
    assert feed(ends=ends) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "tool_calls"), ("odd", "tool_calls"), ("length", "length"), ("content_filter", "content_filter")],
)
def test_end_of_a_response_with_calls(reason: str, expected: str) -> None:
    assert cast("FinishedPart", feed(CALL, ends=response(reason))[-1]).reason == expected
