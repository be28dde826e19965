"""The configuration that clients receive: effective values, not defaults."""

from pathlib import Path

import msgspec
import pytest

from holdfast.domain.model_requests import ModelInfo
from holdfast.protocol.bodies import ConfigModelRequest, SelectedModel
from holdfast.workspace.project_context import CONTEXT_NAMES
from server.helpers import EchoModel, exchange, in_process_server, raw_request, server_directory


class _ReasoningModel(EchoModel):
    """Model whose reasoning has levels."""

    @property
    def info(self) -> ModelInfo:
        levels = ("low", "high")
        return ModelInfo(
            "demo",
            "thinker",
            max_output_tokens=4_096,
            can_reason=True,
            reasoning_levels=levels,
            default_reasoning_effort="low",
        )


async def test_options_have_effective_values() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        options = (await client.get_config(workspace))["options"]
        assert options["context_paths"] == list(CONTEXT_NAMES)
        assert options["initialize_as"] == "AGENTS.md"
        assert options["attribution"] == {"trailer_style": "assisted-by", "generated_with": True}
        assert (options["notifications"], options["auto_lsp"], options["progress"]) == ("auto", True, True)
        assert options["tui"] == {}
        for key, value in {
            "context_paths": ["docs/house.md", "AGENTS.md"],
            "global_context_paths": ["/etc/house.md"],
            "initialize_as": "GUIDE.md",
            "attribution.trailer_style": "none",
            "notifications": "bell",
            "disable_metrics": False,
        }.items():
            await client.config_set(workspace, f"options.{key}", value)
        options = (await client.get_config(workspace))["options"]
        assert options["context_paths"] == [*CONTEXT_NAMES, "docs/house.md"], "each once"
        assert options["global_context_paths"] == ["/etc/house.md"]
        assert options["initialize_as"] == "GUIDE.md"
        assert options["attribution"] == {"trailer_style": "none", "generated_with": True}
        assert (options["notifications"], options["disable_metrics"]) == ("bell", False)


async def test_data_directory_ignores_files_of_other_tools() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        await client.config_set(workspace, "options.data_directory", ".crush")
        config = await client.get_config(workspace)
        assert config["options"]["data_directory"] == str(directory.data / "workspaces" / workspace)


async def test_model_includes_request_options_and_reasoning() -> None:
    """In both places where clients read it: the agent information and the configuration."""
    async with server_directory() as directory, in_process_server(directory, _ReasoningModel()) as server:
        client, workspace = await server.open_workspace()
        assert (await client.agent_info(workspace)).model_cfg == SelectedModel("thinker", "demo", 4_096)
        wanted = SelectedModel("thinker", "demo", 77, reasoning_effort="high", think=True, top_k=3, top_p=0.5)
        await client.config_model(workspace, ConfigModelRequest("large", wanted, 1))
        info = await client.agent_info(workspace)
        assert info.model_cfg == wanted
        assert (info.model.reasoning_levels, info.model.default_reasoning_effort) == (("low", "high"), "low")
        models = (await client.get_config(workspace))["models"]
        assert msgspec.convert(models["large"], SelectedModel) == wanted
        assert models["small"] == {"model": "scripted", "provider": "demo", "max_tokens": 4_096}
        described = (await client.get_config(workspace))["providers"]["demo"]["models"][0]
        assert described["reasoning_levels"] == ["low", "high"]


async def test_mcp_servers_include_their_type() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        await client.config_set(workspace, "mcp.files", {"command": "nobody", "disabled": True})
        mcp = (await client.get_config(workspace))["mcp"]
        assert mcp == {"files": {"type": "stdio", "command": "nobody", "disabled": True}}


OWN = """
[options]
max_steps = 7

[providers.mine]
base_url = "http://127.0.0.1:9/v1"
api_key = "sk-canary-1234567"
"""


@pytest.fixture
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast" / "config.toml").write_text(OWN)


@pytest.mark.usefixtures("own_settings")
async def test_server_configuration_excludes_projects() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        await client.config_set(workspace, "options.tui.transparent", value=True, scope=0)
        await client.config_set(workspace, "options.debug", value=True, scope=1)
        answer = await exchange(server.address, raw_request("/v1/config"))
        assert b"canary" not in answer.body
        config = answer.json
        assert config["options"]["max_steps"] == 7
        assert config["options"]["tui"] == {"transparent": True}
        assert config["options"]["debug"] is False, "that is one workspace's"
        assert config["options"]["data_directory"] == str(directory.data)
        assert config["providers"] == {"mine": {"base_url": "http://127.0.0.1:9/v1", "api_key": "set"}}
