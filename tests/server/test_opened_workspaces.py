"""A newly opened workspace: its configuration applies at once, and its components are connected."""

import asyncio
import json

import pytest

from holdfast.domain.events import ConfigChangedEvent, HelloEvent, McpEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.server.workspace_manager import GracePeriods
from server.approval_client import ApprovalClient, approval_client
from server.clock import Clock
from server.helpers import read_until

FOREVER = GracePeriods(create=1e9, detach=1e9, check_interval=1e9)
"""No client is timed out, and the files are not polled."""


async def _open_other(here: ApprovalClient, name: str) -> ApprovalClient:
    """Open another workspace with the same client."""
    made = await here.client.create_workspace(here.server.directory.project(name))
    return ApprovalClient(here.server, here.client, made.id, here.ran)


@pytest.mark.parametrize("seconds", [100, 3000])
async def test_approval_timeout_applies_to_workspace_opened_later(seconds: int) -> None:
    async with approval_client(graces=FOREVER) as first:
        clock, address = Clock(), first.server.address
        await first.client.config_set(first.workspace, "options.ask_timeout", seconds)
        here = await _open_other(first, "other")
        await here.bash(await here.session(), "line")
        await here.pending_permissions()
        await clock.forward(seconds - 1, address)
        assert len(await here.client.pending_permissions(here.workspace)) == 1
        await clock.forward(2, address)
        await here.pending_permissions(0)
        assert here.ran == []


async def test_saved_rule_is_in_workspace_settings_and_published() -> None:
    async with approval_client(graces=FOREVER) as first:
        here = await _open_other(first, "other")
        async with here.client.events(here.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            run = await here.bash(await here.session(), "make")
            (ask,) = await here.pending_permissions()
            assert await here.grant(ask, "allow_always")
            reported = await read_until(events, lambda item: isinstance(item.event, ConfigChangedEvent))
            assert here.workspace in str(reported[-1].event)
            await here.events_until_end(run)
        assert _saved_rules(first) == []
        assert _saved_rules(here) == list(ask.rules)


def _saved_rules(here: ApprovalClient) -> list[str]:
    file = here.server.directory.data / "workspaces" / here.workspace / "config.json"
    return list(json.loads(file.read_text())["permissions"]["allow"]) if file.exists() else []


async def test_changed_settings_file_is_published_and_applies_to_next_request() -> None:
    async with approval_client(graces=GracePeriods(create=1e9, detach=1e9)) as here:
        clock, address = Clock(), here.server.address
        async with here.client.events(here.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            (here.server.directory.data / "config.json").write_text('{"options": {"ask_timeout": 100}}')
            await clock.forward(3, address)
            await read_until(events, lambda item: isinstance(item.event, ConfigChangedEvent))
        await here.bash(await here.session(), "line")
        await here.pending_permissions()
        await clock.forward(99, address)
        assert len(await here.client.pending_permissions(here.workspace)) == 1
        await clock.forward(2, address)
        await here.pending_permissions(0)


async def test_mcp_servers_start_with_workspace_and_their_state_is_published() -> None:
    async with approval_client(graces=FOREVER) as first:
        async with first.client.events(first.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            await first.client.config_set(first.workspace, "mcp.gone", {"type": "http", "url": "http://127.0.0.1:9/"})
            reported = await read_until(
                events, lambda item: isinstance(item.event, McpEvent) and "error" in str(item.event)
            )
            assert "gone" in str(reported[-1].event)
        other = await _open_other(first, "other")
        await _has_failed(other, other.workspace)


async def _has_failed(here: ApprovalClient, workspace: WorkspaceId) -> None:
    """Wait until the connection to the MCP server was attempted there."""
    async with asyncio.timeout(20):
        while not (states := await here.client.mcp_states(workspace)) or not states["gone"].error:
            pass


@pytest.mark.parametrize("skips", [False, True])
async def test_flags_of_creating_client_apply_and_are_returned(skips: bool) -> None:
    async with approval_client(graces=FOREVER) as first:
        project = first.server.directory.project("other")
        env = ("COLOUR=red",)
        made = await first.client.create_workspace(project, yolo=skips, debug=skips, env=env)
        reported = await first.client.get_workspace(made.id)
        assert (reported.path, reported.yolo, reported.debug, reported.env) == (project, skips, skips, env)
        assert reported.data_dir == str(first.server.directory.data / "workspaces" / made.id)
        here = ApprovalClient(first.server, first.client, made.id, first.ran)
        run = await here.bash(await here.session(), "line")
        if not skips:
            (ask,) = await here.pending_permissions()
            assert await here.grant(ask, "deny")
        await here.events_until_end(run)
        assert here.ran == ["line"] * skips
