"""Content of each wire: every option of a selection, every token count, and reasoning for its own model only."""

from itertools import product
from typing import Any

import msgspec
import pytest

from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import Text, TextPart, ToolResult, ToolResultPart
from holdfast.domain.model_requests import ModelInfo, StreamPart, UsagePart
from holdfast.domain.settings import Selection
from holdfast.domain.usage import Usage
from holdfast.engine.response_builder import ResponseBuilder
from holdfast.providers.adapter_config import ModelAccess
from model_server.script import CallTool, Redact, Reply, Say, Think, event
from model_server.server import RecordedRequest
from providers.adapters import ALL, LIBRARIES, AdapterCase, collect, message, prompt, serving

pytestmark = LIBRARIES
adapters = pytest.mark.parametrize("adapter", ALL, ids=str)
DONE = Reply((Say(("done",)),))


# Tokens


FIELDS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
NOT_COUNTED = {"responses": {"cache_write_tokens"}, "gemini": {"cache_write_tokens"}, "mistral": {"cache_write_tokens"}}
"""Token kinds that a wire does not report."""


def usage_of(parts: list[StreamPart]) -> Usage:
    (part,) = [part for part in parts if isinstance(part, UsagePart)]
    return part.usage


@adapters
async def test_every_token_field_is_counted(adapter: AdapterCase) -> None:
    fields = [name for name in Usage.__struct_fields__ if name not in NOT_COUNTED.get(adapter.wire, ())]
    if adapter.name in ("openai-chat", "azure"):
        # OpenAI does not charge for cache writes and does not report them.
        fields.remove("cache_write_tokens")
    assert tuple(Usage.__struct_fields__) == FIELDS
    wanted = [msgspec.convert({"input_tokens": 1, "output_tokens": 1, name: 7}, Usage) for name in fields]
    everything = msgspec.convert({name: 10**place for place, name in enumerate(fields, 1)}, Usage)
    async with serving(*(Reply((Say(("so",)),), usage=usage) for usage in (*wanted, everything))) as server:
        model = adapter.on(server.base_url(adapter.wire))
        assert [usage_of(await collect(model)) for _ in (*wanted, everything)] == [*wanted, everything]


async def test_reasoning_of_gemini_is_output() -> None:
    """Gemini counts it separately, and charges for it."""
    metadata = {"promptTokenCount": 9, "cachedContentTokenCount": 4, "candidatesTokenCount": 2, "thoughtsTokenCount": 5}
    candidate = {"content": {"role": "model", "parts": [{"text": "so"}]}, "finishReason": "STOP", "index": 0}
    last = {"candidates": [candidate], "modelVersion": "m", "responseId": "r1", "usageMetadata": metadata}
    gemini = next(adapter for adapter in ALL if adapter.name == "gemini")
    async with serving(Reply(raw=(event(last),))) as server:
        assert usage_of(await collect(gemini.on(server.base_url("gemini")))) == Usage(5, 7, 4)


# Options


def _at(body: Any, *path: str) -> Any:  # noqa: ANN401 - any JSON
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body


OPENAI: dict[str, tuple[str, ...]] = {
    name: (name,) for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")
}
GOOGLE: dict[str, tuple[str, ...]] = {
    "max_tokens": ("generationConfig", "maxOutputTokens"),
    "temperature": ("generationConfig", "temperature"),
    "top_p": ("generationConfig", "topP"),
    "top_k": ("generationConfig", "topK"),
    "frequency_penalty": ("generationConfig", "frequencyPenalty"),
    "presence_penalty": ("generationConfig", "presencePenalty"),
}
PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "compatible": {**OPENAI, "max_tokens": ("max_tokens",), "top_k": ("top_k",)},
    "openai-chat": {**OPENAI, "max_tokens": ("max_completion_tokens",)},
    "azure": {**OPENAI, "max_tokens": ("max_completion_tokens",)},
    "openai-responses": {"temperature": ("temperature",), "top_p": ("top_p",), "max_tokens": ("max_output_tokens",)},
    "anthropic": {name: (name,) for name in ("temperature", "top_p", "top_k", "max_tokens")},
    "gemini": GOOGLE,
    "vertexai": GOOGLE,
    "mistral": {
        "temperature": ("temperature",),
        "top_p": ("top_p",),
        "frequency_penalty": ("frequency_penalty",),
        "presence_penalty": ("presence_penalty",),
        "max_tokens": ("max_tokens",),
    },
    "bedrock": {
        "max_tokens": ("inferenceConfig", "maxTokens"),
        "temperature": ("inferenceConfig", "temperature"),
        "top_p": ("inferenceConfig", "topP"),
        "top_k": ("additionalModelRequestFields", "top_k"),
    },
}
VALUES: dict[str, Any] = {
    "max_tokens": 77,
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 3,
    "frequency_penalty": 0.75,
    "presence_penalty": 0.125,
}
OTHERS = {"model", "provider", "reasoning_effort", "think", "provider_options"}


def test_every_option_of_a_selection_has_a_row() -> None:
    assert VALUES.keys() | OTHERS == set(Selection.__struct_fields__)
    assert PLACES.keys() == {adapter.name for adapter in ALL}


@adapters
async def test_sampling_is_sent_and_omitted_by_default(adapter: AdapterCase) -> None:
    """Each option, with its smallest value too; unset options are not sent."""
    places = PLACES[adapter.name]
    model = "gpt-4.1" if "openai" in adapter.name else adapter.model

    async def body(**chosen: Any) -> Any:  # noqa: ANN401
        info = ModelInfo("acme", model)
        access = ModelAccess(server.base_url(adapter.wire), adapter.key, extras=adapter.extras)
        await collect(adapter.make(info, access, msgspec.convert(chosen, Selection)))
        return server.requests[-1].json

    async with serving(DONE) as server:
        plain = await body()
        # Mistral's library sends its own default for one of them.
        unset = [name for name in places if name != "max_tokens" and (adapter.name, name) != ("mistral", "top_p")]
        assert {name: _at(plain, *places[name]) for name in unset} == dict.fromkeys(unset)
        assert _at(plain, *places["max_tokens"]) == 1_000, "what the request allows"
        whole = await body(**VALUES)
        assert {name: _at(whole, *path) for name, path in places.items()} == {name: VALUES[name] for name in places}
        least = {name: 0 for name in places if name not in ("max_tokens", "top_k")}
        smallest = await body(**least)
        assert {name: _at(smallest, *places[name]) for name in least} == least


# Efforts


EFFORTS: dict[str, tuple[str, ...]] = {
    "compatible": ("reasoning_effort",),
    "openai-chat": ("reasoning_effort",),
    "azure": (),
    "openai-responses": ("reasoning", "effort"),
    "anthropic": (),
    "gemini": ("generationConfig", "thinkingConfig"),
    "vertexai": ("generationConfig", "thinkingConfig"),
    "mistral": (),
    "bedrock": (),
}


@adapters
async def test_an_effort_changes_the_request(adapter: AdapterCase) -> None:
    async with serving(DONE) as server:

        async def request_with(selection: Selection) -> RecordedRequest:
            await collect(adapter.on(server.base_url(adapter.wire), selection=selection))
            return server.requests[-1]

        plain, high, low = [
            (await request_with(Selection(reasoning_effort=effort))).json for effort in ("", "high", "low")
        ]
        path = EFFORTS[adapter.name]
        if path:
            assert _at(high, *path) not in (None, _at(low, *path), _at(plain, *path))
            assert path != ("reasoning_effort",) or _at(high, *path) == "high"


# Reasoning that is sealed


SEALED = Reply(
    (Think(("hm",), signature="c2lnbmF0dXJl"), Redact("c2VjcmV0"), Say(("so",)), CallTool("call_a", "ls", ("{}",)))
)
MARKS = ("c2lnbmF0dXJl", "c2VjcmV0", "YzJWamNtVjA=")


@adapters
async def test_sealed_reasoning_is_sent_only_to_its_model(adapter: AdapterCase) -> None:
    """Provider and model both count; text and calls of the response are sent to every model."""
    async with serving(SEALED) as server:
        model = adapter.on(server.base_url(adapter.wire))
        answer = ResponseBuilder(message("assistant", id="m2", model=adapter.model, provider="acme"))
        for part in await collect(model):
            answer.feed(part, 0)
        result = ToolResultPart(ToolResult(ToolCallId("call_a"), "ls", "a b", "", is_error=False))
        user_message = message("user", TextPart(Text("What is here?")))
        bodies: dict[tuple[str, str], str] = {}
        for provider, name in product(("acme", "another"), (adapter.model, "x")):
            response = msgspec.structs.replace(answer.message(), provider=provider, model=name)
            await collect(model, prompt(user_message, response, message("tool", result, id="m3")))
            bodies[provider, name] = server.requests[-1].body.decode()
    own = bodies.pop(("acme", adapter.model))
    # OpenAI's own chat wire does not support reasoning.
    assert (MARKS[0] in own) == (adapter.name not in ("openai-chat", "azure"))
    for body in bodies.values():
        assert not any(mark in body for mark in MARKS)
        assert "a b" in body
        assert "so" in body
