"""Which model is chosen, from what is set, what is found, and what is missing."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from choosing.home import Home, home
from holdfast.domain.errors import ProviderError
from holdfast.domain.usage import Price
from holdfast.providers import discovery as places
from holdfast.providers.catalog import load_catalog
from holdfast.providers.compatible import CompatibleModel
from holdfast.providers.pydantic import PydanticModel
from holdfast.providers.tour import TourModel
from providers.json_server import JsonServer, json_server, silent_port

GROQ, DEEPSEEK = (next(item for item in load_catalog().providers if item.id == id) for id in ("groq", "deepseek"))
GROQ_LARGE, GROQ_SMALL = f"groq/{GROQ.default_large}", f"groq/{GROQ.default_small}"


@pytest.fixture(autouse=True)
async def no_lm_studio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests may have one."""
    ollama, (id, name, kind, _) = places.LOCAL_SERVERS
    port = await silent_port()
    monkeypatch.setattr(
        "holdfast.providers.market.LOCAL_SERVERS", (ollama, (id, name, kind, f"http://127.0.0.1:{port}/v1"))
    )


@pytest.fixture
async def server() -> AsyncIterator[JsonServer]:
    async with json_server() as server:
        yield server


@pytest.fixture
async def place(server: JsonServer) -> AsyncIterator[Home]:
    async with home(server.port) as place:
        yield place


def local(server: JsonServer, **more: object) -> dict[str, Any]:
    return {"local": {"base_url": f"{server.url}/v1", **more}}


async def refusal(place: Home) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await place.models.large()
    return caught.value


# Without a selection


async def test_without_anything_the_tour_answers(place: Home) -> None:
    large, small = await place.models.large(), await place.models.small()
    assert isinstance(large, TourModel)
    assert large.info.is_scripted
    assert small.info.is_scripted
    assert "no model" in large.info.name
    assert await place.models.renewed(large) is None


async def test_a_key_in_the_environment_is_enough(place: Home, server: JsonServer) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    assert await place.large() == GROQ_LARGE
    assert await place.small() == GROQ_SMALL
    assert server.asked == [], "nobody is asked who is not needed"


async def test_the_catalogues_order_decides(place: Home) -> None:
    place.environment |= {"GROQ_API_KEY": "k", "DEEPSEEK_API_KEY": "k"}
    assert (await place.large()).startswith("deepseek/")


async def test_providers_that_the_settings_name_come_first(place: Home, server: JsonServer) -> None:
    place.environment["DEEPSEEK_API_KEY"] = "k"
    place.set(providers=local(server, models=[{"id": "mine"}]))
    assert await place.large() == "local/mine"
    place.set(providers={"groq": {"api_key": "direct"}})
    assert await place.large() == GROQ_LARGE


async def test_a_stored_key_is_enough_and_comes_before_the_environments(place: Home) -> None:
    place.keys["groq"] = "stored"
    place.environment["GROQ_API_KEY"] = "found"
    model = await place.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.api_key == "stored"
    place.set(providers={"groq": {"api_key": "${MISSING:-written}"}})
    model = await place.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.api_key == "written"


async def test_credentials_of_the_machine_are_not_used_unasked(place: Home) -> None:
    place.environment |= {"AWS_PROFILE": "work", "GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "l"}
    assert await place.large() == "demo/tour"


async def test_a_disabled_provider_is_passed_over(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    place.set(providers={"groq": {"disable": True}})
    assert await place.large() == "demo/tour"
    place.set(providers={"groq": {"disable": True}}, models={"large": {"provider": "groq"}})
    assert "providers.groq.disable" in str(await refusal(place))


async def test_default_providers_can_be_switched_off(place: Home, server: JsonServer) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    server.answers["/api/tags"] = {"models": [{"model": "qwen3:8b"}]}
    place.set(options={"disable_default_providers": True})
    assert await place.large() == "demo/tour"
    assert server.asked == []


# Local servers


async def test_a_local_server_that_answers_is_used(place: Home, server: JsonServer) -> None:
    server.answers = {
        "/api/tags": {"models": [{"model": "plain:1b"}, {"model": "able:8b"}]},
        "/api/show": lambda body: {
            "capabilities": ["completion", "tools"] if body["model"] == "able:8b" else ["completion"],
            "model_info": {"x.context_length": 32_768},
        },
    }
    model = await place.models.large()
    assert (model.info.provider, model.info.model, model.info.context_window) == ("ollama", "able:8b", 32_768)
    assert await place.small() == "ollama/able:8b"
    assert not model.info.is_scripted


async def test_a_model_that_is_loaded_is_preferred(place: Home, server: JsonServer) -> None:
    server.answers = {
        "/api/tags": {"models": [{"model": "cold:8b"}, {"model": "warm:8b"}]},
        "/api/ps": {"models": [{"model": "warm:8b", "context_length": 16_384}]},
    }
    model = await place.models.large()
    assert (model.info.model, model.info.context_window) == ("warm:8b", 16_384)


async def test_a_local_server_that_is_started_later_is_found(place: Home, server: JsonServer) -> None:
    assert await place.large() == "demo/tour"
    server.answers["/api/tags"] = {"models": [{"model": "m"}]}
    assert await place.large() == "demo/tour"
    place.now = 30.0
    assert await place.large() == "ollama/m"


async def test_a_far_ollama_is_used_only_if_it_is_chosen(place: Home) -> None:
    place.environment["OLLAMA_HOST"] = "ollama.invalid:1"
    assert await place.large() == "demo/tour"
    assert place.discovery.known(places.Place("http://ollama.invalid:1/v1", "ollama")) is None, "nobody asked it"
    place.set(models={"large": {"provider": "ollama", "model": "m"}}, providers={"ollama": {"discover_models": False}})
    model = await place.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.base_url == "http://ollama.invalid:1/v1"


async def test_a_server_that_is_configured_is_asked_what_it_has(place: Home, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "a", "context_length": 9_000}]}
    place.set(providers=local(server, api_key="$SECRET", extra_headers={"x-team": "t", "x-none": "${NONE:-}"}))
    place.environment["SECRET"] = "s"
    model = await place.models.large()
    assert (model.info.model, model.info.context_window) == ("a", 9_000)
    assert server.headers["authorization"] == "Bearer s"
    assert server.headers["x-team"] == "t"
    assert "x-none" not in server.headers


async def test_a_described_model_needs_no_answer(place: Home, server: JsonServer) -> None:
    server.held.clear()
    place.set(
        providers=local(server, models=[{"id": "m"}, {"id": "n", "context_window": 5}]),
        models={"large": {"provider": "local", "model": "m"}},
    )
    assert (await place.models.large()).info.context_window == 0
    await server.waiting.wait()
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 7_000}]}
    version = place.discovery.version
    server.held.set()
    while place.discovery.version == version:
        await place.discovery.ask(places.Place(f"{server.url}/v1"))
    assert (await place.models.large()).info.context_window == 7_000, "what came later counts from then on"


async def test_without_a_list_a_model_is_taken_at_its_name(place: Home, server: JsonServer) -> None:
    place.set(providers=local(server, discover_models=False), models={"large": {"provider": "local", "model": "x"}})
    assert await place.large() == "local/x"
    assert server.asked == []
    place.set(providers=local(server), models={"large": {"provider": "local", "model": "y"}})
    assert await place.large() == "local/y", "the server does not say what it has"


async def test_ollamas_short_names_are_understood(place: Home, server: JsonServer) -> None:
    server.answers["/api/tags"] = {"models": [{"model": "qwen3:latest"}]}
    place.set(models={"large": {"provider": "ollama", "model": "qwen3"}})
    assert await place.large() == "ollama/qwen3:latest"


async def test_a_new_model_of_a_known_provider_is_found_by_asking(place: Home, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "brand-new", "context_length": 1_000}]}
    place.set(
        providers={"groq": {"api_key": "k", "base_url": f"{server.url}/v1"}},
        models={"large": {"provider": "groq", "model": "brand-new"}},
    )
    assert await place.large() == "groq/brand-new"


# Selections


async def test_what_is_selected_is_used(place: Home) -> None:
    place.environment |= {"GROQ_API_KEY": "k", "DEEPSEEK_API_KEY": "k"}
    place.set(models={"large": {"provider": "groq", "model": "openai/gpt-oss-20b"}, "small": {"provider": "deepseek"}})
    assert await place.large() == "groq/openai/gpt-oss-20b"
    assert await place.small() == f"deepseek/{DEEPSEEK.default_large}"


async def test_a_model_may_be_named_with_its_provider(place: Home, server: JsonServer) -> None:
    place.environment |= {"GROQ_API_KEY": "k", "OPENROUTER_API_KEY": "k"}
    place.set(models={"large": {"model": "groq/openai/gpt-oss-20b"}})
    assert await place.large() == "groq/openai/gpt-oss-20b"
    place.set(models={"large": {"model": "anthropic/claude-sonnet-5.5"}})
    assert await place.large() == "openrouter/anthropic/claude-sonnet-5.5", "a slash may be part of a model's own name"
    place.set(models={"large": {"model": "anthropic/claude-sonnet-5-5"}})
    assert "ANTHROPIC_API_KEY" in str(await refusal(place))
    place.set(models={"large": {"model": "local/a/b"}}, providers=local(server, discover_models=False))
    assert await place.large() == "local/a/b"


async def test_a_bare_name_finds_the_provider_that_can_be_used(place: Home) -> None:
    place.environment["CEREBRAS_API_KEY"] = "k"
    place.set(models={"large": {"model": "gpt-oss-120b"}})
    assert await place.large() == "cerebras/gpt-oss-120b"


async def test_the_tour_can_be_selected(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    place.set(models={"large": {"provider": "demo", "model": "tour"}})
    assert await place.large() == "demo/tour"
    place.set(models={"large": {"model": "demo/tour"}, "small": {"provider": "groq"}})
    assert (await place.large(), await place.small()) == ("demo/tour", GROQ_LARGE)


async def test_small_follows_large(place: Home, server: JsonServer) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    place.set(models={"large": {"provider": "groq", "model": "llama-3.3-70b-versatile"}})
    assert await place.small() == GROQ_SMALL
    place.set(
        providers=local(server, models=[{"id": "one"}, {"id": "two"}]),
        models={"large": {"provider": "local", "model": "two"}},
    )
    assert await place.small() == "local/two"


async def test_other_spellings_of_providers(place: Home) -> None:
    place.environment["XAI_API_KEY"] = ""
    place.set(providers={"z-ai": {"api_key": "k"}}, models={"large": {"provider": "Z-AI"}})
    assert (await place.large()).startswith("zai/")


# What is missing


async def test_an_unknown_provider_names_close_ones(place: Home) -> None:
    place.set(models={"large": {"provider": "antropic", "model": "x"}})
    error = await refusal(place)
    assert error.trouble == "refused"
    assert "anthropic" in str(error)
    assert "holdfast models" in str(error)


async def test_an_unknown_model_names_close_ones(place: Home) -> None:
    place.environment["DEEPSEEK_API_KEY"] = "k"
    place.set(
        providers={"deepseek": {"discover_models": False}},
        models={"large": {"provider": "deepseek", "model": "deepsek-flash"}},
    )
    error = await refusal(place)
    assert error.trouble == "refused"
    assert "Did you mean deepseek-flash" in str(error)
    assert "holdfast models deepseek" in str(error)
    place.set(models={"large": {"model": "gpt-oss-12b"}})
    assert "gpt-oss-120b" in str(await refusal(place))


async def test_a_server_that_lists_its_models_has_no_others(place: Home, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "qwen3-coder"}]}
    place.set(providers=local(server), models={"large": {"provider": "local", "model": "qwen3-codr"}})
    assert "Did you mean qwen3-coder?" in str(await refusal(place))


async def test_a_missing_key_names_the_variable_and_the_command(place: Home) -> None:
    place.set(models={"large": {"provider": "anthropic"}})
    error = await refusal(place)
    assert error.trouble == "credentials"
    assert "ANTHROPIC_API_KEY" in str(error)
    assert "holdfast login anthropic" in str(error)
    place.set(models={"large": {"provider": "anthropic"}}, providers={"anthropic": {"api_key": "$WORK_KEY"}})
    assert "WORK_KEY" in str(await refusal(place))
    place.set(models={"large": {"model": "anthropic/claude-sonnet-5-5"}})
    assert "ANTHROPIC_API_KEY" in str(await refusal(place))


@pytest.mark.parametrize(
    ("provider", "settings", "hint"),
    [
        ("bedrock", {}, "AWS_PROFILE"),
        ("vertexai", {}, "VERTEXAI_LOCATION"),
        ("azure", {"api_key": "k"}, "AZURE_OPENAI_ENDPOINT"),
        ("cloudflare-workers-ai", {"api_key": "k"}, "CLOUDFLARE_ACCOUNT_ID"),
        ("mine", {"type": "openai-compat"}, "providers.mine.base_url"),
        ("mine", {"base_url": "localhost:1234/v1"}, "http://"),
        ("mine", {"base_url": "http://x", "type": "telepathy"}, "telepathy"),
        ("mine", {"type": "anthropic"}, "holdfast login mine"),
        ("mine", {"base_url": "$NOWHERE/v1"}, "NOWHERE"),
    ],
)
async def test_what_else_may_be_missing(place: Home, provider: str, settings: dict[str, Any], hint: str) -> None:
    place.set(providers={provider: settings}, models={"large": {"provider": provider, "model": "m"}})
    assert hint in str(await refusal(place))


async def test_a_chosen_server_that_is_not_there_is_named(place: Home) -> None:
    place.environment["OLLAMA_HOST"] = f"127.0.0.1:{await silent_port()}"
    place.set(models={"large": {"provider": "ollama"}})
    error = await refusal(place)
    assert error.trouble == "connection"
    assert "Ollama is chosen, but does not answer" in str(error)


async def test_a_chosen_server_without_models_is_named(place: Home, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": []}
    place.set(providers=local(server), models={"large": {"provider": "local"}})
    error = await refusal(place)
    assert error.trouble == "refused"
    assert "local/MODEL" in str(error)


async def test_a_header_may_stand_for_a_key(place: Home) -> None:
    place.set(providers={"groq": {"extra_headers": {"Authorization": "Bearer $TOKEN"}}})
    assert await place.large() == "demo/tour"
    place.environment["TOKEN"] = "t"
    place.stamp += 1
    model = await place.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.headers == {"Authorization": "Bearer t"}


async def test_a_second_account_has_the_facts_of_the_first(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "private"
    place.set(providers={"work": {"id": "groq", "api_key": "k"}}, models={"large": {"provider": "work"}})
    model = await place.models.large()
    assert isinstance(model, CompatibleModel)
    assert (model.info.provider, model.info.model) == ("work", GROQ.default_large)
    assert model.info.context_window > 0
    assert model._access.api_key == "k"
    place.set(providers={"work": {"id": "groq", "api_key": "k"}}, models={"large": {"provider": "groq"}})
    assert await place.large() == GROQ_LARGE


async def test_images_in_results_where_wire_and_model_take_them(place: Home) -> None:
    place.environment |= {"ANTHROPIC_API_KEY": "k", "GROQ_API_KEY": "k"}
    assert (await place.models.large()).info.takes_media_in_results
    id = (await place.models.large()).info.model
    place.set(providers={"anthropic": {"models": [{"id": id, "supports_attachments": False}]}})
    assert not (await place.models.large()).info.takes_media_in_results
    place.set(models={"large": {"provider": "groq", "model": "qwen/qwen3.8-27b"}})
    info = (await place.models.large()).info
    assert (info.supports_images, info.takes_media_in_results) == (True, False)


async def test_a_command_that_fails_is_reported(place: Home) -> None:
    place.set(providers={"groq": {"api_key": "$(get key)"}}, models={"large": {"provider": "groq"}})
    error = await refusal(place)
    assert "Groq" in str(error)
    assert "status 1" in str(error)
    place.set(providers={"groq": {"api_key": "$(get key)"}, **local_named()})
    assert await place.large() == "mine/m", "who cannot be used is passed over"


def local_named() -> dict[str, Any]:
    return {"mine": {"base_url": "http://127.0.0.1:9/v1", "models": [{"id": "m", "context_window": 5}]}}


# How it is asked


async def test_the_users_facts_win_field_by_field(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    id = GROQ.default_large
    known = GROQ.model(id)
    assert known is not None
    given = {"id": id, "context_window": 1_234, "cost_per_1m_out": 9.0, "name": "Mine", "can_reason": False}
    place.set(providers={"groq": {"models": [given, {"id": "new", "context_window": 77}]}})
    info = (await place.models.large()).info
    assert (info.context_window, info.price.output, info.name, info.can_reason) == (1_234, 9.0, "Mine", False)
    assert (info.price.input, info.max_output_tokens) == (known.cost_in, known.default_max_tokens)
    place.set(
        providers={"groq": {"models": [{"id": "new", "context_window": 77}], "flat_rate": True}},
        models={"large": {"provider": "groq", "model": "new"}},
    )
    assert (await place.models.large()).info.context_window == 77
    place.set(providers={"groq": {"flat_rate": True}})
    assert (await place.models.large()).info.price.output == 0.0


async def test_the_names_of_prices_are_those_of_the_wire(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    prices = {"cost_per_1m_in": 1, "cost_per_1m_out": 2, "cost_per_1m_in_cached": 3, "cost_per_1m_out_cached": 4}
    place.set(providers={"groq": {"models": [{"id": GROQ.default_large, **prices}]}})
    assert (await place.models.large()).info.price == Price(1.0, 2.0, cache_read=4.0, cache_write=3.0)


async def asked(place: Home, providers: dict[str, Any], **selection: object) -> CompatibleModel:
    place.set(providers=providers, models={"large": selection})
    model = await place.models.large()
    assert isinstance(model, CompatibleModel)
    return model


async def test_an_effort_is_sent_only_if_the_model_knows_it(place: Home, server: JsonServer) -> None:
    models = [
        {"id": "deep", "can_reason": True, "reasoning_levels": ["low", "high"], "default_reasoning_effort": "high"},
        {"id": "flat", "can_reason": False},
        {"id": "open"},
    ]
    there = local(server, models=models, discover_models=False)
    for model, effort, sent in (
        ("deep", "low", "low"),
        ("deep", "extreme", "high"),
        ("deep", "", ""),
        ("open", "strange", "strange"),
    ):
        made = await asked(place, there, provider="local", model=model, reasoning_effort=effort)
        assert made._selection.reasoning_effort == sent, model
    made = await asked(place, there, provider="local", model="open", reasoning_effort="high")
    assert made.info.can_reason, "nobody knows better than who asks for it"


async def test_a_model_that_cannot_reason_is_not_asked_to(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    flat = next(model.id for model in GROQ.models if not model.can_reason)
    made = await asked(place, {}, provider="groq", model=flat, reasoning_effort="high", think=True)
    assert (made._selection.reasoning_effort, made._selection.think) == ("", False)


async def test_each_server_is_told_to_reason_in_its_own_way(place: Home) -> None:
    place.environment |= {"DEEPSEEK_API_KEY": "k", "OPENROUTER_API_KEY": "k"}
    made = await asked(place, {}, provider="deepseek", reasoning_effort="high")
    assert made._access.options["thinking"] == {"type": "enabled"}
    made = await asked(place, {}, provider="openrouter", reasoning_effort="high")
    assert made._access.options["reasoning"] == {"effort": "high"}
    assert made._access.options["reasoning_effort"] is None
    made = await asked(place, {}, provider="openrouter")
    assert made._access.options == {}


async def test_options_add_up(place: Home, server: JsonServer) -> None:
    options = {"temperature": 0.3, "top_k": 5, "provider_options": {"b": 2}, "c": 3}
    there = local(
        server, models=[{"id": "m", "options": options}], provider_options={"a": 1, "b": 1}, extra_body={"x": "$Y"},
        system_prompt_prefix="You are", discover_models=False,
    )  # fmt: skip
    place.environment["Y"] = "why"
    made = await asked(place, there, provider="local", model="m", temperature=0.9, max_tokens=5)
    assert made._access.options == {"a": 1, "b": 2, "c": 3}
    assert made._access.body == {"x": "why"}
    assert made._access.system_prefix == "You are"
    assert (made._selection.temperature, made._selection.top_k, made._selection.max_tokens) == (0.9, 5, 5)


# Again


async def test_nothing_is_done_twice(place: Home) -> None:
    place.set(providers={"groq": {"api_key": "$(get key)"}})
    place.said["get key"] = "k"
    first = await place.models.large()
    assert await place.models.large() is first
    place.set(providers={"groq": {"api_key": "$(get key)"}})
    assert await place.models.large() is first, "another object that says the same changes nothing"
    await place.models.small()
    assert place.commands == ["get key"]


async def test_those_who_ask_together_share_the_work(place: Home) -> None:
    place.set(providers={"groq": {"api_key": "$(get key)"}})
    place.said["get key"] = "k"
    first, second = await asyncio.gather(place.models.large(), place.models.large())
    assert first is second
    assert place.commands == ["get key"]


async def test_a_change_takes_effect_with_the_next_call_and_back(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    first = await place.models.large()
    place.set(models={"large": {"provider": "groq", "model": "llama-3.3-70b-versatile"}})
    assert (await place.models.large()) is not first
    place.set()
    assert await place.models.large() is first, "what it keeps open is used again"


async def test_a_key_that_is_stored_meanwhile_is_found(place: Home) -> None:
    for _ in range(3):
        assert await place.large() == "demo/tour"
    place.keys["groq"] = "k"
    assert await place.large() == "demo/tour", "nobody looks at keys all the time"
    place.stamp += 1
    assert await place.large() == GROQ_LARGE


async def test_a_failure_is_not_kept(place: Home) -> None:
    place.set(models={"large": {"provider": "groq"}})
    assert "GROQ_API_KEY" in str(await refusal(place))
    place.keys["groq"] = "k"
    place.stamp += 1
    assert await place.large() == GROQ_LARGE


# Renewal


async def test_a_template_is_expanded_again(place: Home) -> None:
    place.set(providers={"groq": {"api_key": "$(get key)"}})
    place.said["get key"] = "old"
    model = await place.models.large()
    assert await place.models.renewed(model) is None, "the same key would be refused again"
    place.said["get key"] = "new"
    fresh = await place.models.renewed(model)
    assert isinstance(fresh, CompatibleModel)
    assert fresh._access.api_key == "new"
    assert await place.models.large() is fresh
    assert await place.models.renewed(model) is fresh, "who comes later gets the same"


async def test_a_stored_key_is_asked_for_again(place: Home) -> None:
    place.keys["groq"] = "old"
    model = await place.models.large()
    place.keys["groq"] = "new"
    assert await place.models.renewed(model) is not None
    del place.keys["groq"]
    assert await place.models.renewed(await place.models.large()) is None


async def test_a_token_is_exchanged(place: Home) -> None:
    place.set(providers={"groq": {"oauth": {"access_token": "old"}}})
    model = await place.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.api_key == "old"
    assert await place.models.renewed(model) is None
    place.tokens.append("new")
    fresh = await place.models.renewed(model)
    assert isinstance(fresh, CompatibleModel)
    assert fresh._access.api_key == "new"


async def test_a_token_is_exchanged_once_for_all(place: Home) -> None:
    place.set(providers={"groq": {"oauth": {"access_token": "old"}}})
    model = await place.models.large()
    place.tokens += ["new", "wasted"]
    first, second = await asyncio.gather(place.models.renewed(model), place.models.renewed(model))
    assert first is second
    assert place.commands == ["token"]


async def test_a_token_that_is_newer_already_is_taken(place: Home) -> None:
    place.set(providers={"groq": {"oauth": {"access_token": "old"}}})
    model = await place.models.large()
    place.set(providers={"groq": {"oauth": {"access_token": "newer"}}})
    fresh = await place.models.renewed(model)
    assert isinstance(fresh, CompatibleModel)
    assert fresh._access.api_key == "newer"
    assert place.commands == []


# What others see


async def test_the_view_tells_facts_and_no_secrets(place: Home, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 5}]}
    place.environment["GROQ_API_KEY"] = "canary-1"
    place.keys["deepseek"] = "canary-2"
    there = local(server, api_key="canary-3", extra_headers={"x-key": "canary-4"})
    place.set(providers={**there, "far": {"base_url": "http://me:canary-5@127.0.0.1:9/v1", "discover_models": False}})
    views = {view.id: view for view in await place.models.providers_view(asks=True)}
    assert views["groq"].is_usable
    assert views["deepseek"].is_usable
    assert "ANTHROPIC_API_KEY" in views["anthropic"].lack
    assert views["anthropic"].api_key == "$ANTHROPIC_API_KEY"
    assert [(model.id, model.context_window) for model in views["local"].models] == [("m", 5)]
    assert views["ollama"].lack
    assert next(iter(views)) == "local"
    assert list(views)[-1] == "demo"
    assert "canary" not in str(views)


async def test_the_view_waits_for_nobody_unless_told_to(place: Home, server: JsonServer) -> None:
    server.held.clear()
    place.set(providers=local(server))
    views = {view.id: view for view in await place.models.providers_view()}
    assert views["local"].models == ()


async def test_the_small_model_of_a_provider(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    selection = await place.models.default_small("groq")
    assert f"{selection.provider}/{selection.model}" == GROQ_SMALL
    selection = await place.models.default_small("nobody")
    assert f"{selection.provider}/{selection.model}" == GROQ_LARGE


# Other wires


async def test_libraries_wait_for_the_first_request(place: Home) -> None:
    place.environment |= {"ANTHROPIC_API_KEY": "k", "XAI_API_KEY": "k"}
    model = await place.models.large()
    assert isinstance(model, PydanticModel)
    assert model._kind == "anthropic"
    place.set(models={"large": {"provider": "xai"}})
    model = await place.models.large()
    assert isinstance(model, PydanticModel)
    assert model._kind == "openai-responses"
    script = "import sys, holdfast.providers.pydantic; print(*sys.modules)"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True)
    assert not {"anthropic", "openai", "pydantic_ai", "httpx2"} & set(done.stdout.split())


async def test_credentials_of_a_machine_are_those_of_its_environment(place: Home) -> None:
    place.environment |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
    place.set(models={"large": {"provider": "bedrock"}})
    model = await place.models.large()
    assert isinstance(model, PydanticModel)
    assert model._access.extras == {"region": "eu-west-1", "access_key_id": "id", "secret_access_key": "secret"}
    place.set(
        models={"large": {"provider": "bedrock"}}, providers={"bedrock": {"provider_options": {"region": "us-east-2"}}}
    )
    model = await place.models.large()
    assert isinstance(model, PydanticModel)
    assert model._access.extras["region"] == "us-east-2"
    assert model._access.options == {}


async def test_bedrock_signs_in_again(place: Home) -> None:
    place.environment["AWS_PROFILE"] = "work"
    place.set(models={"large": {"provider": "bedrock"}}, providers={"bedrock": {"aws_auth_refresh": "aws sso login"}})
    model = await place.models.large()
    fresh = await place.models.renewed(model)
    assert fresh is not None
    assert fresh is not model, "what a library has read once it keeps"
    assert await place.models.large() is fresh
    assert place.commands == ["aws sso login"]
    place.signs_in = False
    assert await place.models.renewed(fresh) is None


@pytest.mark.parametrize(
    ("provider", "environment", "address"),
    [
        ("azure", {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://me.test"}, "https://me.test"),
        ("vertexai", {"VERTEXAI_PROJECT": "p", "VERTEXAI_LOCATION": "l"}, ""),
        (
            "cloudflare-workers-ai",
            {"CLOUDFLARE_API_KEY": "k", "CLOUDFLARE_ACCOUNT_ID": "acc"},
            "https://api.cloudflare.com/client/v4/accounts/acc/ai/v1",
        ),
    ],
)
async def test_special_providers_are_found(
    place: Home, provider: str, environment: dict[str, str], address: str
) -> None:
    place.environment |= environment
    assert (await place.large()).startswith(f"{provider}/")
    model = await place.models.large()
    assert isinstance(model, PydanticModel | CompatibleModel)
    assert model._access.base_url == address


async def test_a_model_that_speaks_another_wire_goes_elsewhere(place: Home) -> None:
    place.environment["OPENCODE_API_KEY"] = "k"
    place.set(models={"large": {"provider": "opencode", "model": "claude-sonnet-5-5"}})
    model = await place.models.large()
    assert isinstance(model, PydanticModel)
    assert model._kind == "anthropic"
    assert model._access.base_url.endswith("/anthropic")
    place.set(
        models={"large": {"provider": "opencode", "model": "claude-sonnet-5-5"}},
        providers={"opencode": {"base_url": "https://proxy.test"}},
    )
    model = await place.models.large()
    assert isinstance(model, PydanticModel)
    assert model._access.base_url == "https://proxy.test", "an address that was set is the only one"
