"""Choosing again: nothing is done twice, what changes takes effect, credentials are renewed."""

import asyncio

from holdfast.providers.openai_compatible import CompatibleModel
from runtime.settings_home import GROQ_LARGE, Home, refusal

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
