"""Real MCP servers through the real server: their offers and results."""

import asyncio
import base64
import json
from pathlib import Path

import msgspec
import pytest

from e2e.tool_client import script, tool_client
from extensions.mcp.servers import (
    EVERYTHING,
    GIT,
    STUB_TIME,
    TIME,
    add,
    filesystem,
    needs_node,
    private_copy,
    results,
    running_processes,
    state,
    wait_for_state,
    wait_until_dead,
)
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import HelloEvent, McpEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.model_requests import ModelInfo
from holdfast.providers.scripted_model import ScriptedModel
from server.helpers import read_until

pytestmark = needs_node

SEEING = ModelInfo("scripted", "seeing", supports_images=True, takes_media_in_results=True)


async def test_git_and_time_and_files(tmp_path: Path) -> None:
    async with tool_client() as one:
        await (await asyncio.create_subprocess_exec("git", "init", "-q", str(one.project))).wait()
        (one.project / "new.txt").write_text("hello")
        found = await add(one, git=GIT, time={**TIME, "disabled_tools": ["convert_time"]}, files=filesystem(tmp_path))
        assert {name: info.state for name, info in found.items()} == dict.fromkeys(found, "connected")
        assert found["time"].tools == ("mcp_time_get_current_time",)
        assert found["git"].tool_count > 5
        large = "a long line of a large file\n" * 10_000
        (tmp_path / "large.txt").write_text(large)
        status, now, wrong, read, written = await results(
            one,
            ("mcp_git_git_status", {"repo_path": str(one.project)}),
            ("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"}),
            ("mcp_time_get_current_time", {"timezone": "Nowhere"}),
            ("mcp_files_read_text_file", {"path": str(one.project / "new.txt")}),
            ("mcp_files_write_file", {"path": str(one.project / "made.txt"), "content": "by a server"}),
        )
        assert "new.txt" in status.content
        assert json.loads(now.content)["timezone"] == "Asia/Tokyo"
        assert json.loads(now.metadata)["structured_content"]["timezone"] == "Asia/Tokyo"
        assert wrong.is_error
        assert "Nowhere" in wrong.content
        # The workspace is its root, whatever directory it was started with.
        assert read.content == "hello"
        assert not written.is_error
        assert (one.project / "made.txt").read_text() == "by a server"
        (one.project / "large.txt").write_text(large)
        (cut,) = await one.call_tools_and_wait(("mcp_files_read_text_file", {"path": str(one.project / "large.txt")}))
        assert "truncated" in cut.content
        assert len(cut.content) < 70_000


async def test_tools_prompts_and_resources() -> None:
    model = ScriptedModel(script, info=SEEING)
    async with tool_client(model=model) as one:
        info = (await add(one, all=EVERYTHING))["all"]
        assert (info.prompt_count, info.resource_count) == (4, 7)
        assert "mcp_all_simulate-research-query" not in info.tools, "it takes no plain call"
        image, structured, links, steps, roots, listed, document, nothing = await results(
            one,
            ("mcp_all_get-tiny-image", {}),
            ("mcp_all_get-structured-content", {"location": "Chicago"}),
            ("mcp_all_get-resource-links", {"count": 2}),
            ("mcp_all_trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
            ("mcp_all_get-roots-list", {}),
            ("list_mcp_resources", {"mcp_name": "all"}),
            ("read_mcp_resource", {"mcp_name": "all", "uri": "demo://resource/static/document/features.md"}),
            ("read_mcp_resource", {"mcp_name": "all", "uri": "demo://nothing"}),
        )
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.data).startswith(b"\x89PNG")
        assert json.loads(structured.metadata)["structured_content"].keys() == {"temperature", "conditions", "humidity"}
        assert links.content.count("[resource demo://") == 2
        assert "completed" in steps.content
        assert str(one.project) in roots.content
        assert "demo://resource/static/document/features.md (text/markdown)" in listed.content
        assert "# Everything Server" in document.content
        assert nothing.is_error


async def test_progress_is_published_during_call() -> None:
    async with tool_client() as one:
        await add(one, all=EVERYTHING)
        session = await one.session()
        run = await one.call_tools(session, ("mcp_all_trigger-long-running-operation", {"duration": 1, "steps": 5}))
        await one.wait_for_output(session, "1/5\n2/5\n")
        await one.run_end(run)


async def test_prompts_are_expanded_with_arguments() -> None:
    async with tool_client() as one:
        await add(one, all=EVERYTHING)
        prompts = {prompt.id: prompt for prompt in await one.client.mcp_prompts(one.workspace)}
        city, region = prompts["all:args-prompt"].arguments
        assert (city.id, city.required, region.required) == ("city", True, False)
        text = await one.client.mcp_get_prompt(one.workspace, "all", "args-prompt", {"city": "Oslo"})
        assert text.prompt == "What's weather in Oslo?"
        for server, prompt, arguments in (("none", "x", {}), ("all", "x", {}), ("all", "args-prompt", {"state": "x"})):
            with pytest.raises(ServerProblem) as refused:
                await one.client.mcp_get_prompt(one.workspace, server, prompt, arguments)
            assert refused.value.status == 400
        (document,) = await one.client.mcp_read_resource(
            one.workspace, "all", "demo://resource/static/document/features.md"
        )
        assert document.text.startswith("# Everything")
        assert document.mime_type == "text/markdown"


async def test_changed_lists_are_read_again_and_published() -> None:
    """Tools that appear later are available at the next step; an unchanged list is not published."""
    async with tool_client() as one:
        await add(one, all=EVERYTHING)
        uri = "demo://resource/session/note.txt.gz"
        async with one.client.events(one.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            before = (await state(one, "all")).resource_count
            arguments = {"name": "note.txt.gz", "data": "data:text/plain,hello", "outputType": "resourceLink"}
            (made,) = await one.call_tools_and_wait(("mcp_all_gzip-file-as-resource", arguments))
            assert uri in made.content
            await one.client.mcp_refresh_resources(one.workspace, "all")
            seen = await read_until(
                events,
                lambda item: (
                    isinstance(item.event, McpEvent) and item.event.change.object.type == "resources_list_changed"
                ),
            )
        notice = seen[-1].event
        assert isinstance(notice, McpEvent)
        assert notice.change.object.resource_count == before + 1
        assert msgspec.to_builtins(notice)["payload"]["payload"]["state"] == "connected"


async def test_settings_start_change_and_stop_servers(tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, time=private_copy(STUB_TIME, tmp_path))
        first = running_processes(tmp_path)
        assert len(first) == 1
        await one.client.config_set(one.workspace, "mcp.time.enabled_tools", ["convert_time"], scope=1)
        await wait_for_state(one, "time", "connected", but=lambda info: info.tool_count == 1)
        assert running_processes(tmp_path) != first
        await one.client.mcp_restart(one.workspace, "time")
        await wait_for_state(one, "time", "connected")
        await one.client.config_set(one.workspace, "options.disabled_tools", ["mcp_time_convert_time"], scope=1)
        (unwanted,) = await one.call_tools_and_wait(("mcp_time_convert_time", {}))
        assert "There is no tool called" in unwanted.content
        await one.client.config_set(one.workspace, "mcp.time.disabled", True, scope=1)
        await wait_for_state(one, "time", "disabled")
        (wait_until_gone,) = await one.call_tools_and_wait(("mcp_time_convert_time", {}))
        assert "There is no tool called" in wait_until_gone.content
        await wait_until_dead(tmp_path)
        await one.client.config_remove(one.workspace, "mcp.time", scope=1)
        assert await one.client.mcp_states(one.workspace) == {}
        assert await one.client.mcp_states(WorkspaceId("unknown")) == {}
