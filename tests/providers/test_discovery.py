"""Model discovery over real sockets, with valid and invalid responses."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.providers import model_discovery as module
from holdfast.providers.adapter_config import is_loopback
from holdfast.providers.model_discovery import (
    DiscoveredModel,
    DiscoveryTarget,
    ModelDiscovery,
    ollama_address,
    parse_lm_studio_models,
    parse_ollama_models,
    parse_openai_models,
)
from holdfast.providers.shared_http_clients import close_connections
from providers.json_server import JsonServer, json_server

TAGS = {"models": [{"name": "qwen3:8b", "model": "qwen3:8b"}, {"name": "nomic-embed-text"}, {"model": "old:1b"}]}


def show(body: dict[str, Any]) -> dict[str, Any]:
    if body["model"] == "qwen3:8b":
        return {
            "capabilities": ["completion", "tools", "thinking", "vision"],
            "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40_960},
        }
    return {"capabilities": ["completion"], "model_info": {"llama.context_length": 8_192}, "parameters": "num_ctx 4096"}


@pytest.fixture
async def server() -> AsyncIterator[JsonServer]:
    async with json_server() as server:
        yield server
        await close_connections()


@pytest.fixture
async def discovery() -> AsyncIterator[ModelDiscovery]:
    discovery = ModelDiscovery()
    yield discovery
    await discovery.close()


def ollama(server: JsonServer) -> DiscoveryTarget:
    return DiscoveryTarget(f"{server.url}/v1", "ollama")


async def test_ollama_reports_context_sizes_and_capabilities(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers = {"/api/tags": TAGS, "/api/show": show, "/api/ps": {"models": [{"model": "old:1b"}]}}
    finding = await discovery.query(ollama(server))
    assert finding.has_answered
    assert finding.models == (
        DiscoveredModel("qwen3:8b", "", 40_960, 0, can_reason=True, images=True, tools=True),
        DiscoveredModel("old:1b", "", 4_096, 0, can_reason=False, images=False, tools=False, is_loaded=True),
    )


async def test_ollama_without_details_still_has_models(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers = {"/api/tags": TAGS, "/api/show": 500}
    assert [found.id for found in (await discovery.query(ollama(server))).models] == ["qwen3:8b", "old:1b"]


async def test_lm_studio_reports_loaded_models(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers["/api/v0/models"] = {
        "data": [
            {
                "id": "big",
                "type": "llm",
                "state": "loaded",
                "max_context_length": 131_072,
                "loaded_context_length": 8_192,
            },
            {"id": "eyes", "type": "vlm", "state": "not-loaded", "max_context_length": 32_768},
            {"id": "vectors", "type": "embeddings"},
        ]
    }
    big, eyes = (await discovery.query(DiscoveryTarget(f"{server.url}/v1", "lmstudio"))).models
    assert (big.id, big.context_window, big.is_loaded) == ("big", 8_192, True)
    assert (eyes.id, eyes.context_window, eyes.images) == ("eyes", 32_768, True)


async def test_an_older_lm_studio_is_queried_by_the_openai_api(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "big"}]}
    (found,) = (await discovery.query(DiscoveryTarget(f"{server.url}/v1", "lmstudio"))).models
    assert found.id == "big"


async def test_any_server_is_queried_with_its_key(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "m", "max_model_len": 4_096}, {"id": "text-embedding-3"}]}
    finding = await discovery.query(DiscoveryTarget(f"{server.url}/v1/", headers=(("authorization", "Bearer k"),)))
    assert [(found.id, found.context_window) for found in finding.models] == [("m", 4_096)]
    assert server.headers["authorization"] == "Bearer k"
    assert server.requests == ["GET /v1/models"]


async def test_an_ollama_server_is_recognised_by_its_models(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers = {
        "/v1/models": {"data": [{"id": "qwen3:8b", "owned_by": "library"}]}, "/api/tags": TAGS, "/api/show": show,
    }  # fmt: skip
    (found,) = (await discovery.query(DiscoveryTarget(f"{server.url}/v1"))).models
    assert (found.context_window, found.tools) == (40_960, True)


async def test_llama_cpp_reports_its_context_size(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers = {
        "/v1/models": {"data": [{"id": "gguf", "owned_by": "llamacpp"}]},
        "/props": {"default_generation_settings": {"n_ctx": 16_384}},
    }
    (found,) = (await discovery.query(DiscoveryTarget(f"{server.url}/v1"))).models
    assert found.context_window == 16_384


@pytest.mark.parametrize("answer", [404, 500, b"<html>", b"[1]", b"\xff", {"data": "x"}, {"data": [1, {"id": 5}]}])
async def test_invalid_response_yields_no_models(server: JsonServer, discovery: ModelDiscovery, answer: object) -> None:
    server.answers["/v1/models"] = answer
    assert (await discovery.query(DiscoveryTarget(f"{server.url}/v1"))).models == ()


async def test_a_refused_connection_is_an_empty_result_at_once(discovery: ModelDiscovery, reserved_port: int) -> None:
    finding = await discovery.query(DiscoveryTarget(f"http://127.0.0.1:{reserved_port}/v1", "ollama"))
    assert not finding.has_answered
    assert finding.models == ()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/v1", "http://[::1/v1", "http:///v1", "nonsense"])
async def test_invalid_address_yields_no_models(discovery: ModelDiscovery, url: str) -> None:
    try:
        assert not (await discovery.query(DiscoveryTarget(url))).has_answered
    finally:
        await close_connections()


async def test_unresponsive_server_times_out(
    server: JsonServer, discovery: ModelDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUERY_TIMEOUT", 0.05)
    server.held.clear()
    finding = await discovery.query(ollama(server))
    assert finding.models == ()


async def test_concurrent_queries_share_one_request(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 5}]}
    server.held.clear()
    place = DiscoveryTarget(f"{server.url}/v1")
    async with asyncio.TaskGroup() as group:
        asks = [group.create_task(discovery.query(place)) for _ in range(5)]
        await server.waiting.wait()
        server.held.set()
    assert len({id(query.result()) for query in asks}) == 1
    assert server.requests == ["GET /v1/models"]


async def test_a_cancelled_query_does_not_affect_other_callers(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 5}]}
    server.held.clear()
    place = DiscoveryTarget(f"{server.url}/v1")
    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(discovery.query(place)) for _ in range(2))
        await server.waiting.wait()
        first.cancel()
        server.held.set()
    assert second.result().models


async def test_results_are_cached(server: JsonServer) -> None:
    now = [0.0]
    discovery = ModelDiscovery(lambda: now[0])
    place = DiscoveryTarget(f"{server.url}/v1")
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 5}]}
    await discovery.query(place)
    now[0] = 299.0
    await discovery.query(place)
    assert (len(server.requests), discovery.version) == (1, 1)
    now[0] = 301.0
    assert discovery.cached(place) is None
    await discovery.query(place)
    assert (len(server.requests), discovery.version) == (2, 1), "an unchanged result does not change the version"
    server.answers["/v1/models"] = 500
    now[0] = 700.0
    await discovery.query(place)
    assert discovery.version == 2
    now[0] = 721.0
    await discovery.query(place)
    assert len(server.requests) == 4, "an empty result expires sooner"


async def test_a_background_query_does_not_wait(server: JsonServer, discovery: ModelDiscovery) -> None:
    server.held.clear()
    place = DiscoveryTarget(f"{server.url}/v1")
    discovery.query_in_background(place)
    assert discovery.cached(place) is None
    await server.waiting.wait()


# Pure


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:8000", "http://127.0.0.1:8000/v1"),
        (":8000", "http://127.0.0.1:8000/v1"),
        ("https://far.test", "https://far.test:443/v1"),
        ("http://far.test:1/ollama/", "http://far.test:1/ollama/v1"),
        ("[::]:7", "http://[::1]:7/v1"),
        ("127.0.0.1:abc", "http://127.0.0.1:11434/v1"),
    ],
)
def test_ollama_host_variable_is_parsed_like_ollama(given: str, address: str) -> None:
    assert ollama_address({"OLLAMA_HOST": given}) == address


def test_only_this_machine_is_loopback() -> None:
    for near in ("http://localhost:1", "http://127.0.0.9/v1", "http://[::1]:3"):
        assert is_loopback(near)
    for far in ("http://127.0.0.1.evil.test", "http://10.0.0.1", "http://localhost.evil.test", "http://[::1", ""):
        assert not is_loopback(far)


def test_fields_of_the_wrong_kind_count_as_absent() -> None:
    item = {"id": "m", "context_length": "many", "max_model_len": True, "n_ctx": -1, "architecture": [], "meta": 3}
    (found,), _ = parse_openai_models({"data": [item]})
    assert found == DiscoveredModel("m")
    assert parse_lm_studio_models({"data": [{"id": "m", "type": 4, "capabilities": "x"}]}) == [
        DiscoveredModel("m", images=False)
    ]
    odd = {"models": [{"model": "m", "details": 4}]}
    shown = {"m": {"capabilities": "x", "model_info": [], "parameters": 7}}
    assert parse_ollama_models(odd, shown, {"models": {}}) == [DiscoveredModel("m")]
