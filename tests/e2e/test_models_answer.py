"""From a settings file to a response, through the real server and the real commands."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from e2e.cli_environment import CliEnvironment, cli_environment, model_requests, text
from holdfast.client.events import StreamEvent
from holdfast.domain.events import ConfigChangedEvent, RunCompleteEvent, SessionEvent
from holdfast.domain.runs import Attachment
from holdfast.domain.usage import Usage
from holdfast.protocol.bodies import ConfigModelRequest, SelectedModel
from model_server.script import CallTool, Reply, Say
from model_server.server import RecordedRequest
from server.helpers import read_until

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def is_change(item: StreamEvent) -> bool:
    return isinstance(item.event, ConfigChangedEvent)


def answer(asked: RecordedRequest) -> Reply:
    """Answer with the name of the model and the last message."""
    last: Any = asked.json["messages"]
    return Reply((Say((str(asked.json["model"]), ": ", text(last[-1])[-40:])),), Usage(10_000, 1_000))


@pytest.fixture
async def cli_env() -> AsyncIterator[CliEnvironment]:
    async with cli_environment(answer) as cli_env:
        yield cli_env


async def test_1_configured_model_answers(cli_env: CliEnvironment) -> None:
    """One file, one command: the configured server answers, and its request is complete."""
    (cli_env.project / "AGENTS.md").write_text("Always be brief.\n")
    assert await cli_env.stdout_of("run", "good morning") == "big: good morning"
    assert await cli_env.stdout_of("run", "--continue", "and again") == "big: and again"
    first, second = model_requests(cli_env.provider, "big")
    assert first.headers["authorization"] == "Bearer a-walking-key"
    messages: Any = first.json["messages"]
    assert messages[0]["role"] == "system"
    assert "Always be brief." in messages[0]["content"]
    assert str(cli_env.project) in messages[0]["content"]
    tools: Any = first.json["tools"]
    assert {"bash", "edit", "view", "write"} <= {tool["function"]["name"] for tool in tools}
    history: Any = second.json["messages"]
    assert [text(item) for item in history if item["role"] != "system"][-3:] == [
        "good morning", "big: good morning", "and again",
    ]  # fmt: skip
    assert history[0] == messages[0], "what is told first stays the same: providers keep it"


async def test_2_usage_and_cost_are_added_to_session(cli_env: CliEnvironment) -> None:
    """Usage reported by the provider is published, with the configured prices."""
    place = await cli_env.open_workspace()
    ended: list[bool] = []
    titled: list[bool] = []

    def is_counted(item: StreamEvent) -> bool:
        """The title is generated in parallel: its cost is stored before or after the end of the run."""
        ended.extend([True] * isinstance(item.event, RunCompleteEvent))
        titled.extend([True] * (isinstance(item.event, SessionEvent) and "what" in item.event.change.object.title))
        return bool(ended and titled)

    async with place.watching() as events:
        await place.send("what does it cost?")
        await read_until(events, is_counted)
    session = await place.client.get_session(place.id, place.session)
    assert (session.prompt_tokens, session.completion_tokens) == (10_000, 1_000)
    # The title costs as much here: the small model is the same.
    assert session.cost == pytest.approx(2 * (0.02 + 0.01))


async def test_3_model_change_during_session(cli_env: CliEnvironment) -> None:
    """By the API and by a command: from the next prompt on, with an event for all clients."""
    place = await cli_env.open_workspace()
    assert (await place.send_and_wait("one"))[0].text == "big: one"
    choice = ConfigModelRequest("large", SelectedModel("other", "local", temperature=0.5), scope=1)
    async with place.watching() as events:
        await place.client.config_model(place.id, choice)
        await read_until(events, is_change)
    end, _ = await place.send_and_wait("two")
    assert end.text == "other: two"
    assert (await place.client.agent_info(place.id)).model.id == "other"
    config = await place.client.get_config(place.id)
    assert config["recent_models"]["large"] == [{"model": "other", "provider": "local", "temperature": 0.5}]
    assert model_requests(cli_env.provider)[-1].json["temperature"] == 0.5
    await place.client.config_remove(place.id, "models.large", scope=1)

    async with place.watching() as events:
        await cli_env.stdout_of("config", "set", "models.large.model", "other")
        assert (await place.client.agent_info(place.id)).model.id == "other"
        await read_until(events, is_change)
    assert (await place.send_and_wait("three"))[0].text == "other: three"
    history: Any = model_requests(cli_env.provider)[-1].json["messages"]
    assert "big: one" in [text(item) for item in history]


async def test_4_a_run_may_name_its_models(cli_env: CliEnvironment) -> None:
    assert await cli_env.stdout_of("run", "--model", "local/other", "--small-model", "local/big", "hi") == "other: hi"
    config = json.loads(await cli_env.stdout_of("models", "--json"))
    assert (config["large"]["model"], config["small"]["model"]) == ("other", "big")
    assert await cli_env.stdout_of("run", "-m", "big", "hi") == "big: hi"
    done = await cli_env.call("run", "-m", "local/bgi", "hi")
    assert done.code == 4
    assert "There is no model bgi" in done.err
    assert "big" in done.err
    done = await cli_env.call("run", "-m", "othr", "hi")
    assert done.code == 4
    assert "local/other" in done.err
    assert await cli_env.stdout_of("run", "hi") == "big: hi", "what cannot be used is not kept"


async def test_5_request_options(cli_env: CliEnvironment) -> None:
    """Every configured option is in the request."""
    cli_env.write(
        provider='system_prompt_prefix = "You are a guest."\n'
        'extra_headers = { X-Team = "blue", X-None = "${NOBODY:-}" }\nextra_body = { user = "${WHO}" }',
        model='can_reason = true\nreasoning_levels = ["low", "high"]',
        selection='reasoning_effort = "high"\ntemperature = 0.25\ntop_p = 0.5\nmax_tokens = 321\n'
        "frequency_penalty = 0.1\npresence_penalty = 0.2\nprovider_options = { seed = 7 }",
    )
    cli_env.environment["WHO"] = "me"
    assert await cli_env.stdout_of("run", "hi") == "big: hi"
    (asked,) = model_requests(cli_env.provider, "big")
    body = asked.json
    assert body["reasoning_effort"] == "high"
    assert (body["temperature"], body["top_p"]) == (0.25, 0.5)
    assert (body["frequency_penalty"], body["presence_penalty"]) == (0.1, 0.2)
    assert 321 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert body["seed"] == 7
    assert body["user"] == "me"
    assert asked.headers["x-team"] == "blue"
    assert "x-none" not in asked.headers
    messages: Any = body["messages"]
    assert messages[0]["role"] == "system"
    assert str(messages[0]["content"]).startswith("You are a guest.")


@pytest.mark.parametrize("has_vision", [True, False])
async def test_6_images(cli_env: CliEnvironment, *, has_vision: bool) -> None:
    """A model with vision gets the image; another one gets its name."""
    cli_env.write(model=f"supports_attachments = {str(has_vision).lower()}")
    place = await cli_env.open_workspace()
    end, _ = await place.send_and_wait("look", [Attachment(PIXEL, "dot.png", "dot.png", "image/png")])
    assert not end.error
    messages: Any = model_requests(cli_env.provider, "big")[0].json["messages"]
    content = messages[-1]["content"]
    if has_vision:
        (image,) = (item for item in content if item["type"] == "image_url")
        assert image["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    else:
        assert "image_url" not in json.dumps(messages)
        assert "dot.png" in json.dumps(messages[-1])


async def test_7_tools_are_called_and_their_results_sent_back(cli_env: CliEnvironment) -> None:
    (cli_env.project / "a.txt").write_text("forty-two\n")

    def script(asked: RecordedRequest) -> Reply:
        messages: Any = asked.json["messages"]
        if messages[-1]["role"] == "tool":
            return Reply((Say(("It says ", text(messages[-1])[-20:])),))
        return Reply((CallTool("c1", "view", ('{"file_path"', ':"a.txt"}')),))

    async with cli_environment(script) as other:
        (other.project / "a.txt").write_text("forty-two\n")
        output = await other.stdout_of("run", "what is in a.txt?")
    assert output.startswith("It says")
    assert "forty-two" in output


async def test_8_the_crush_file_is_a_source_too(cli_env: CliEnvironment) -> None:
    cli_env.settings.unlink()
    place = cli_env.root / "c/crush/crush.json"
    place.parent.mkdir()
    provider = {
        "type": "openai-compat",
        "base_url": cli_env.provider.base_url(),
        "api_key": "k",
        "models": [{"id": "x"}],
    }
    place.write_text(
        json.dumps({"models": {"large": {"provider": "mine", "model": "x"}}, "providers": {"mine": provider}})
    )
    assert await cli_env.stdout_of("run", "hi") == "x: hi"
    shown = await cli_env.stdout_of("config", "show", "--origin")
    assert "crush.json" in shown
