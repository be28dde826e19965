"""Parsers of model lists: one row for each fact in the format of each server."""

from typing import Any

from holdfast.providers import model_discovery as module
from holdfast.providers.model_discovery import (
    DiscoveredModel,
    merge_details,
    parse_lm_studio_models,
    parse_ollama_models,
    parse_openai_models,
)
from planting import CLAUSES, assert_every_clause_decides

SIZES = (
    "loaded_context_length",
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_context_window",
    "max_input_tokens",
    "n_ctx",
    "n_ctx_train",
)
NOT_CHAT_CAPABLE = (
    "text-embedding-3",
    "bge_reranker",
    "org/whisper-1",
    "tts-1",
    "omni-moderation:x",
    "nomic-embed.v1",
    "rerank",
)
CHAT_CAPABLE = ("embedder", "whispering", "gpt-4o-ttsx", "m")


def openai(item: dict[str, Any]) -> list[DiscoveredModel]:
    return parse_openai_models({"data": [item]})[0]


def check_openai() -> None:
    rows: list[tuple[dict[str, Any], DiscoveredModel | None]] = [
        ({"id": "m"}, DiscoveredModel("m")),
        ({}, None),
        ({"id": 3}, None),
        ({"id": "m", "name": "M"}, DiscoveredModel("m", "M")),
        ({"id": "m", "name": "m"}, DiscoveredModel("m")),
        ({"id": "m", "max_completion_tokens": 7}, DiscoveredModel("m", max_tokens=7)),
        ({"id": "m", "meta": {"n_ctx_train": 5}}, DiscoveredModel("m", context_window=5)),
        ({"id": "m", "n_ctx": 4, "meta": {"n_ctx_train": 5}}, DiscoveredModel("m", context_window=4)),
        ({"id": "m", "architecture": {"input_modalities": ["text", "image"]}}, DiscoveredModel("m", images=True)),
        ({"id": "m", "architecture": {"input_modalities": ["text"]}}, DiscoveredModel("m", images=False)),
        ({"id": "m", "architecture": {"input_modalities": "image"}}, DiscoveredModel("m")),
        ({"id": "m", "type": "model"}, DiscoveredModel("m")),
        *(({"id": "m", "type": kind}, None) for kind in ("embedding", "embeddings", "image", "audio")),
        *(({"id": name}, None) for name in NOT_CHAT_CAPABLE),
        *(({"id": name}, DiscoveredModel(name)) for name in CHAT_CAPABLE),
        *(({"id": "m", "n_ctx": size}, DiscoveredModel("m")) for size in (True, 0, -1, "9", 1.5, 1_000_000_000)),
        *(({"id": "m", "n_ctx": size}, DiscoveredModel("m", context_window=size)) for size in (1, 999_999_999)),
    ]
    for item, expected in rows:
        assert openai(item) == ([] if expected is None else [expected]), item
    for place, name in enumerate(SIZES):
        item = {"id": "m", **{other: 100 + number for number, other in enumerate(SIZES) if number >= place}}
        assert openai(item) == [DiscoveredModel("m", context_window=100 + place)], f"{name} before those that follow it"
    bodies: list[dict[str, Any]] = [{}, {"data": {}}, {"data": ["m", 3]}]
    for body in bodies:
        assert parse_openai_models(body) == ([], "")


def check_makers() -> None:
    one, two = {"id": "a", "owned_by": "x"}, {"id": "b", "owned_by": "y"}
    assert parse_openai_models({"data": [one, two]}) == ([DiscoveredModel("a"), DiscoveredModel("b")], "x")
    assert parse_openai_models({"data": [{"id": "c"}, two]})[1] == "y"
    assert parse_openai_models({"data": [{"id": "tts-1", "owned_by": "z"}, two]})[1] == "y", (
        "only of those that can talk"
    )
    assert parse_openai_models({"data": [{"id": "a", "name": "old"}, {"id": "a", "name": "new"}]})[0] == [
        DiscoveredModel("a", "new")
    ]


def ollama(detail: object = None, *, item: object = None, running: object = None) -> list[DiscoveredModel]:
    tags = {"models": [{"model": "m"} if item is None else item]}
    return parse_ollama_models(tags, {"m": detail}, {"models": [] if running is None else [running]})


def check_ollama() -> None:
    known = DiscoveredModel("m", can_reason=False, images=False, tools=False)
    made = {"model_info": {"q.context_length": 9, "q.other": 99, 3: 77, "r.context_length": 8}}
    assert ollama() == ollama("nonsense") == ollama({"capabilities": "x"}) == [DiscoveredModel("m")]
    assert ollama({"capabilities": ["completion", 4, {}]}) == [known]
    assert ollama({"capabilities": ["embedding"]}) == ollama({"capabilities": []}) == []
    for word, fact in {"thinking": "can_reason", "vision": "images", "tools": "tools"}.items():
        (found,) = ollama({"capabilities": ["completion", word]})
        others = {name: getattr(found, name) for name in ("can_reason", "images", "tools")}
        assert others == {name: name == fact for name in others}, word
    assert ollama(item={"name": "m"}) == [DiscoveredModel("m")]
    assert ollama(item={"model": "m", "name": "other"}) == [DiscoveredModel("m")]
    assert ollama(item={}) == ollama(item="m") == ollama(item={"model": "nomic-embed-text"}) == []
    for running in ({"model": "m", "name": "x"}, {"name": "m"}):
        assert ollama(running=running) == [DiscoveredModel("m", is_loaded=True)]
    assert ollama(running={"model": "x"}) == [DiscoveredModel("m")]
    loaded = {"model": "m", "context_length": 6}
    assert ollama(made) == [DiscoveredModel("m", context_window=9)], "the largest it was made for"
    assert ollama({"model_info": []}) == ollama({"model_info": {}}) == [DiscoveredModel("m")]
    assert ollama(made, running=loaded) == [DiscoveredModel("m", context_window=6, is_loaded=True)]
    set_by_file = made | {"parameters": "stop x\nnum_ctx   4\n"}
    assert ollama(set_by_file, running=loaded) == [DiscoveredModel("m", context_window=4, is_loaded=True)]
    assert ollama(made | {"parameters": "xnum_ctx 4"}) == [DiscoveredModel("m", context_window=9)]
    assert len(parse_ollama_models({"models": [{"model": "m"}, {"name": "m"}]}, {}, {})) == 1


def check_lm_studio() -> None:
    rows: list[tuple[dict[str, Any], DiscoveredModel | None]] = [
        ({"id": "m"}, DiscoveredModel("m", images=False)),
        ({"id": "m", "type": "llm"}, DiscoveredModel("m", images=False)),
        ({"id": "m", "type": "vlm"}, DiscoveredModel("m", images=True)),
        ({"id": "m", "type": "embeddings"}, None),
        ({"type": "llm"}, None),
        ({"id": "m", "state": "loaded"}, DiscoveredModel("m", images=False, is_loaded=True)),
        ({"id": "m", "state": "not-loaded"}, DiscoveredModel("m", images=False)),
        ({"id": "m", "capabilities": ["tool_use"]}, DiscoveredModel("m", images=False, tools=True)),
        ({"id": "m", "capabilities": []}, DiscoveredModel("m", images=False, tools=False)),
        ({"id": "m", "max_context_length": 5}, DiscoveredModel("m", images=False, context_window=5)),
    ]
    for item, expected in rows:
        assert parse_lm_studio_models({"data": [item]}) == ([] if expected is None else [expected]), item
    assert len(parse_lm_studio_models({"data": [{"id": "m"}, {"id": "m"}]})) == 1


def check_completed() -> None:
    """The first list names the models, the second has more details."""
    plain, sized = DiscoveredModel("a", "A"), DiscoveredModel("a", context_window=3)
    detail = DiscoveredModel("a", "B", 5, tools=True, is_loaded=True)
    assert merge_details([plain, DiscoveredModel("b")], []) == [plain, DiscoveredModel("b")], "no details are known"
    assert merge_details([plain, DiscoveredModel("b")], [detail]) == [
        DiscoveredModel("a", "A", 5, tools=True, is_loaded=True)
    ]
    assert merge_details([sized], [detail]) == [DiscoveredModel("a", "B", 3, tools=True, is_loaded=True)]


CHECKS = (check_openai, check_makers, check_ollama, check_lm_studio, check_completed)


def test_every_clause_decides() -> None:
    def check() -> None:
        for each in CHECKS:
            each()

    equivalent = {
        "is_size and isinstance(value, int) -> is_size": "repeated for the type checker",
        "0 < value < 1000000000 -> 0 <= value < 1000000000": "0 equals an absent size",
    }
    kinds = (*CLAUSES, "comparison", "element", "argument", "exit")
    names = (
        "parse_openai_models parse_ollama_models parse_lm_studio_models merge_details _trained_context "
        "_configured_context _context_size _accepts_images _name _objects _text _number _positive_int _unique"
    )
    functions = [getattr(module, name) for name in names.split()]
    assert_every_clause_decides(functions, check, equivalent, kinds)
