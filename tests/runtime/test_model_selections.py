"""What is selected, and what is missing for it."""

from typing import Any

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.settings import Selection
from holdfast.providers.openai_compatible import CompatibleModel
from providers.json_server import JsonServer
from runtime.settings_home import DEEPSEEK, GROQ, GROQ_LARGE, GROQ_SMALL, Home, local, refusal

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


async def test_a_choice_is_completed_before_it_is_kept(place: Home) -> None:
    place.environment["CEREBRAS_API_KEY"] = "k"
    chosen = await place.models.check(Selection("gpt-oss-120b", temperature=0.5))
    assert (chosen.provider, chosen.model, chosen.temperature) == ("cerebras", "gpt-oss-120b", 0.5)
    assert await place.models.check(Selection("tour")) == Selection("tour", "demo")
    asked = Selection("gpt-oss-120b", "Cerebras")
    assert await place.models.check(asked) == asked, "what was said is kept as it was said"
    with pytest.raises(ProviderError, match="cerebras/gpt-oss-120b"):
        await place.models.check(Selection("gpt-oss-12b"))


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\u202eb"])
async def test_names_that_cannot_be_shown_are_not_repeated(place: Home, name: str) -> None:
    """A project may choose a model before anybody trusts it; its words do not move a cursor."""
    for selected in ({"model": name}, {"model": "m", "provider": name}):
        place.set(models={"large": selected})
        assert name not in str(await refusal(place))


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


async def test_a_chosen_server_that_is_not_there_is_named(place: Home, reserved_port: int) -> None:
    place.environment["OLLAMA_HOST"] = f"127.0.0.1:{reserved_port}"
    place.set(models={"large": {"provider": "ollama"}})
    error = await refusal(place)
    assert error.trouble == "connection"
    assert "Ollama does not answer at http://127.0.0.1:" in str(error)
    assert "the connection was refused" in str(error)


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
