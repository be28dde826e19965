"""Configured model selections, and errors for missing prerequisites."""

from typing import Any

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.settings import Selection
from holdfast.providers.openai_compatible import CompatibleModel
from providers.json_server import JsonServer
from runtime.model_selection_home import (
    DEEPSEEK,
    GROQ,
    GROQ_LARGE,
    GROQ_SMALL,
    ModelSelectionHome,
    local_provider,
    refusal,
)

# Selections


async def test_selected_model_is_used(home: ModelSelectionHome) -> None:
    home.environment |= {"GROQ_API_KEY": "k", "DEEPSEEK_API_KEY": "k"}
    home.set(models={"large": {"provider": "groq", "model": "openai/gpt-oss-20b"}, "small": {"provider": "deepseek"}})
    assert await home.large() == "groq/openai/gpt-oss-20b"
    assert await home.small() == f"deepseek/{DEEPSEEK.default_large}"


async def test_model_name_may_include_its_provider(home: ModelSelectionHome, server: JsonServer) -> None:
    home.environment |= {"GROQ_API_KEY": "k", "OPENROUTER_API_KEY": "k"}
    home.set(models={"large": {"model": "groq/openai/gpt-oss-20b"}})
    assert await home.large() == "groq/openai/gpt-oss-20b"
    home.set(models={"large": {"model": "anthropic/claude-sonnet-5.5"}})
    assert await home.large() == "openrouter/anthropic/claude-sonnet-5.5", "a slash may be part of a model's own name"
    home.set(models={"large": {"model": "anthropic/claude-sonnet-5-5"}})
    assert "ANTHROPIC_API_KEY" in str(await refusal(home))
    home.set(models={"large": {"model": "local/a/b"}}, providers=local_provider(server, discover_models=False))
    assert await home.large() == "local/a/b"


async def test_bare_model_name_finds_a_usable_provider(home: ModelSelectionHome) -> None:
    home.environment["CEREBRAS_API_KEY"] = "k"
    home.set(models={"large": {"model": "gpt-oss-120b"}})
    assert await home.large() == "cerebras/gpt-oss-120b"


async def test_choice_is_completed_before_it_is_stored(home: ModelSelectionHome) -> None:
    home.environment["CEREBRAS_API_KEY"] = "k"
    chosen = await home.models.check(Selection("gpt-oss-120b", temperature=0.5))
    assert (chosen.provider, chosen.model, chosen.temperature) == ("cerebras", "gpt-oss-120b", 0.5)
    assert await home.models.check(Selection("tour")) == Selection("tour", "demo")
    selection = Selection("gpt-oss-120b", "Cerebras")
    assert await home.models.check(selection) == selection, "the selection is stored unchanged"
    with pytest.raises(ProviderError, match="cerebras/gpt-oss-120b"):
        await home.models.check(Selection("gpt-oss-12b"))


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\u202eb"])
async def test_unprintable_names_are_not_quoted(home: ModelSelectionHome, name: str) -> None:
    """An untrusted project may select a model; its text must not control the terminal."""
    for selected in ({"model": name}, {"model": "m", "provider": name}):
        home.set(models={"large": selected})
        assert name not in str(await refusal(home))


async def test_scripted_model_can_be_selected(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    home.set(models={"large": {"provider": "demo", "model": "tour"}})
    assert await home.large() == "demo/tour"
    home.set(models={"large": {"model": "demo/tour"}, "small": {"provider": "groq"}})
    assert (await home.large(), await home.small()) == ("demo/tour", GROQ_LARGE)


async def test_small_model_defaults_to_the_provider_of_the_large_one(
    home: ModelSelectionHome, server: JsonServer
) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    home.set(models={"large": {"provider": "groq", "model": "llama-3.3-70b-versatile"}})
    assert await home.small() == GROQ_SMALL
    home.set(
        providers=local_provider(server, models=[{"id": "one"}, {"id": "two"}]),
        models={"large": {"provider": "local", "model": "two"}},
    )
    assert await home.small() == "local/two"


async def test_spellings_of_provider_names(home: ModelSelectionHome) -> None:
    home.environment["XAI_API_KEY"] = ""
    home.set(providers={"z-ai": {"api_key": "k"}}, models={"large": {"provider": "Z-AI"}})
    assert (await home.large()).startswith("zai/")


# Missing prerequisites


async def test_an_unknown_provider_names_close_ones(home: ModelSelectionHome) -> None:
    home.set(models={"large": {"provider": "antropic", "model": "x"}})
    error = await refusal(home)
    assert error.trouble == "refused"
    assert "anthropic" in str(error)
    assert "holdfast models" in str(error)


async def test_an_unknown_model_names_close_ones(home: ModelSelectionHome) -> None:
    home.environment["DEEPSEEK_API_KEY"] = "k"
    home.set(
        providers={"deepseek": {"discover_models": False}},
        models={"large": {"provider": "deepseek", "model": "deepsek-flash"}},
    )
    error = await refusal(home)
    assert error.trouble == "refused"
    assert "Did you mean deepseek-flash" in str(error)
    assert "holdfast models deepseek" in str(error)
    home.set(models={"large": {"model": "gpt-oss-12b"}})
    assert "gpt-oss-120b" in str(await refusal(home))


async def test_unlisted_model_of_a_listing_server_is_refused(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "qwen3-coder"}]}
    home.set(providers=local_provider(server), models={"large": {"provider": "local", "model": "qwen3-codr"}})
    assert "Did you mean qwen3-coder?" in str(await refusal(home))


async def test_a_missing_key_names_the_variable_and_the_command(home: ModelSelectionHome) -> None:
    home.set(models={"large": {"provider": "anthropic"}})
    error = await refusal(home)
    assert error.trouble == "credentials"
    assert "ANTHROPIC_API_KEY" in str(error)
    assert "holdfast login anthropic" in str(error)
    home.set(models={"large": {"provider": "anthropic"}}, providers={"anthropic": {"api_key": "$WORK_KEY"}})
    assert "WORK_KEY" in str(await refusal(home))
    home.set(models={"large": {"model": "anthropic/claude-sonnet-5-5"}})
    assert "ANTHROPIC_API_KEY" in str(await refusal(home))


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
async def test_other_missing_prerequisites(
    home: ModelSelectionHome, provider: str, settings: dict[str, Any], hint: str
) -> None:
    home.set(providers={provider: settings}, models={"large": {"provider": provider, "model": "m"}})
    error = await refusal(home)
    assert hint in str(error)
    assert error.trouble == ("credentials" if hint in ("AWS_PROFILE", "holdfast login mine") else "refused")
    assert error.title == "Provider Not Ready"


async def test_unreachable_selected_server_is_named(home: ModelSelectionHome, reserved_port: int) -> None:
    home.environment["OLLAMA_HOST"] = f"127.0.0.1:{reserved_port}"
    home.set(models={"large": {"provider": "ollama"}})
    error = await refusal(home)
    assert error.trouble == "connection"
    assert "Ollama does not answer at http://127.0.0.1:" in str(error)
    assert "the connection was refused" in str(error)


async def test_selected_server_without_models_is_named(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": []}
    home.set(providers=local_provider(server), models={"large": {"provider": "local"}})
    error = await refusal(home)
    assert error.trouble == "refused"
    assert "local/MODEL" in str(error)


async def test_header_may_replace_a_key(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"extra_headers": {"Authorization": "Bearer $TOKEN"}}})
    assert await home.large() == "demo/tour"
    home.environment["TOKEN"] = "t"
    home.stamp += 1
    model = await home.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.headers == {"Authorization": "Bearer t"}


async def test_a_second_account_has_the_facts_of_the_first(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "private"
    home.set(providers={"work": {"id": "groq", "api_key": "k"}}, models={"large": {"provider": "work"}})
    model = await home.models.large()
    assert isinstance(model, CompatibleModel)
    assert (model.info.provider, model.info.model) == ("work", GROQ.default_large)
    assert model.info.context_window > 0
    assert model._access.api_key == "k"
    home.set(providers={"work": {"id": "groq", "api_key": "k"}}, models={"large": {"provider": "groq"}})
    assert await home.large() == GROQ_LARGE


async def test_images_in_results_if_wire_and_model_support_them(home: ModelSelectionHome) -> None:
    home.environment |= {"ANTHROPIC_API_KEY": "k", "GROQ_API_KEY": "k"}
    assert (await home.models.large()).info.takes_media_in_results
    id = (await home.models.large()).info.model
    home.set(providers={"anthropic": {"models": [{"id": id, "supports_attachments": False}]}})
    assert not (await home.models.large()).info.takes_media_in_results
    home.set(models={"large": {"provider": "groq", "model": "qwen/qwen3.8-27b"}})
    info = (await home.models.large()).info
    assert (info.supports_images, info.takes_media_in_results) == (True, False)


async def test_a_command_that_fails_is_reported(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"api_key": "$(get key)"}}, models={"large": {"provider": "groq"}})
    error = await refusal(home)
    assert "Groq" in str(error)
    assert "status 1" in str(error)
    home.set(providers={"groq": {"api_key": "$(get key)"}, **local_named()})
    assert await home.large() == "mine/m", "an unusable provider is skipped"


def local_named() -> dict[str, Any]:
    return {"mine": {"base_url": "http://127.0.0.1:9/v1", "models": [{"id": "m", "context_window": 5}]}}
