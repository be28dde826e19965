"""Requirements for every adapter on every wire."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import pytest

from holdfast.domain.errors import ProviderError, Trouble
from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import Reasoning, Text, TextPart, ToolCall, ToolResult, ToolResultPart
from holdfast.domain.model_requests import FinishedPart, StepFinish, StreamPart, TextDelta, ToolCallEnd, UsagePart
from holdfast.domain.usage import Usage
from holdfast.engine.response_builder import ResponseBuilder
from holdfast.providers.adapter_config import ModelAccess
from holdfast.providers.shared_http_clients import close_connections
from holdfast.testing.gates import Gate, settle_down, start
from model_server import chat
from model_server.script import CallTool, Redact, Reply, Say, Think
from model_server.server import WIRES
from providers.adapters import (
    ALL,
    COMPATIBLE,
    END_MARKERS,
    KEY,
    LIBRARIES,
    STREAM_ERRORS,
    Adapter,
    AdapterCase,
    collect,
    message,
    prompt,
    read_to_end,
    serving,
    shape,
)

pytestmark = LIBRARIES

adapters = pytest.mark.parametrize("adapter", ALL, ids=str)

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
WORDS = ("Hel", "lo, wörld ", "🌍!")
CALL = CallTool("call_a", "ls", ('{"pa', 'th": ', '"/ä"}'))
FULL = Reply((Think(("I ", "think")), Say(WORDS), CALL), usage=Usage(100, 20, 40))


@adapters
async def test_every_part_arrives_in_order(adapter: AdapterCase) -> None:
    async with serving(FULL) as server:
        parts = await collect(adapter.on(server.base_url(adapter.wire)))
    seen = [item for item in shape(parts) if item[0] not in ("signature", "redacted")]
    assert [name for name, _ in seen] == [
        "reasoning", "text", "call call_a ls", "ToolCallEnd", "UsagePart", "FinishedPart",
    ]  # fmt: skip
    assert [seen[0][1], seen[1][1]] == ["I think", "".join(WORDS)]
    assert msgspec.json.decode(seen[2][1]) == {"path": "/ä"}
    assert parts[-3:] == [
        ToolCallEnd(ToolCallId("call_a")),
        UsagePart(Usage(100, 20, 40)),
        FinishedPart("tool_calls"),
    ]


@adapters
async def test_parts_are_yielded_as_they_are_received(adapter: AdapterCase) -> None:
    """Nothing is buffered until the end."""
    gate = Gate()
    async with serving(Reply((Say(("one",)), gate, Say(("two",))))) as server:
        stream = adapter.on(server.base_url(adapter.wire)).stream(prompt())
        assert await anext(stream) == TextDelta("one")
        gate.open()
        assert [part async for part in stream][-1] == FinishedPart("stop")


@adapters
@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "tool_calls"])
async def test_the_finish_reason_is_reported(adapter: AdapterCase, finish: StepFinish) -> None:
    if adapter.wire == "mistral" and finish == "content_filter":
        # This wire has no word for it.
        return
    acts = (Say(("so",)), CALL) if finish == "tool_calls" else (Say(("so",)),)
    async with serving(Reply(acts, finish=finish)) as server:
        parts = await collect(adapter.on(server.base_url(adapter.wire)))
    assert parts[-1] == FinishedPart(finish)


@adapters
async def test_parallel_calls(adapter: AdapterCase) -> None:
    calls = tuple(CallTool(f"call_{number}", "ls", ('{"path":', f'"{number}"' + "}")) for number in range(3))
    async with serving(Reply(calls)) as server:
        seen = shape(await collect(adapter.on(server.base_url(adapter.wire))))
    received = [(name, msgspec.json.decode(text)) for name, text in seen if name.startswith("call ")]
    assert received == [(f"call call_{number} ls", {"path": str(number)}) for number in range(3)]


@adapters
async def test_malformed_arguments_are_passed_on(adapter: AdapterCase) -> None:
    """They are checked where the call is assembled. Gemini cannot express them."""
    if adapter.wire == "gemini":
        return
    async with serving(Reply((CallTool("call_a", "ls", ('{"path": ', "oops")),))) as server:
        seen = shape(await collect(adapter.on(server.base_url(adapter.wire))))
    assert ("call call_a ls", '{"path": oops') in seen


LONE_SURROGATE = Reply(
    (
        Think(("I \ud83d ", "think")),
        Say(("one \ud83d, ", "\ude00 two, ", "😀")),
        CallTool("call_a", "ls", ('{"path": "x \\', 'ud83d y \\ud83d\\ude00"}')),
    )
)


@adapters
@pytest.mark.parametrize("size", [0, 5])
async def test_lone_surrogate_is_replaced(adapter: AdapterCase, size: int) -> None:
    """On every wire, in text, reasoning and arguments, wherever the bytes are split; the rest is kept."""
    reply = msgspec.structs.replace(LONE_SURROGATE, pieces=pieces_of(size)) if size else LONE_SURROGATE
    async with serving(reply) as server:
        parts = await collect(adapter.on(server.base_url(adapter.wire)))
    assembly = ResponseBuilder(message("assistant", id="m"))
    for part in parts:
        assembly.feed(part, 1)
    answer = assembly.message()
    msgspec.json.encode(answer)
    thoughts, text, call = (part.data for part in answer.parts)
    assert isinstance(thoughts, Reasoning)
    assert isinstance(text, Text)
    assert isinstance(call, ToolCall)
    assert [thoughts.thinking, text.text] == [f"I {REPLACEMENT} think", f"one {REPLACEMENT}, {REPLACEMENT} two, 😀"]
    assert msgspec.json.decode(call.input) == {"path": f"x {REPLACEMENT} y 😀"}
    assert not assembly.malformed_calls


@adapters
async def test_without_usage_none_is_reported(adapter: AdapterCase) -> None:
    async with serving(Reply((Say(("so",)),))) as server:
        parts = await collect(adapter.on(server.base_url(adapter.wire)))
    assert not [part for part in parts if isinstance(part, UsagePart) and part.usage.input_tokens]


def pieces_of(size: int) -> Callable[[bytes], list[bytes]]:
    return lambda data: [data[place : place + size] for place in range(0, len(data), size)]


@adapters
@pytest.mark.parametrize("size", [1, 7, 64])
async def test_a_body_can_be_split_anywhere(adapter: AdapterCase, size: int) -> None:
    async with serving(FULL, msgspec.structs.replace(FULL, pieces=pieces_of(size))) as server:
        model = adapter.on(server.base_url(adapter.wire))
        assert shape(await collect(model)) == shape(await collect(model))


# Failures


class ErrorCase(msgspec.Struct, frozen=True):
    """An error response of a provider, and its meaning."""

    status: int
    body: str
    trouble: Trouble
    headers: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None


REFUSALS = (
    ErrorCase(401, '{"error":{"message":"Incorrect API key provided: KEY"}}', "credentials"),
    ErrorCase(402, '{"error":{"message":"Payment required"}}', "quota"),
    ErrorCase(404, '{"error":{"message":"The model `m` does not exist","type":"not_found_error"}}', "refused"),
    ErrorCase(429, '{"error":{"message":"Slow down"}}', "busy", (("retry-after", "7"),), 7.0),
    ErrorCase(429, '{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}', "quota"),
    ErrorCase(400, '{"error":{"message":"maximum context length is 8192 tokens"}}', "overflow"),
    ErrorCase(400, '{"error":{"message":"temperature has to be a number"}}', "refused"),
    ErrorCase(500, '{"error":{"message":"Internal server error"}}', "busy"),
    ErrorCase(503, '{"error":{"message":"The engine is overloaded"}}', "busy", (("retry-after-ms", "1500"),), 1.5),
    ErrorCase(529, '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "busy"),
    ErrorCase(
        502, "<html><head><title>502 Bad Gateway</title></head></html>", "busy", (("content-type", "text/html"),)
    ),
    ErrorCase(408, "", "busy"),
    ErrorCase(409, "{}", "busy"),
    ErrorCase(307, "", "refused", (("location", "https://elsewhere.test/v1"),)),
)


@adapters
@pytest.mark.parametrize("refused", REFUSALS, ids=lambda item: f"{item.status}-{item.trouble}")
async def test_error_statuses_are_classified(adapter: AdapterCase, refused: ErrorCase) -> None:
    """One attempt only; the key never appears."""
    body = refused.body.replace("KEY", KEY).encode()
    async with serving(Reply(status=refused.status, headers=refused.headers, body=body)) as server:
        with pytest.raises(ProviderError) as caught:
            await collect(adapter.on(server.base_url(adapter.wire)))
        assert len(server.requests) == 1
    error = caught.value
    assert (error.trouble, error.retry_after) == (refused.trouble, refused.retry_after), str(error)
    assert "acme" in str(error)
    assert KEY not in f"{error} {error.title} {error!r}"
    assert "<" not in str(error)
    assert error.__cause__ is None


@adapters
async def test_web_page_is_an_error(adapter: AdapterCase) -> None:
    page = b"<!DOCTYPE html><html><head><title>Welcome to nginx</title></head><body>hi</body></html>"
    async with serving(Reply(headers=(("content-type", "text/html; charset=utf-8"),), body=page)) as server:
        with pytest.raises(ProviderError, match="base_url") as caught:
            await collect(adapter.on(server.base_url(adapter.wire)))
    assert caught.value.trouble == "refused"
    assert "nginx" in str(caught.value)


@adapters
async def test_unreachable_server(adapter: AdapterCase) -> None:
    async with serving(Reply()) as server:
        url = server.base_url(adapter.wire)
    try:
        with pytest.raises(ProviderError, match="base_url") as caught:
            await collect(adapter.on(url))
        assert caught.value.trouble == "not_running"
        assert "the connection was refused" in str(caught.value)
        with pytest.raises(ProviderError, match="there is no port 99999"):
            await collect(adapter.on("http://127.0.0.1:99999/v1"))
    finally:
        await close_connections()


@adapters
async def test_error_body_with_status_200(adapter: AdapterCase) -> None:
    """Some gateways always send status 200."""
    body = b'{"error":{"message":"The engine is overloaded, KEY"}}'.replace(b"KEY", KEY.encode())
    async with serving(Reply(body=body)) as server:
        with pytest.raises(ProviderError, match="The engine is overloaded") as caught:
            await collect(adapter.on(server.base_url(adapter.wire)))
    assert caught.value.trouble == "busy"
    assert KEY not in str(caught.value)


@adapters
async def test_truncated_response_is_never_complete(adapter: AdapterCase) -> None:
    """By a broken connection, and by an apparently regular end."""
    whole = bytes_of(FULL, adapter)
    reply = FULL
    async with serving(script=lambda _: reply) as server:
        model = adapter.on(server.base_url(adapter.wire))
        for ends_politely in (False, True):
            for after in range(len(whole)):
                reply = msgspec.structs.replace(FULL, cut_after=after, ends_politely=ends_politely)
                await check_cut(model, END_MARKERS[adapter.wire], b"".join(whole[:after]))


def bytes_of(reply: Reply, adapter: AdapterCase) -> list[bytes]:
    return [item for item in WIRES[adapter.wire](reply) if isinstance(item, bytes)]


async def check_cut(model: Adapter, ends: Sequence[bytes], sent: bytes) -> None:
    parts, error = await outcome(model)
    if error is not None:
        assert error.trouble in ("cut", "connection"), str(error)
        assert not [part for part in parts if isinstance(part, FinishedPart)]
    else:
        assert any(mark in sent for mark in ends), f"complete after {sent[-200:]!r}"
        assert isinstance(parts[-1], FinishedPart)


async def outcome(model: Adapter) -> tuple[list[StreamPart], ProviderError | None]:
    parts: list[StreamPart] = []
    try:
        async for part in model.stream(prompt()):
            parts += [part]
    except ProviderError as error:
        return parts, error
    return parts, None


@adapters
async def test_error_in_the_middle_of_a_stream(adapter: AdapterCase) -> None:
    beginning = bytes_of(Reply((Say(("one",)),)), adapter)[
        : {"chat": 2, "gemini": 1, "mistral": 2}.get(adapter.wire, 4)
    ]
    raw = (*beginning, STREAM_ERRORS[adapter.wire])
    async with serving(Reply(raw=raw)) as server:
        with pytest.raises(ProviderError) as caught:
            await collect(adapter.on(server.base_url(adapter.wire)))
    assert caught.value.trouble == "busy", str(caught.value)
    assert KEY not in str(caught.value)


# Silence and cancellation


@adapters
@pytest.mark.parametrize("phase", ["before headers", "before the first piece", "in the middle"])
async def test_silence_ends_in_a_stall(adapter: AdapterCase, phase: str) -> None:
    gate = Gate()
    async with serving(reply_held_at(phase, gate)) as server:
        quick = ModelAccess(first_byte=0.2, between=0.05)
        with pytest.raises(ProviderError, match=r"came for 0\.(2|05) seconds") as caught:
            await collect(adapter.on(server.base_url(adapter.wire), access=quick))
        assert caught.value.trouble == "stalled"
        # A library may take longer to send the request than the test waits.
        for request in server.requests:
            await request.hung_up.wait()


def reply_held_at(phase: str, gate: Gate) -> Reply:
    if phase == "before headers":
        return Reply((Say(("one",)),), before_head=gate)
    if phase == "before the first piece":
        return Reply(raw=(gate,))
    return Reply((Say(("one",)), gate, Say(("two",))))


@adapters
@pytest.mark.parametrize("phase", ["before headers", "before the first piece", "in the middle"])
@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_ending_the_iteration_closes_the_connection(adapter: AdapterCase, phase: str, how: str) -> None:
    """The server detects it, whatever it was doing."""
    gate = Gate()
    async with serving(reply_held_at(phase, gate)) as server:
        stream = adapter.on(server.base_url(adapter.wire)).stream(prompt())
        if phase == "in the middle":
            await anext(stream)
        if how == "closed" and phase == "in the middle":
            await stream.aclose()
        else:
            reading = start(read_to_end(stream))
            await gate.reached.wait()
            await settle_down()
            reading.cancel()
            await asyncio.wait({reading})
            assert reading.cancelled()
        await (await server.request()).hung_up.wait()
        assert len(server.requests) == 1


@adapters
async def test_connection_is_reused(adapter: AdapterCase) -> None:
    async with serving(FULL) as server:
        model = adapter.on(server.base_url(adapter.wire))
        for _ in range(3):
            await collect(model)
            await settle_down()
        assert server.connections == 1


@adapters
async def test_concurrent_streams_are_independent(adapter: AdapterCase) -> None:
    """One is abandoned in the middle; the other continues to its end."""
    gate = Gate()
    async with serving(Reply((Say(("one",)), gate, Say(("two",))))) as server:
        model = adapter.on(server.base_url(adapter.wire))
        first, second = model.stream(prompt()), model.stream(prompt())
        await anext(first)
        await anext(second)
        await first.aclose()
        await server.requests[0].hung_up.wait()
        gate.open()
        assert shape([part async for part in second])[0] == ("text", "two")


# Reasoning that is sealed


SEALED = Reply((Think(("hm",), signature="c2lnbmF0dXJl"), Redact("c2VjcmV0"), Say(("so",)), CALL))


@adapters
async def test_sealed_reasoning_is_sent_back(adapter: AdapterCase) -> None:
    """It is sent back with its response, to the same provider."""
    async with serving(SEALED) as server:
        model = adapter.on(server.base_url(adapter.wire))
        answer = ResponseBuilder(message("assistant", id="m2", model=adapter.model, provider="acme"))
        for part in await collect(model):
            answer.feed(part, 0)
        result = ToolResultPart(ToolResult(ToolCallId("call_a"), "ls", "a b", "", is_error=False))
        user_message = message("user", TextPart(Text("What is here?")))
        request = prompt(user_message, answer.message(), message("tool", result, id="m3"))
        await collect(model, request)
        body = server.requests[1].body.decode()
        other = msgspec.structs.replace(answer.message(), provider="another", model="x")
        await collect(model, prompt(user_message, other, message("tool", result, id="m3")))
        foreign = server.requests[2].body.decode()
    assert "a b" in body
    if adapter.name in ("openai-chat", "azure"):
        # OpenAI's own form of this wire has no reasoning.
        return
    assert "c2lnbmF0dXJl" in body
    assert "c2lnbmF0dXJl" not in foreign
    if adapter.wire in ("anthropic", "chat", "bedrock"):
        # Bedrock sends it as bytes.
        redacted = "YzJWamNtVjA=" if adapter.wire == "bedrock" else "c2VjcmV0"
        assert redacted in body
        assert redacted not in foreign


async def test_compatible_adapter_at_every_byte_boundary() -> None:
    """Two pieces, split at every position of the response."""
    whole = b"".join(item for item in chat.items(FULL) if isinstance(item, bytes))
    expected: list[tuple[str, str]] | None = None
    async with serving(script=lambda _: Reply(raw=cut(whole, len(server.requests)))) as server:
        model = COMPATIBLE.on(server.base_url())
        for _ in range(len(whole)):
            seen = shape(await collect(model))
            expected = expected or seen
            assert seen == expected


def cut(data: bytes, place: int) -> tuple[bytes, ...]:
    return tuple(piece for piece in (data[:place], data[place:]) if piece)
