"""Model selection without a configured model."""

from typing import Any

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.settings import Selection
from holdfast.providers import model_discovery as places
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.scripted_model import DemoModel
from providers.json_server import JsonServer
from runtime.model_selection_home import GROQ_LARGE, GROQ_SMALL, ModelSelectionHome, local_provider, refusal

# Without a selection


async def test_scripted_model_is_the_last_resort(home: ModelSelectionHome) -> None:
    large, small = await home.models.large(), await home.models.small()
    assert isinstance(large, DemoModel)
    assert large.info.is_scripted
    assert small.info.is_scripted
    assert "no model" in large.info.name
    assert await home.models.renewed(large) is None


async def test_no_provider_is_selected_while_a_settings_file_is_broken(home: ModelSelectionHome) -> None:
    """The file may name a private server: a typing error must not send work to another provider."""
    home.environment["GROQ_API_KEY"] = "k"
    home.selection_problem = "/c.toml:1: expected TOML."
    error = await refusal(home)
    assert str(error) == "/c.toml:1: expected TOML. No model is selected until this is corrected."
    assert error.trouble == "refused"
    home.set(models={"large": {"provider": "groq"}})
    assert await home.large() == GROQ_LARGE, "another file knows"
    home.set()
    home.selection_problem = ""
    assert await home.large() == GROQ_LARGE


async def test_missing_provider_error_mentions_the_broken_file(home: ModelSelectionHome) -> None:
    """Reporting only a missing provider would hide the typing error."""
    home.set(models={"large": {"provider": "mine", "model": "m"}})
    assert str(await refusal(home)).startswith("There is no provider mine.")
    home.selection_problem = "/c.toml:7: expected TOML."
    for error in (await refusal(home), await refused_choice(home, "mine", "m")):
        assert str(error).startswith(
            "/c.toml:7: expected TOML. Its settings have no effect until this is corrected. There"
        )


async def refused_choice(home: ModelSelectionHome, provider: str, model: str) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await home.models.check(Selection(model, provider))
    return caught.value


async def test_key_in_the_environment_selects_its_provider(home: ModelSelectionHome, server: JsonServer) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    assert await home.large() == GROQ_LARGE
    assert await home.small() == GROQ_SMALL
    assert server.requests == [], "no unneeded server is queried"


async def test_catalogue_order_decides(home: ModelSelectionHome) -> None:
    home.environment |= {"GROQ_API_KEY": "k", "DEEPSEEK_API_KEY": "k"}
    assert (await home.large()).startswith("deepseek/")


async def test_configured_providers_take_precedence(home: ModelSelectionHome, server: JsonServer) -> None:
    home.environment["DEEPSEEK_API_KEY"] = "k"
    home.set(providers=local_provider(server, models=[{"id": "mine"}]))
    assert await home.large() == "local/mine"
    home.set(providers={"groq": {"api_key": "direct"}})
    assert await home.large() == GROQ_LARGE


async def test_stored_key_takes_precedence_over_the_environment(home: ModelSelectionHome) -> None:
    home.keys["groq"] = "stored"
    home.environment["GROQ_API_KEY"] = "found"
    model = await home.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.api_key == "stored"
    home.set(providers={"groq": {"api_key": "${MISSING:-written}"}})
    model = await home.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.api_key == "written"


async def test_ambient_credentials_are_not_selected(home: ModelSelectionHome) -> None:
    home.environment |= {"AWS_PROFILE": "work", "GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "l"}
    assert await home.large() == "demo/tour"


async def test_disabled_provider_is_skipped(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    home.set(providers={"groq": {"disable": True}})
    assert await home.large() == "demo/tour"
    home.set(providers={"groq": {"disable": True}}, models={"large": {"provider": "groq"}})
    assert "providers.groq.disable" in str(await refusal(home))


async def test_default_providers_can_be_disabled(home: ModelSelectionHome, server: JsonServer) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    server.answers["/api/tags"] = {"models": [{"model": "qwen3:8b"}]}
    home.set(options={"disable_default_providers": True})
    assert await home.large() == "demo/tour"
    assert server.requests == []


AUTOMATIC: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any], str]] = {
    # providers of the settings, environment, answers of the local server, selected model or error
    "nothing": ({}, {}, {}, "demo/tour"),
    "a local server without models": ({}, {}, {"/api/tags": {"models": []}}, "demo/tour"),
    "named, local, silent": ({"ollama": {"base_url": "http://127.0.0.1:9/v1"}}, {}, {}, "Ollama does not answer at"),
    "named, local, empty": ({"ollama": {}}, {}, {"/api/tags": {"models": []}}, "Ollama is chosen, but none of its"),
    "named, local, usable": ({"ollama": {}}, {}, {"/api/tags": {"models": [{"model": "m"}]}}, "ollama/m"),
    "named, own, silent": ({"mine": {"base_url": "http://127.0.0.1:9/v1"}}, {}, {}, "mine does not answer at"),
    "named, own, not listing": (
        {"mine": {"base_url": "http://127.0.0.1:9/v1", "discover_models": False}}, {}, {}, "mine is chosen, but none",
    ),
    "named, disabled": ({"mine": {"base_url": "http://127.0.0.1:9/v1", "disable": True}}, {}, {}, "demo/tour"),
    "named, without key": ({"groq": {}}, {}, {}, "demo/tour"),
    "named, silent, another is usable": (
        {"ollama": {"base_url": "http://127.0.0.1:9/v1"}}, {"GROQ_API_KEY": "k"}, {}, GROQ_LARGE,
    ),
    "named, silent, a local one is usable": (
        {"mine": {"base_url": "http://127.0.0.1:9/v1"}}, {}, {"/api/tags": {"models": [{"model": "m"}]}}, "ollama/m",
    ),
    "ambient": ({}, {"AWS_PROFILE": "work"}, {}, "demo/tour"),
    "ambient, named": ({"bedrock": {}}, {"AWS_PROFILE": "work"}, {}, "bedrock/"),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTOMATIC)
async def test_automatic_selection(home: ModelSelectionHome, server: JsonServer, name: str) -> None:
    """A provider that the settings name is never replaced by the scripted model: its failure is reported."""
    providers, environment, server.answers, expected = AUTOMATIC[name]
    home.environment |= environment
    home.set(providers=providers)
    selected = await home.large() if "/" in expected else str(await refusal(home))
    assert selected.startswith(expected)


# Local servers


async def test_responding_local_server_is_used(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers = {
        "/api/tags": {"models": [{"model": "plain:1b"}, {"model": "able:8b"}]},
        "/api/show": lambda body: {
            "capabilities": ["completion", "tools"] if body["model"] == "able:8b" else ["completion"],
            "model_info": {"x.context_length": 32_768},
        },
    }
    model = await home.models.large()
    assert (model.info.provider, model.info.model, model.info.context_window) == ("ollama", "able:8b", 32_768)
    assert await home.small() == "ollama/able:8b"
    assert not model.info.is_scripted


async def test_a_model_that_is_loaded_is_preferred(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers = {
        "/api/tags": {"models": [{"model": "cold:8b"}, {"model": "warm:8b"}]},
        "/api/ps": {"models": [{"model": "warm:8b", "context_length": 16_384}]},
    }
    model = await home.models.large()
    assert (model.info.model, model.info.context_window) == ("warm:8b", 16_384)


async def test_a_local_server_that_is_started_later_is_found(home: ModelSelectionHome, server: JsonServer) -> None:
    assert await home.large() == "demo/tour"
    server.answers["/api/tags"] = {"models": [{"model": "m"}]}
    assert await home.large() == "demo/tour"
    home.now = 30.0
    assert await home.large() == "ollama/m"


async def test_remote_ollama_is_used_only_if_selected(home: ModelSelectionHome) -> None:
    home.environment["OLLAMA_HOST"] = "ollama.invalid:1"
    assert await home.large() == "demo/tour"
    assert home.discovery.cached(places.DiscoveryTarget("http://ollama.invalid:1/v1", "ollama")) is None, (
        "it is not queried"
    )
    home.set(models={"large": {"provider": "ollama", "model": "m"}}, providers={"ollama": {"discover_models": False}})
    model = await home.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.base_url == "http://ollama.invalid:1/v1"


async def test_configured_server_is_queried_for_its_models(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "a", "context_length": 9_000}]}
    home.set(providers=local_provider(server, api_key="$SECRET", extra_headers={"x-team": "t", "x-none": "${NONE:-}"}))
    home.environment["SECRET"] = "s"
    model = await home.models.large()
    assert (model.info.model, model.info.context_window) == ("a", 9_000)
    assert server.headers["authorization"] == "Bearer s"
    assert server.headers["x-team"] == "t"
    assert "x-none" not in server.headers


async def test_configured_model_needs_no_query(home: ModelSelectionHome, server: JsonServer) -> None:
    server.held.clear()
    home.set(
        providers=local_provider(server, models=[{"id": "m"}, {"id": "n", "context_window": 5}]),
        models={"large": {"provider": "local", "model": "m"}},
    )
    assert (await home.models.large()).info.context_window == 0
    await server.waiting.wait()
    server.answers["/v1/models"] = {"data": [{"id": "m", "context_length": 7_000}]}
    version = home.discovery.version
    server.held.set()
    while home.discovery.version == version:
        await home.discovery.query(places.DiscoveryTarget(f"{server.url}/v1"))
    assert (await home.models.large()).info.context_window == 7_000, "a later result replaces it"


async def test_model_name_is_used_without_a_list(home: ModelSelectionHome, server: JsonServer) -> None:
    home.set(
        providers=local_provider(server, discover_models=False), models={"large": {"provider": "local", "model": "x"}}
    )
    assert await home.large() == "local/x"
    assert server.requests == []
    home.set(providers=local_provider(server), models={"large": {"provider": "local", "model": "y"}})
    assert await home.large() == "local/y", "the server publishes no list"


async def test_short_names_of_ollama_are_resolved(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers["/api/tags"] = {"models": [{"model": "qwen3:latest"}]}
    home.set(models={"large": {"provider": "ollama", "model": "qwen3"}})
    assert await home.large() == "ollama/qwen3:latest"


async def test_new_model_of_a_known_provider_is_found_by_a_query(home: ModelSelectionHome, server: JsonServer) -> None:
    server.answers["/v1/models"] = {"data": [{"id": "brand-new", "context_length": 1_000}]}
    home.set(
        providers={"groq": {"api_key": "k", "base_url": f"{server.url}/v1"}},
        models={"large": {"provider": "groq", "model": "brand-new"}},
    )
    assert await home.large() == "groq/brand-new"


async def test_reason_for_the_scripted_model(home: ModelSelectionHome) -> None:
    """The first configured provider that lacks something is named; disabled and unconfigured providers are not."""

    async def reason() -> str:
        return (await home.models.large()).info.fallback_reason

    assert (await reason()).startswith("No usable model. ")
    home.set(providers={"groq": {"disable": True}})
    assert (await reason()).startswith("No usable model. ")
    home.set(providers={"groq": {}})
    assert (await reason()).startswith("No usable model: Groq needs a key")
    home.set(providers={"mine": {}, "groq": {}})
    assert (await reason()).startswith("No usable model: mine has no address")


async def test_a_server_that_the_settings_name_is_not_replaced_by_the_scripted_model(
    home: ModelSelectionHome, reserved_port: int
) -> None:
    port = reserved_port
    home.set(providers={"mine": {"base_url": f"http://127.0.0.1:{port}/v1"}})
    error = await refusal(home)
    assert (error.trouble, "mine does not answer" in str(error)) == ("connection", True)
