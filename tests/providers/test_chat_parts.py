"""Chunks of the chat wire: one that contains text and something else loses neither."""

from typing import Any, get_args

import msgspec
import pytest

from holdfast.domain.model_requests import (
    FinishedPart,
    StepFinish,
    StreamPart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from holdfast.providers.chat_response import ChatResponse, ErrorInStream
from holdfast.providers.model_discovery import parse_openai_models
from providers.adapters import shape

FINISHES: dict[StepFinish, str] = {
    "stop": "stop end_turn stop_sequence eos eos_token complete completed STOP",
    "length": "length max_tokens max_output_tokens model_length MAX_TOKENS",
    "tool_calls": "tool_calls tool_call tool_use function_call",
    "content_filter": "content_filter content_filtered safety refusal sensitive",
    "other": "odd",
}


def answer(*chunks: dict[str, Any]) -> list[StreamPart]:
    made = ChatResponse()
    parts = made.feed([msgspec.json.encode(chunk) for chunk in chunks])
    return [*parts, *made.end()]


def piece(*, finish: str | None = None, **delta: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"choices": [{"delta": {"content": "hi", **delta}, "finish_reason": finish}]}


@pytest.mark.parametrize("reason", get_args(StepFinish))
def test_every_finish_reason(reason: StepFinish) -> None:
    for word in FINISHES[reason].split():
        assert answer(piece(finish=word))[-1] == FinishedPart(reason), word
    assert FINISHES.keys() == set(get_args(StepFinish))


@pytest.mark.parametrize("word", [None, "", "null", "none", "None"])
def test_missing_finish_reason(word: str | None) -> None:
    made = ChatResponse()
    assert made.feed([msgspec.json.encode(piece(finish=word))]) == [TextDelta("hi")]
    assert not made.is_finished
    made.feed([b" [DONE] "])
    assert made.is_finished


CALL = {"index": 0, "id": "a", "function": {"name": "ls", "arguments": "{}"}}
BESIDE: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "alone": (piece(), ("text",)),
    "an end": (piece(finish="length"), ("text", "FinishedPart")),
    "a call": (piece(tool_calls=[CALL]), ("text", "call a ls", "ToolCallEnd")),
    "reasoning": (piece(reasoning_content="hm"), ("reasoning", "signature", "text")),
    "reasoning by another name": (piece(reasoning="hm"), ("reasoning", "text")),
    "details": (piece(reasoning_details=[{"text": "hm"}]), ("reasoning", "text")),
    "usage": (piece() | {"usage": {"prompt_tokens": 5}}, ("text", "UsagePart")),
    "usage of Groq": (piece() | {"x_groq": {"usage": {"prompt_tokens": 5}}}, ("text", "UsagePart")),
    "timings": (piece() | {"timings": {"prompt_n": 5}}, ("text", "UsagePart")),
}


@pytest.mark.parametrize("name", BESIDE)
def test_text_beside_another_field(name: str) -> None:
    chunk, expected = BESIDE[name]
    seen = shape(answer(chunk))
    assert ("text", "hi") in seen
    assert [kind for kind, _ in seen if kind != "FinishedPart" or name == "an end"] == list(expected)
    assert (seen[-1][1] == repr(FinishedPart("length"))) == (name == "an end")


@pytest.mark.parametrize(
    "chunk",
    [
        piece() | {"error": {"message": "no"}},
        {"choices": [{"delta": {"content": "hi"}, "error": {"message": "no"}}]},
        piece() | {"x_groq": {"error": "no"}},
        piece(finish="error"),
        {"object": "error", "message": "no"},
        {"type": "error", "message": "no"},
    ],
)
def test_text_beside_an_error(chunk: dict[str, Any]) -> None:
    with pytest.raises(ErrorInStream):
        answer(chunk)


def test_only_the_first_choice_counts() -> None:
    one, two = piece()["choices"][0], piece(content="ho")["choices"][0]
    assert shape(answer({"choices": [one, two]}))[0] == ("text", "hi")


def test_reported_usage_takes_precedence_over_timings() -> None:
    chunks = (piece() | {"usage": {"prompt_tokens": 5}}, piece() | {"timings": {"prompt_n": 9}})
    assert "input_tokens=5" in str(shape(answer(*chunks)))


@pytest.mark.parametrize(
    ("item", "is_listed"),
    [
        ({"id": "m"}, True),
        ({"id": ""}, False),
        ({}, False),
        ({"id": 5}, False),
        *(({"id": "m", "type": kind}, False) for kind in ("embedding", "embeddings", "image", "audio")),
        ({"id": "m", "type": "chat"}, True),
        *(({"id": f"x-{word}-1"}, False) for word in ("embed", "embedding", "embeddings", "rerank", "reranker")),
        *(({"id": f"{word}:1"}, False) for word in ("whisper", "tts", "moderation")),
        ({"id": "x/TTS"}, False),
        ({"id": "embedder"}, True),
    ],
)
def test_chat_models_of_a_list(item: dict[str, Any], is_listed: bool) -> None:
    found, _ = parse_openai_models({"data": [item]})
    assert bool(found) == is_listed


PIECES = ("na", "me", "ly")
"""The text of the arguments of a call, in the chunks after its first one."""


@pytest.mark.parametrize("begins", range(3))
@pytest.mark.parametrize(
    ("repeats_id", "keeps_index"), [(False, True), (True, True), (True, False)], ids=["index", "both", "id"]
)
def test_a_call_is_one_however_its_chunks_identify_it(begins: int, *, repeats_id: bool, keeps_index: bool) -> None:
    """The id arrives with chunk `begins`. Later chunks repeat the index, the id, or both."""

    def chunks(index: int) -> list[dict[str, Any]]:
        made = []
        for place, text in enumerate(("", *PIECES)):
            has_id = place == begins or (repeats_id and place > begins)
            call: dict[str, Any] = {"function": {"arguments": text} | ({"name": f"tool{index}"} if not place else {})}
            call |= {"id": f"id{index}"} if has_id else {}
            call |= {"index": index} if keeps_index or place <= begins else {}
            made.append(piece(content=None, tool_calls=[call]))
        return made

    parts = answer(*chunks(0), *chunks(1))
    starts = [part for part in parts if isinstance(part, ToolCallStart)]
    assert [start.name for start in starts] == ["tool0", "tool1"]
    for start in starts:
        assert (
            "".join(item.text for item in parts if isinstance(item, ToolCallDelta) and item.id == start.id) == "namely"
        )
    assert [part.id for part in parts if isinstance(part, ToolCallEnd)] == [start.id for start in starts]
