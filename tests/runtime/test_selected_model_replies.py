"""From what is set to an answer: chosen models against a real server."""

from collections.abc import AsyncIterator

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.model_requests import ModelRequest, TextDelta
from holdfast.engine.ports import Model
from model_server.script import Reply, Say
from model_server.server import Asked, ModelServer
from runtime.settings_home import Home, home

REQUEST = ModelRequest(
    SessionId("s"), "", (Message((TextPart(Text("Hello")),), MessageId("m"), "user", SessionId("s"), "", "", 0, 0),)
)


def script(asked: Asked) -> Reply:
    """Who comes with the old key is not let in."""
    return Reply(status=401) if asked.headers.get("authorization") == "Bearer old" else Reply((Say(("Hi", "!")),))


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(script, models={"small:1b": 4_096, "big:70b": 131_072}) as server:
        yield server


@pytest.fixture
async def place(server: ModelServer) -> AsyncIterator[Home]:
    async with home(int(server.root.rpartition(":")[2])) as place:
        yield place


async def answer(model: Model) -> str:
    return "".join([part.text async for part in model.stream(REQUEST) if isinstance(part, TextDelta)])


async def test_a_local_server_answers_without_any_settings(place: Home) -> None:
    model = await place.models.large()
    assert (model.info.provider, model.info.model, model.info.context_window) == ("ollama", "small:1b", 4_096)
    assert await answer(model) == "Hi!"


async def test_a_refused_key_is_replaced_once(place: Home, server: ModelServer) -> None:
    place.set(
        providers={"work": {"base_url": server.base_url(), "api_key": "$(pass key)"}},
        models={"large": {"provider": "work", "model": "big:70b", "reasoning_effort": "high"}},
    )
    place.said["pass key"] = "old"
    model = await place.models.large()
    with pytest.raises(ProviderError) as caught:
        await answer(model)
    assert caught.value.trouble == "credentials"
    place.said["pass key"] = "new"
    renewed = await place.models.renewed(model)
    assert renewed is not None
    assert await answer(renewed) == "Hi!"
    assert server.asked[-1].json["model"] == "big:70b"
    assert server.asked[-1].json["reasoning_effort"] == "high"
