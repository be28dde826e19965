"""Requests of a selected model, and its description for clients."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from holdfast.domain.usage import Price
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.pydantic_ai import PydanticModel
from providers.json_server import JsonServer
from runtime.model_selection_home import GROQ, GROQ_LARGE, GROQ_SMALL, ModelSelectionHome, local_provider

# Requests


async def test_configured_fields_of_a_model_take_precedence(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    id = GROQ.default_large
    known = GROQ.model(id)
    assert known is not None
    given = {"id": id, "context_window": 1_234, "cost_per_1m_out": 9.0, "name": "Mine", "can_reason": False}
    home.set(providers={"groq": {"models": [given, {"id": "new", "context_window": 77}]}})
    info = (await home.models.large()).info
    assert (info.context_window, info.price.output, info.name, info.can_reason) == (1_234, 9.0, "Mine", False)
    assert (info.price.input, info.max_output_tokens) == (known.cost_in, known.default_max_tokens)
    home.set(
        providers={"groq": {"models": [{"id": "new", "context_window": 77}], "flat_rate": True}},
        models={"large": {"provider": "groq", "model": "new"}},
    )
    assert (await home.models.large()).info.context_window == 77
    home.set(providers={"groq": {"flat_rate": True}})
    assert (await home.models.large()).info.price.output == 0.0


async def test_the_names_of_prices_are_those_of_the_wire(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    prices = {"cost_per_1m_in": 1, "cost_per_1m_out": 2, "cost_per_1m_in_cached": 3, "cost_per_1m_out_cached": 4}
    home.set(providers={"groq": {"models": [{"id": GROQ.default_large, **prices}]}})
    assert (await home.models.large()).info.price == Price(1.0, 2.0, cache_read=4.0, cache_write=3.0)


async def request_of(home: ModelSelectionHome, providers: dict[str, Any], **selection: object) -> CompatibleModel:
    home.set(providers=providers, models={"large": selection})
    model = await home.models.large()
    assert isinstance(model, CompatibleModel)
    return model


async def test_effort_is_sent_only_if_the_model_supports_it(home: ModelSelectionHome, server: JsonServer) -> None:
    models = [
        {"id": "deep", "can_reason": True, "reasoning_levels": ["low", "high"], "default_reasoning_effort": "high"},
        {"id": "flat", "can_reason": False},
        {"id": "open"},
    ]
    there = local_provider(server, models=models, discover_models=False)
    for model, effort, sent in (
        ("deep", "low", "low"),
        ("deep", "extreme", "high"),
        ("deep", "", ""),
        ("open", "strange", "strange"),
    ):
        made = await request_of(home, there, provider="local", model=model, reasoning_effort=effort)
        assert made._selection.reasoning_effort == sent, model
    made = await request_of(home, there, provider="local", model="open", reasoning_effort="high")
    assert made.info.can_reason, "an explicit request overrides the catalogue"


async def test_no_effort_is_sent_to_a_model_without_reasoning(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    flat = next(model.id for model in GROQ.models if not model.can_reason)
    made = await request_of(home, {}, provider="groq", model=flat, reasoning_effort="high", think=True)
    assert (made._selection.reasoning_effort, made._selection.think) == ("", False)


async def test_reasoning_parameter_of_each_server_kind(home: ModelSelectionHome) -> None:
    home.environment |= {"DEEPSEEK_API_KEY": "k", "OPENROUTER_API_KEY": "k"}
    made = await request_of(home, {}, provider="deepseek", reasoning_effort="high")
    assert made._access.options["thinking"] == {"type": "enabled"}
    made = await request_of(home, {}, provider="openrouter", reasoning_effort="high")
    assert made._access.options["reasoning"] == {"effort": "high"}
    assert made._access.options["reasoning_effort"] is None
    made = await request_of(home, {}, provider="openrouter")
    assert made._access.options == {}


async def test_options_are_merged(home: ModelSelectionHome, server: JsonServer) -> None:
    options = {"temperature": 0.3, "top_k": 5, "provider_options": {"b": 2}, "c": 3}
    there = local_provider(
        server, models=[{"id": "m", "options": options}], provider_options={"a": 1, "b": 1}, extra_body={"x": "$Y"},
        system_prompt_prefix="You are", discover_models=False,
    )  # fmt: skip
    home.environment["Y"] = "why"
    made = await request_of(home, there, provider="local", model="m", temperature=0.9, max_tokens=5)
    assert made._access.options == {"a": 1, "b": 2, "c": 3}
    assert made._access.body == {"x": "why"}
    assert made._access.system_prefix == "You are"
    assert (made._selection.temperature, made._selection.top_k, made._selection.max_tokens) == (0.9, 5, 5)


# View for clients


async def test_timeouts_are_configurable(home: ModelSelectionHome, server: JsonServer) -> None:
    waits = []
    for timeout in (0, 900):
        home.set(providers=local_provider(server, models=[{"id": "m"}], timeout=timeout))
        model = await home.models.large()
        assert isinstance(model, CompatibleModel)
        waits.append((model._access.first_byte, model._access.between))
    assert waits == [(300, 120), (900, 900)]


async def test_view_contains_facts_and_no_secrets(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 5}]}
    home.environment["GROQ_API_KEY"] = "canary-1"
    home.keys["deepseek"] = "canary-2"
    there = local_provider(server, api_key="canary-3", extra_headers={"x-key": "canary-4"})
    home.set(providers={**there, "far": {"base_url": "http://me:canary-5@127.0.0.1:9/v1", "discover_models": False}})
    views = {view.id: view for view in await home.models.providers_view()}
    assert views["groq"].is_usable
    assert views["deepseek"].is_usable
    assert "ANTHROPIC_API_KEY" in views["anthropic"].lack
    assert views["anthropic"].api_key == "$ANTHROPIC_API_KEY"
    assert [(model.id, model.context_window) for model in views["local"].models] == [("m", 5)]
    assert views["ollama"].lack
    assert next(iter(views)) == "local"
    assert list(views)[-1] == "demo"
    assert "canary" not in str(views)


async def test_view_of_usable_providers_does_not_wait_for_queries(home: ModelSelectionHome, server: JsonServer) -> None:
    server.held.clear()
    home.set(providers=local_provider(server))
    views = {view.id: view for view in await home.models.usable_view()}
    assert views["local"].models == ()


async def test_view_of_usable_providers_omits_the_others(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    views = await home.models.usable_view()
    assert [view.id for view in views] == ["groq", "demo"]
    assert all(view.models for view in views)


async def test_the_small_model_of_a_provider(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    selection = await home.models.default_small("groq")
    assert f"{selection.provider}/{selection.model}" == GROQ_SMALL
    selection = await home.models.default_small("nobody")
    assert f"{selection.provider}/{selection.model}" == GROQ_LARGE


# Other wires


async def test_libraries_are_imported_with_the_first_request(home: ModelSelectionHome) -> None:
    home.environment |= {"ANTHROPIC_API_KEY": "k", "XAI_API_KEY": "k"}
    model = await home.models.large()
    assert isinstance(model, PydanticModel)
    assert model._kind == "anthropic"
    home.set(models={"large": {"provider": "xai"}})
    model = await home.models.large()
    assert isinstance(model, PydanticModel)
    assert model._kind == "openai-responses"
    script = "import sys, holdfast.providers.pydantic_ai; print(*sys.modules)"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True)
    assert not {"anthropic", "openai", "pydantic_ai", "httpx2"} & set(done.stdout.split())


async def test_ambient_credentials_are_read_from_the_environment(home: ModelSelectionHome) -> None:
    home.environment |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
    home.set(models={"large": {"provider": "bedrock"}})
    model = await home.models.large()
    assert isinstance(model, PydanticModel)
    assert model._access.extras == {"region": "eu-west-1", "access_key_id": "id", "secret_access_key": "secret"}
    home.set(
        models={"large": {"provider": "bedrock"}}, providers={"bedrock": {"provider_options": {"region": "us-east-2"}}}
    )
    model = await home.models.large()
    assert isinstance(model, PydanticModel)
    assert model._access.extras["region"] == "us-east-2"
    assert model._access.options == {}


async def test_bedrock_signs_in_again(home: ModelSelectionHome) -> None:
    home.environment["AWS_PROFILE"] = "work"
    home.set(models={"large": {"provider": "bedrock"}}, providers={"bedrock": {"aws_auth_refresh": "aws sso login"}})
    model = await home.models.large()
    fresh = await home.models.renewed(model)
    assert fresh is not None
    assert fresh is not model, "libraries cache credentials"
    assert await home.models.large() is fresh
    assert home.commands == ["aws sso login"]
    home.signs_in = False
    assert await home.models.renewed(fresh) is None


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
async def test_special_providers_are_selected(
    home: ModelSelectionHome, provider: str, environment: dict[str, str], address: str
) -> None:
    home.environment |= environment
    assert (await home.large()).startswith(f"{provider}/")
    model = await home.models.large()
    assert isinstance(model, PydanticModel | CompatibleModel)
    assert model._access.base_url == address


async def test_model_of_another_wire_uses_another_adapter(home: ModelSelectionHome) -> None:
    home.environment["OPENCODE_API_KEY"] = "k"
    home.set(models={"large": {"provider": "opencode", "model": "claude-sonnet-5-5"}})
    model = await home.models.large()
    assert isinstance(model, PydanticModel)
    assert model._kind == "anthropic"
    assert model._access.base_url.endswith("/anthropic")
    home.set(
        models={"large": {"provider": "opencode", "model": "claude-sonnet-5-5"}},
        providers={"opencode": {"base_url": "https://proxy.test"}},
    )
    model = await home.models.large()
    assert isinstance(model, PydanticModel)
    assert model._access.base_url == "https://proxy.test", "an address that was set is the only one"
