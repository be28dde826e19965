"""Which model is chosen where nobody has chosen one."""

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.settings import Selection
from holdfast.providers import model_discovery as places
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.providers.scripted_model import DemoModel
from providers.json_server import JsonServer
from runtime.settings_home import GROQ_LARGE, GROQ_SMALL, Home, local, refusal

# Without a selection


async def test_without_anything_the_tour_answers(place: Home) -> None:
    large, small = await place.models.large(), await place.models.small()
    assert isinstance(large, DemoModel)
    assert large.info.is_scripted
    assert small.info.is_scripted
    assert "no model" in large.info.name
    assert await place.models.renewed(large) is None


async def test_nobody_is_chosen_in_place_of_one_that_cannot_be_read(place: Home) -> None:
    """The file may have named a server of one's own: work is not shown to somebody else because of a typing error."""
    place.environment["GROQ_API_KEY"] = "k"
    place.doubt = "/c.toml:1: expected TOML."
    error = await refusal(place)
    assert str(error) == "/c.toml:1: expected TOML. No model is selected until this is corrected."
    assert error.trouble == "refused"
    place.set(models={"large": {"provider": "groq"}})
    assert await place.large() == GROQ_LARGE, "another file knows"
    place.set()
    place.doubt = ""
    assert await place.large() == GROQ_LARGE


async def test_what_is_missing_may_stand_in_a_file_that_cannot_be_read(place: Home) -> None:
    """That there is no such provider would send its reader away from the typing error."""
    place.set(models={"large": {"provider": "mine", "model": "m"}})
    assert str(await refusal(place)).startswith("There is no provider mine.")
    place.doubt = "/c.toml:7: expected TOML."
    for error in (await refusal(place), await refused_choice(place, "mine", "m")):
        assert str(error).startswith(
            "/c.toml:7: expected TOML. Its settings have no effect until this is corrected. There"
        )


async def refused_choice(place: Home, provider: str, model: str) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await place.models.check(Selection(model, provider))
    return caught.value


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
    assert place.discovery.cached(places.DiscoveryTarget("http://ollama.invalid:1/v1", "ollama")) is None, (
        "nobody asked it"
    )
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
        await place.discovery.query(places.DiscoveryTarget(f"{server.url}/v1"))
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


async def test_why_the_scripted_model_was_chosen(place: Home) -> None:
    """The first provider of the settings that lacks something is named; one that is switched off, or that nobody named,
    is not.
    """

    async def reason() -> str:
        return (await place.models.large()).info.fallback_reason

    assert (await reason()).startswith("No usable model. ")
    place.set(providers={"groq": {"disable": True}})
    assert (await reason()).startswith("No usable model. ")
    place.set(providers={"groq": {}})
    assert (await reason()).startswith("No usable model: Groq needs a key")
    place.set(providers={"mine": {}, "groq": {}})
    assert (await reason()).startswith("No usable model: mine has no address")


async def test_a_server_that_the_settings_name_is_not_replaced_by_the_scripted_model(
    place: Home, reserved_port: int
) -> None:
    place.set(providers={"mine": {"base_url": f"http://127.0.0.1:{reserved_port}/v1"}})
    error = await refusal(place)
    assert (error.trouble, "mine does not answer" in str(error)) == ("connection", True)
