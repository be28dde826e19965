"""Model selection without configuration, and other wire protocols, through the real server."""

import asyncio
import json
import re
from typing import Any

import pytest

from e2e.cli_environment import CliEnvironment, cli_environment, model_requests
from holdfast.testing.gates import Gate
from model_server.script import Reply, Say, Think
from model_server.server import ModelServer, RecordedRequest, Wire

ALONE = "[providers.lmstudio]\ndisable = true\n"
"""The user who runs the tests may have one."""


async def test_1_demo_model_answers_without_key() -> None:
    """Every feature can be tried, and the output is clearly not that of a model."""
    async with cli_environment() as cli_env:
        cli_env.settings.write_text(ALONE)
        refused = await cli_env.call("run", "hello")
        assert (refused.code, refused.out) == (4, "")
        assert refused.err.startswith("holdfast: No usable model. ")
        listed = await cli_env.call("models")
        assert "no real model" in listed.out + listed.err
        assert "holdfast login" in listed.err
        place = await cli_env.open_workspace()
        output = (await place.send_and_wait("hello"))[0].text
        assert "scripted model" in output
        assert "holdfast login" in output
        info = await place.client.agent_info(place.id)
        assert (info.model_cfg.provider, info.model_cfg.model, info.is_ready) == ("demo", "tour", True)
        assert "no model" in info.model.name
        config = await place.client.get_config(place.id)
        assert config["models"]["large"]["provider"] == "demo"
        assert config["providers"]["demo"]["type"] == "scripted"
        assert cli_env.provider.requests == []


async def test_2_local_server_is_discovered() -> None:
    """At the address in OLLAMA_HOST, with its context size; a configured provider has precedence."""
    async with cli_environment(models={"qwen3:8b": 40_960}) as cli_env:
        cli_env.settings.write_text(ALONE)
        cli_env.environment["OLLAMA_HOST"] = cli_env.provider.root.removeprefix("http://")
        place = await cli_env.open_workspace()
        assert (await place.send_and_wait("hi"))[0].text == "Hello."
        info = await place.client.agent_info(place.id)
        assert (info.model_cfg.provider, info.model.id, info.model.context_window) == ("ollama", "qwen3:8b", 40_960)
        reported = json.loads(await cli_env.stdout_of("models", "--json"))
        assert reported["large"] == {"provider": "ollama", "model": "qwen3:8b"}
        cli_env.write()
        await place.send_and_wait("hi")
        assert model_requests(cli_env.provider)[-1].json["model"] == "big"


async def test_3_custom_server_is_queried_for_models() -> None:
    async with cli_environment(models={"found": 8_192}) as cli_env:
        cli_env.settings.write_text(
            f'{ALONE}[providers.box]\nbase_url = "{cli_env.provider.base_url()}"\n[models.large]\nprovider = "box"\n'
        )
        assert await cli_env.stdout_of("run", "hi") == "Hello."
        assert model_requests(cli_env.provider)[-1].json["model"] == "found"


WIRES: list[tuple[Wire, str]] = [
    ("anthropic", "anthropic"),
    ("gemini", "gemini"),
    ("responses", "openai-responses"),
    ("chat", "openai-chat"),
]


def other_wire(cli_env: CliEnvironment, wire: Wire, kind: str) -> None:
    written = cli_env.settings.read_text().replace('"openai-compat"', f'"{kind}"')
    written = written.replace(cli_env.provider.base_url(), cli_env.provider.base_url(wire))
    cli_env.settings.write_text(written)


@pytest.mark.parametrize(("wire", "kind"), WIRES)
async def test_4_other_wires(wire: Wire, kind: str) -> None:
    """The same settings with another type: the response, its reasoning, and a cancel that the provider sees."""
    gate = Gate()

    def script(asked: RecordedRequest) -> Reply:
        if b"tools" not in asked.body:
            return Reply((Say(("A title",)),))
        if b"stand still" in asked.body:
            return Reply((Say(("One ",)), gate, Say(("two",))))
        return Reply((Think(("Hm.",), "c2lnbmVk"), Say(("Hel", "lo."))))

    async with cli_environment(script) as cli_env:
        other_wire(cli_env, wire, kind)
        place = await cli_env.open_workspace()
        end, _ = await place.send_and_wait("hi")
        assert (end.text, end.error) == ("Hello.", "")
        (first,) = (asked for asked in cli_env.provider.requests if asked.wire == wire and b"tools" in asked.body)
        key = first.headers.get("authorization", "") + first.headers.get("x-api-key", "")
        assert "a-walking-key" in key + first.headers.get("x-goog-api-key", "")
        assert str(cli_env.project) in first.body.decode(), "the system prompt is there"
        if wire == "anthropic":
            assert len(re.findall(rb'"cache_control"', first.body)) >= 2
        run = await place.send("stand still")
        async with asyncio.timeout(20):
            number = 0
            while (
                b"stand still" not in (asked := await cli_env.provider.request(number)).body
                or b"tools" not in asked.body
            ):
                number += 1
            await place.client.cancel_run(place.id, run)
            await asked.hung_up.wait()


async def test_5_prompt_command_prints_system_prompt() -> None:
    """`holdfast prompt` prints the system prompt literally."""
    async with cli_environment() as cli_env:
        (cli_env.project / "AGENTS.md").write_text("Measure twice.\n")
        shown = await cli_env.stdout_of("prompt")
        assert "Measure twice." in shown
        await cli_env.stdout_of("run", "hi")
        messages: Any = model_requests(cli_env.provider)[0].json["messages"]
        assert messages[0]["content"].strip() == shown.strip()


async def test_6_model_selection_is_per_workspace() -> None:
    """The choice for one workspace does not affect the other."""
    async with cli_environment() as cli_env:
        other = cli_env.root / "w2"
        other.mkdir()
        assert await cli_env.stdout_of("run", "-m", "local/other", "hi") == "Hello."
        assert await cli_env.stdout_of("run", "--cwd", str(other), "hi") == "Hello."
        assert [asked.json["model"] for asked in model_requests(cli_env.provider)] == ["other", "big"]


async def test_7_no_request_before_prompt() -> None:
    """Opening a workspace with a configured and described provider sends no request."""
    async with cli_environment() as cli_env, ModelServer([Reply((Say(("No.",)),))]) as other:
        cli_env.environment["GROQ_API_KEY"] = "k"
        place = await cli_env.open_workspace()
        await place.client.get_config(place.id)
        assert [asked for asked in cli_env.provider.requests if asked.wire is not None] == []
        assert other.requests == []
