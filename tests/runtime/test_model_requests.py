"""How a chosen model is asked, and what others are told about it."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from holdfast.domain.usage import Price
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.pydantic_ai import PydanticModel
from providers.json_server import JsonServer
from runtime.settings_home import GROQ, GROQ_LARGE, GROQ_SMALL, Home, local

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


# What others see


async def test_patience_may_be_set(place: Home, server: JsonServer) -> None:
    waits = []
    for timeout in (0, 900):
        place.set(providers=local(server, models=[{"id": "m"}], timeout=timeout))
        model = await place.models.large()
        assert isinstance(model, CompatibleModel)
        waits.append((model._access.first_byte, model._access.between))
    assert waits == [(300, 120), (900, 900)]


async def test_the_view_tells_facts_and_no_secrets(place: Home, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 5}]}
    place.environment["GROQ_API_KEY"] = "canary-1"
    place.keys["deepseek"] = "canary-2"
    there = local(server, api_key="canary-3", extra_headers={"x-key": "canary-4"})
    place.set(providers={**there, "far": {"base_url": "http://me:canary-5@127.0.0.1:9/v1", "discover_models": False}})
    views = {view.id: view for view in await place.models.providers_view()}
    assert views["groq"].is_usable
    assert views["deepseek"].is_usable
    assert "ANTHROPIC_API_KEY" in views["anthropic"].lack
    assert views["anthropic"].api_key == "$ANTHROPIC_API_KEY"
    assert [(model.id, model.context_window) for model in views["local"].models] == [("m", 5)]
    assert views["ollama"].lack
    assert next(iter(views)) == "local"
    assert list(views)[-1] == "demo"
    assert "canary" not in str(views)


async def test_the_view_of_what_can_be_used_waits_for_nobody(place: Home, server: JsonServer) -> None:
    server.held.clear()
    place.set(providers=local(server))
    views = {view.id: view for view in await place.models.usable_view()}
    assert views["local"].models == ()


async def test_the_view_of_what_can_be_used_names_nobody_else(place: Home) -> None:
    place.environment["GROQ_API_KEY"] = "k"
    views = await place.models.usable_view()
    assert [view.id for view in views] == ["groq", "demo"]
    assert all(view.models for view in views)


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
    script = "import sys, holdfast.providers.pydantic_ai; print(*sys.modules)"
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
