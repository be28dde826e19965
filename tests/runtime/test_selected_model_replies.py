"""From the settings to a response: selected models against a real server."""

from collections.abc import AsyncIterator

import pytest

from holdfast.domain.errors import ProviderError
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.model_requests import ModelRequest, TextDelta
from holdfast.engine.ports import Model
from model_server.script import Reply, Say
from model_server.server import ModelServer, RecordedRequest
from runtime.model_selection_home import ModelSelectionHome, open_home

REQUEST = ModelRequest(
    SessionId("s"), "", (Message((TextPart(Text("Hello")),), MessageId("m"), "user", SessionId("s"), "", "", 0, 0),)
)


def script(request: RecordedRequest) -> Reply:
    """Refuse requests with the old key."""
    return Reply(status=401) if request.headers.get("authorization") == "Bearer old" else Reply((Say(("Hi", "!")),))


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(script, models={"small:1b": 4_096, "big:70b": 131_072}) as server:
        yield server


@pytest.fixture
async def home(server: ModelServer) -> AsyncIterator[ModelSelectionHome]:
    async with open_home(int(server.root.rpartition(":")[2])) as home:
        yield home


async def answer(model: Model) -> str:
    return "".join([part.text async for part in model.stream(REQUEST) if isinstance(part, TextDelta)])


async def test_a_local_server_answers_without_any_settings(home: ModelSelectionHome) -> None:
    model = await home.models.large()
    assert (model.info.provider, model.info.model, model.info.context_window) == ("ollama", "small:1b", 4_096)
    assert await answer(model) == "Hi!"


async def test_a_refused_key_is_replaced_once(home: ModelSelectionHome, server: ModelServer) -> None:
    home.set(
        providers={"work": {"base_url": server.base_url(), "api_key": "$(pass key)"}},
        models={"large": {"provider": "work", "model": "big:70b", "reasoning_effort": "high"}},
    )
    home.output_of["pass key"] = "old"
    model = await home.models.large()
    with pytest.raises(ProviderError) as caught:
        await answer(model)
    assert caught.value.trouble == "credentials"
    home.output_of["pass key"] = "new"
    renewed = await home.models.renewed(model)
    assert renewed is not None
    assert await answer(renewed) == "Hi!"
    assert server.requests[-1].json["model"] == "big:70b"
    assert server.requests[-1].json["reasoning_effort"] == "high"
