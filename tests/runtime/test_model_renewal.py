"""Repeated model selection: results are cached, changes take effect, credentials are renewed."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from holdfast.domain.settings import Selection, Settings
from holdfast.providers.model_registry import ModelChoice, ModelRegistry
from holdfast.providers.openai_compatible import CompatibleModel
from holdfast.runtime import model_selection
from holdfast.runtime.model_selection import ModelSources, SelectedModels, Size
from holdfast.testing.gates import Gate, start
from runtime.model_selection_home import GROQ_LARGE, ModelSelectionHome, refusal

# Caching


async def test_selection_is_cached(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"api_key": "$(get key)"}})
    home.output_of["get key"] = "k"
    first = await home.models.large()
    assert await home.models.large() is first
    home.set(providers={"groq": {"api_key": "$(get key)"}})
    assert await home.models.large() is first, "another object that says the same changes nothing"
    await home.models.small()
    assert home.commands == ["get key"]


async def test_concurrent_selections_share_the_work(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"api_key": "$(get key)"}})
    home.output_of["get key"] = "k"
    first, second = await asyncio.gather(home.models.large(), home.models.large())
    assert first is second
    assert home.commands == ["get key"]


async def test_change_takes_effect_with_the_next_call_and_can_be_reverted(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    first = await home.models.large()
    home.set(models={"large": {"provider": "groq", "model": "llama-3.3-70b-versatile"}})
    assert (await home.models.large()) is not first
    home.set()
    assert await home.models.large() is first, "its open connections are reused"


async def test_the_model_that_was_unused_for_longest_is_dropped(
    home: ModelSelectionHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_selection, "_MAX_MODELS", 2)
    home.environment |= {"GROQ_API_KEY": "k", "DEEPSEEK_API_KEY": "k", "CEREBRAS_API_KEY": "k"}
    first = await home.models.named("groq/openai/gpt-oss-20b")
    await home.models.named(GROQ_LARGE)
    assert await home.models.named("groq/openai/gpt-oss-20b") is first
    await home.models.named("cerebras/gpt-oss-120b")
    assert await home.models.named("groq/openai/gpt-oss-20b") is first


async def test_an_empty_selection_is_stored_as_it_is(home: ModelSelectionHome) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    for selection in (Selection(), Selection(temperature=0.5), Selection(provider="groq")):
        assert await home.models.check(selection) == selection


async def test_a_key_that_is_stored_meanwhile_is_found(home: ModelSelectionHome) -> None:
    for _ in range(3):
        assert await home.large() == "demo/tour"
    home.keys["groq"] = "k"
    assert await home.large() == "demo/tour", "keys are not polled"
    home.stamp += 1
    assert await home.large() == GROQ_LARGE


async def test_failure_is_not_cached(home: ModelSelectionHome) -> None:
    home.set(models={"large": {"provider": "groq"}})
    assert "GROQ_API_KEY" in str(await refusal(home))
    home.keys["groq"] = "k"
    home.stamp += 1
    assert await home.large() == GROQ_LARGE


def find_server(home: ModelSelectionHome) -> None:
    home.discovery.version += 1


def store_key(home: ModelSelectionHome) -> None:
    home.stamp += 1


def change_settings(home: ModelSelectionHome) -> None:
    home.set(options={"max_steps": 7})


def change_nothing(home: ModelSelectionHome) -> None:
    return


@pytest.mark.parametrize("change", [find_server, store_key, change_settings, change_nothing])
async def test_a_change_during_a_selection_is_not_missed(
    home: ModelSelectionHome, monkeypatch: pytest.MonkeyPatch, change: Callable[[ModelSelectionHome], None]
) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    pick, sizes, gate = home.models._pick, list[str](), Gate()

    async def gated(registry: ModelRegistry, size: Size, settings: Settings) -> ModelChoice | None:
        sizes.append(size)
        await gate()
        return await pick(registry, size, settings)

    monkeypatch.setattr(home.models, "_pick", gated)
    selecting = start(home.models.large())
    await gate.reached.wait()
    change(home)
    gate.open()
    await selecting
    await home.models.large()
    assert len(sizes) == (1 if change is change_nothing else 2)


@pytest.mark.parametrize("work", ["selection", "renewal"])
async def test_closing_does_not_wait_for_pending_work(
    home: ModelSelectionHome, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    gate = Gate()
    model = await home.models.large()
    monkeypatch.setattr(home.models, "_load_sources", None)
    monkeypatch.setattr(home.models, "_registry", lambda *_: gate())
    home.stamp += 1
    pending = start(home.models.large() if work == "selection" else home.models.renewed(model))
    await gate.reached.wait()
    try:
        async with asyncio.timeout(10):
            await home.models.close()
        assert pending.done()
    finally:
        gate.open()
        await asyncio.gather(pending, return_exceptions=True)


# Renewal


async def test_a_template_is_expanded_again(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"api_key": "$(get key)"}})
    home.output_of["get key"] = "old"
    model = await home.models.large()
    assert await home.models.renewed(model) is None, "the same key would be refused again"
    home.output_of["get key"] = "new"
    fresh = await home.models.renewed(model)
    assert isinstance(fresh, CompatibleModel)
    assert fresh._access.api_key == "new"
    assert await home.models.large() is fresh
    assert await home.models.renewed(model) is fresh, "later callers get the same model"


async def test_stored_key_is_read_again(home: ModelSelectionHome) -> None:
    home.keys["groq"] = "old"
    model = await home.models.large()
    home.keys["groq"] = "new"
    assert await home.models.renewed(model) is not None
    del home.keys["groq"]
    assert await home.models.renewed(await home.models.large()) is None


async def test_token_is_renewed(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"oauth": {"access_token": "old"}}})
    model = await home.models.large()
    assert isinstance(model, CompatibleModel)
    assert model._access.api_key == "old"
    assert await home.models.renewed(model) is None
    home.tokens.append("new")
    fresh = await home.models.renewed(model)
    assert isinstance(fresh, CompatibleModel)
    assert fresh._access.api_key == "new"


async def test_token_is_renewed_once_for_all(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"oauth": {"access_token": "old"}}})
    model = await home.models.large()
    home.tokens += ["new", "wasted"]
    first, second = await asyncio.gather(home.models.renewed(model), home.models.renewed(model))
    assert first is second
    assert home.commands == ["token"]


async def test_newer_token_is_used(home: ModelSelectionHome) -> None:
    home.set(providers={"groq": {"oauth": {"access_token": "old"}}})
    model = await home.models.large()
    home.set(providers={"groq": {"oauth": {"access_token": "newer"}}})
    fresh = await home.models.renewed(model)
    assert isinstance(fresh, CompatibleModel)
    assert fresh._access.api_key == "newer"
    assert home.commands == []


async def test_a_refused_token_is_final_without_a_way_to_renew_it() -> None:
    settings = msgspec.convert({"providers": {"groq": {"oauth": {"access_token": "old"}}}}, Settings)
    models = SelectedModels(ModelSources(lambda: settings, lambda text, _: text, lambda: {}))
    assert await models.renewed(await models.large()) is None
    await models.close()
