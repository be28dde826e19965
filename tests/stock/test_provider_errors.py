"""The story of a failing provider, played by stock clients against `holdfast serve` with settings in a file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from model_server.script import Reply, Say
from model_server.server import ModelServer, RecordedRequest
from stock.recorded_story import Story
from stock.run import CommandResult, StockRun
from stock.servers import Process
from stock.tui import StockTui

SETTINGS = """
[models.large]
provider = "mock"
model = "m1"

[providers.mock]
type = "openai-compat"
base_url = "{}"
api_key = "test-key"
[[providers.mock.models]]
id = "m1"
context_window = 100000
"""
SOON = (("retry-after-ms", "0"),)


def script(asked: RecordedRequest) -> Reply:
    if "tools" not in asked.json:
        return Reply((Say(("A talk with a stranger",)),))
    messages: Any = asked.json["messages"]
    prompt = str(messages[-1]["content"])
    if prompt.endswith("refuse me"):
        return Reply(status=401, body=b'{"error":{"message":"the model refused"}}')
    if prompt.endswith("break down"):
        return Reply(status=500, headers=SOON, body=b'{"error":{"message":"the model broke down"}}')
    return Reply((Say(("Half a ",)),), cut_after=1)


@pytest.fixture
async def provider() -> AsyncIterator[ModelServer]:
    async with ModelServer(script) as provider:
        yield provider


@pytest.fixture
async def process(tmp_path: Path, provider: ModelServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    settings = tmp_path / ".config/holdfast/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS.format(provider.base_url()))
    process = Process(tmp_path)
    await process.start()
    yield process
    await process.end()


async def test_provider_errors(process: Process, project: Path, provider: ModelServer) -> None:
    refused, broken = StockRun(process.socket, project), StockRun(process.socket, project)
    assert await refused.run("refuse me") == CommandResult(1, "\n")
    assert len(real(provider)) == 1
    assert await broken.run("break down") == CommandResult(1, "\n")
    assert len(real(provider)) == 1 + 6, "asked again, as often as the policy says"

    tui = StockTui(process.socket, project)
    await tui.start()
    await tui.send("refuse me")
    await tui.see("agent_event created agent_finished")
    assert not tui.is_busy()
    assert tui.screen.ends() == ["error"]
    await tui.send("hang up")
    await tui.see("message created assistant")
    # The text before the disconnect is withdrawn, and the request is repeated; the user does not wait for that.
    async with asyncio.timeout(20):
        while len(real(provider)) < 10:
            await provider.request(len(provider.requests))
    await tui.refresh()
    assert tui.is_busy()
    await tui.leave()
    for name, client in (("A", refused), ("B", broken), ("C", tui)):
        Story("provider-errors").check(name, client.log, client.screen.labels)


def real(provider: ModelServer) -> list[RecordedRequest]:
    return [asked for asked in provider.requests if asked.wire and "tools" in asked.json]
