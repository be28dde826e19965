"""Dialects of the chat wire, and the requests of the OpenAI-compatible adapter."""

import base64
import gzip
from typing import Any

import httpx2
import msgspec
import pytest
import uvloop

from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Reasoning,
    ReasoningPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.model_requests import FinishedPart, ModelInfo, ModelRequest, StepFinish, TextDelta, UsagePart
from holdfast.domain.settings import Selection
from holdfast.domain.usage import Usage
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.chat_request import chat_body
from holdfast.providers.chat_response import ChatResponse, ErrorInStream, NotUnderstood
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.testing.gates import Gate
from model_server.script import Reply, Say, event
from providers.adapters import COMPATIBLE, KEY, collect, message, prompt, serving, shape

INFO = ModelInfo("acme", "m", supports_images=True, can_reason=True, reasoning_levels=("low", "high"))


def read(*chunks: dict[str, Any] | bytes) -> list[tuple[str, str]]:
    """Return the parts of these chunks, as one complete response."""
    answer = ChatResponse()
    parts = answer.feed(chunk if isinstance(chunk, bytes) else msgspec.json.encode(chunk) for chunk in chunks)
    return shape([*parts, *answer.end()])


def delta(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"choices": [{"index": 0, "delta": fields}]}


def call(index: int | None, id: str | None, name: str | None, arguments: object) -> dict[str, Any]:
    fields = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return delta(tool_calls=[{name: value for name, value in fields.items() if value is not None}])


def calls(*chunks: dict[str, Any]) -> list[tuple[str, str]]:
    return [item for item in read(*chunks) if item[0].startswith("call ")]


def test_calls_without_ids_get_ids() -> None:
    parts = calls(call(0, None, "ls", "{}"), call(1, "", "cat", "{}"))
    assert [name.split()[2] for name, _ in parts] == ["ls", "cat"]
    assert len({name for name, _ in parts}) == 2


def test_calls_without_an_index_are_distinguished_by_id() -> None:
    assert calls(call(None, "a", "ls", '{"x":'), call(None, "a", None, "1}"), call(None, "b", "ls", "{}")) == [
        ("call a ls", '{"x":1}'),
        ("call b ls", "{}"),
    ]


def test_calls_without_index_and_id_start_at_a_name() -> None:
    parts = calls(call(None, None, "ls", '{"x":'), call(None, None, None, "1}"), call(None, None, "ls", "{}"))
    assert [text for _, text in parts] == ['{"x":1}', "{}"]


def test_complete_calls_that_all_have_index_zero() -> None:
    assert calls(call(0, "a", "ls", "{}"), call(0, "b", "cat", '{"x":1}')) == [
        ("call a ls", "{}"),
        ("call b cat", '{"x":1}'),
    ]


def test_a_call_may_repeat_its_id_and_name() -> None:
    assert calls(call(0, "a", "ls", ""), call(0, "a", "ls", "{"), call(0, "a", "ls", "}")) == [("call a ls", "{}")]


def test_a_call_with_an_index_may_change_its_id_between_chunks() -> None:
    assert calls(call(0, "a", "ls", "{"), call(0, "b", None, ""), call(0, "a", "ls", "}")) == [("call a ls", "{}")]


def test_calls_may_be_interleaved() -> None:
    parts = calls(call(0, "a", "ls", "{"), call(1, "b", "cat", "["), call(0, None, None, "}"), call(1, None, None, "]"))
    assert parts == [("call a ls", "{}"), ("call b cat", "[]")]


def test_arguments_can_be_an_object_and_precede_the_name() -> None:
    assert calls(call(0, "a", None, '{"x"'), call(0, None, "ls", ":1}")) == [("call a ls", '{"x":1}')]
    assert calls(call(0, "a", "ls", {"x": 1})) == [("call a ls", '{"x":1}')]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_under_both_keys(key: str) -> None:
    parts = read(delta(**{key: "hm"}), delta(**{key: " so"}), delta(content="yes"))
    assert parts[0] == ("reasoning", "hm so")
    assert ("signature", "reasoning_content") in parts or key == "reasoning"


def test_reasoning_details_are_not_repeated() -> None:
    detail = {"type": "reasoning.text", "text": "hm", "signature": "S"}
    hidden = {"type": "reasoning.encrypted", "data": "D", "id": "r1"}
    summary = {"type": "reasoning.summary", "summary": "so"}
    parts = read(delta(reasoning="hm", reasoning_details=[detail]), delta(reasoning_details=[hidden, summary]))
    assert parts[:2] == [("reasoning", "hm"), ("signature", "S")]
    assert msgspec.json.decode(parts[2][1]) == hidden
    assert parts[3] == ("reasoning", "so")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"usage": {"prompt_tokens": 10, "completion_tokens": 5}}, Usage(10, 5)),
        ({"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}}, Usage(6, 0, 4)),
        ({"usage": {"prompt_tokens": 10, "prompt_cache_hit_tokens": 4, "completion_tokens": 1}}, Usage(6, 1, 4)),
        ({"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}}, Usage(0, 0, 4)),
        (
            {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}}},
            Usage(2, 0, 4, 3),
        ),
        ({"x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}}, Usage(3, 2)),
        ({"timings": {"prompt_n": 7, "predicted_n": 3, "cache_n": 2}}, Usage(7, 3, 2)),
        ({"usage": {"prompt_tokens": "10", "completion_tokens": "5"}}, Usage(10, 5)),
    ],
)
def test_usage_in_all_its_forms(usage: dict[str, Any], expected: Usage) -> None:
    """With the last text, after it, or in a chunk of its own."""
    for chunk in (usage, delta(content="x") | usage, usage | {"choices": []}):
        assert ("UsagePart", repr(UsagePart(expected))) in read(chunk)


@pytest.mark.parametrize(
    ("received", "reason"),
    [("stop", "stop"), ("eos", "stop"), ("MAX_TOKENS", "length"), ("tool_use", "tool_calls"), ("???", "other")],
)
def test_unusual_finish_reasons(received: str, reason: str) -> None:
    finish = {"choices": [{"delta": {}, "finish_reason": received}]}
    assert read(delta(content="x"), finish)[-1] == ("FinishedPart", f"FinishedPart(reason='{reason}')")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("stop", "tool_calls"),
        ("odd", "tool_calls"),
        (None, "tool_calls"),
        ("length", "length"),
        ("content_filter", "content_filter"),
    ],
)
def test_the_end_of_a_response_with_a_call(output: str | None, reason: StepFinish) -> None:
    finish: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": output}]}
    assert read(call(0, "a", "ls", "{}"), finish)[-1][1] == repr(FinishedPart(reason))


def test_text_in_pieces_of_content_and_refusals() -> None:
    assert read(delta(content=[{"type": "text", "text": "a"}]), delta(refusal="no"))[0] == ("text", "ano")


def test_texts_received_together_are_one_part() -> None:
    answer = ChatResponse()
    chunks = [msgspec.json.encode(delta(content=word)) for word in ("a", "b", "c")]
    assert answer.feed(chunks) == [TextDelta("abc")]


@pytest.mark.parametrize("data", [b"nonsense", b'"text"', b"[1]", b'{"choices": 5}'])
def test_invalid_stream_is_an_error(data: bytes) -> None:
    with pytest.raises(NotUnderstood):
        ChatResponse().feed([data])


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "no"}},
        {"error": "no"},
        {"object": "error", "message": "no", "code": 500},
        {"choices": [{"delta": {}, "error": {"message": "no"}}]},
        {"choices": [{"delta": {}, "finish_reason": "error"}]},
        {"x_groq": {"error": "no"}},
    ],
)
def test_errors_in_all_their_forms(chunk: dict[str, Any]) -> None:
    with pytest.raises(ErrorInStream):
        ChatResponse().feed([msgspec.json.encode(chunk)])


async def test_streams_without_empty_lines_and_with_comments() -> None:
    lines = [msgspec.json.encode(delta(content=word)) for word in ("a", "b")]
    body = b": wait\n\ndata:" + lines[0] + b"\r\ndata: " + lines[1] + b"\r\nid: 4\r\n\r\ndata: [DONE]"
    async with serving(Reply(raw=(body,))) as server:
        assert shape(await collect(COMPATIBLE.on(server.base_url())))[0] == ("text", "ab")


async def test_response_without_streaming() -> None:
    """Some servers do not stream at all."""
    body = {"choices": [{"message": {"content": "all"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    async with serving(Reply(body=msgspec.json.format(msgspec.json.encode(body)))) as server:
        parts = await collect(COMPATIBLE.on(server.base_url()))
    assert parts == [TextDelta("all"), UsagePart(Usage(3)), FinishedPart("stop")]


async def test_other_response_without_streaming() -> None:
    async with serving(Reply(body=b'{"hello": "world"}')) as server:
        with pytest.raises(ProviderError, match="base_url") as caught:
            await collect(COMPATIBLE.on(server.base_url()))
    assert caught.value.trouble == "refused"


async def test_a_web_page_with_the_content_type_of_a_stream() -> None:
    async with serving(Reply(raw=(b"<html><title>Login</title></html>",))) as server:
        with pytest.raises(ProviderError, match="Login"):
            await collect(COMPATIBLE.on(server.base_url()))


async def test_compressed_responses_and_custom_clients() -> None:
    """They are read through httpx2."""
    packed = gzip.compress(event(delta(content="zip")) + b"data: [DONE]\n\n")
    async with serving(
        Reply(raw=(packed,), headers=(("content-encoding", "gzip"),)), Reply((Say(("own",)),))
    ) as server:
        model = COMPATIBLE.on(server.base_url())
        assert (await collect(model))[0] == TextDelta("zip")
        async with httpx2.AsyncClient() as client:
            other = CompatibleModel(INFO, ModelAccess(server.base_url(), KEY), Selection(), client=client)
            assert (await collect(other))[0] == TextDelta("own")


@pytest.mark.parametrize("url", ["", "localhost:11434", "ftp://x/v1", "http://", "http://[x/v1"])
async def test_invalid_address(url: str) -> None:
    with pytest.raises(ProviderError, match="base_url") as caught:
        await collect(COMPATIBLE.on(url))
    assert caught.value.trouble == "refused"


async def test_a_request_is_repeated_if_the_server_closed_the_idle_connection() -> None:
    async with serving(Reply((Say(("one",)),))) as server:
        model = COMPATIBLE.on(server.base_url())
        await collect(model)
        server.drop_all()
        assert (await collect(model))[0] == TextDelta("one")
        assert server.connections == 2


def test_adapter_works_on_uvloop() -> None:
    """uvloop runs the server; its transports are a type of their own."""

    async def request() -> None:
        gate = Gate()
        async with serving(Reply((Say(("one",)), gate))) as server:
            stream = COMPATIBLE.on(server.base_url()).stream(prompt())
            assert await anext(stream) == TextDelta("one")
            await stream.aclose()
            await server.requests[0].hung_up.wait()

    uvloop.run(request())


# Requests


def request_body(request: ModelRequest, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    info = fields.pop("info", INFO)
    access, selection = fields.pop("access", ModelAccess()), Selection(**fields)
    return dict(msgspec.json.decode(chat_body(request, info, access, selection)))


def test_the_body_of_a_plain_request() -> None:
    assert request_body(prompt()) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is here?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 1000,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "ls",
                    "description": "Lists a directory.",
                    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
                },
            }
        ],
    }


def test_settings_and_options_are_sent() -> None:
    body = request_body(
        prompt(),
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        max_tokens=7,
        reasoning_effort="low",
        provider_options={"a": {"y": 2}},
        access=ModelAccess(options={"a": {"x": 1}}, body={"stream_options": None, "b": 1}, system_prefix="First."),
    )
    assert {name: body.get(name) for name in ("temperature", "top_p", "top_k", "max_tokens")} == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "max_tokens": 7,
    }
    assert body["reasoning_effort"] == "low"
    assert (body["a"], body["b"]) == ({"x": 1, "y": 2}, 1)
    assert "stream_options" not in body
    assert body["messages"][0] == {"role": "system", "content": "First."}


def test_unknown_effort_is_replaced_by_the_default() -> None:
    known = msgspec.structs.replace(INFO, default_reasoning_effort="high")
    assert request_body(prompt(), reasoning_effort="extreme", info=known)["reasoning_effort"] == "high"
    assert "reasoning_effort" not in request_body(prompt(), info=known)
    assert "reasoning_effort" not in request_body(prompt(), reasoning_effort="low", info=ModelInfo("acme", "m"))


def test_images_in_prompts_and_results() -> None:
    """A result with an image is followed by a message that contains it, after all results of the step."""
    picture = base64.b64encode(b"png").decode()
    url = {"url": f"data:image/png;base64,{picture}"}
    user_message = message("user", TextPart(Text("See:")), BinaryPart(Binary("/a/b.png", "image/png", b"png")))
    results = [
        ToolResult(ToolCallId("a"), "view", "shown", "", is_error=False, data=picture, mime_type="image/png"),
        ToolResult(ToolCallId("b"), "ls", "files", "", is_error=False),
    ]
    tools = [message("tool", ToolResultPart(result)) for result in results]
    answer = message("assistant", ToolCallPart(ToolCall(ToolCallId("a"), "view", "{}", finished=True)))
    body = request_body(prompt(user_message, answer, *tools))
    assert body["messages"][1]["content"][1] == {"type": "image_url", "image_url": url}
    assert [item["role"] for item in body["messages"][2:]] == ["assistant", "tool", "tool", "user"]
    assert body["messages"][-1]["content"][1] == {"type": "image_url", "image_url": url}
    inside = msgspec.structs.replace(INFO, takes_media_in_results=True)
    body = request_body(prompt(user_message, answer, *tools), info=inside)
    assert [item["role"] for item in body["messages"][2:]] == ["assistant", "tool", "tool"]
    assert body["messages"][3]["content"][1]["image_url"] == url


def test_plain_reasoning_is_sent_back_only_to_its_model_and_with_calls() -> None:
    thought = ReasoningPart(Reasoning("hm", "reasoning_content"))
    call = ToolCallPart(ToolCall(ToolCallId("a"), "ls", "{}", finished=True))
    responses = [
        message("assistant", thought, call, model="m", provider="acme"),
        message("assistant", thought, TextPart(Text("so")), model="m", provider="acme"),
        message("assistant", thought, call, model="m", provider="other"),
    ]
    bodies = [request_body(prompt(message("user", TextPart(Text("x"))), item))["messages"][-1] for item in responses]
    assert [item.get("reasoning_content") for item in bodies] == ["hm", None, None]


async def test_headers_of_a_request() -> None:
    async with serving(Reply((Say(("one",)),))) as server:
        await collect(COMPATIBLE.on(server.base_url(), access=ModelAccess(headers={"X-Team": "a", "User-Agent": "me"})))
        headers = server.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (headers["x-team"], headers["user-agent"]) == ("a", "me")
    assert headers["x-session-affinity"]
    assert "s1" not in headers["x-session-affinity"]


def test_access_shows_no_key() -> None:
    access = ModelAccess(
        "http://x/v1", KEY, headers={"Authorization": f"Bearer {KEY}"}, extras={"secret_access_key": KEY}
    )
    assert KEY not in f"{access} {access!r} {access.__rich_repr__()}"
    assert access.secrets == (KEY, f"Bearer {KEY}", KEY)
    assert ModelAccess(api_key="sixsix").secrets == ("sixsix",)
    assert ModelAccess(api_key="fiver").secrets == ()


def test_lines_that_a_server_joined_into_one_event_are_read_one_by_one() -> None:
    joined = b"\n".join(msgspec.json.encode(delta(content=word)) for word in ("one ", "two"))
    assert read(joined + b"\n[DONE]") == read(delta(content="one "), delta(content="two"))
    assert read(joined + b"\n [DONE] ") == read(delta(content="one "), delta(content="two"))


@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8"])
async def test_web_page_with_status_200_is_an_error(kind: str) -> None:
    """Whatever it contains: the login page of a proxy may even look like events."""
    page = Reply(raw=(event(delta(content="hi")) + b"data: [DONE]\n\n",), headers=(("content-type", kind),))
    async with serving(page) as server:
        with pytest.raises(ProviderError):
            await collect(COMPATIBLE.on(server.base_url()))


def test_later_options_override_earlier_ones() -> None:
    """Options of the provider, then of the selection, then of `extra_body`; all of them override the plain settings."""
    options = {"a": 1, "b": 1, "c": 1, "temperature": 1.0}
    access = ModelAccess(options=options, body={"c": 3})
    body = request_body(prompt(), temperature=0.5, provider_options={"b": 2, "c": 2}, access=access)
    assert [body[name] for name in ("a", "b", "c", "temperature")] == [1, 2, 3, 1.0]
