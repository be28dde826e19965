"""A workspace that was just opened: what its settings say holds at once, and its parts know of each other."""

import asyncio
import json

import pytest

from holdfast.domain.events import ConfigChangedEvent, HelloEvent, McpEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.server.workspace_manager import GracePeriods
from server.approval_client import ApprovalClient, approval_client
from server.clock import Clock
from server.helpers import read_until

FOREVER = GracePeriods(create=1e9, detach=1e9, look=1e9)
"""Nobody leaves, and nobody looks at the files by itself."""


async def _opened_then(here: ApprovalClient, name: str) -> ApprovalClient:
    """The same client in another workspace, which is opened now."""
    made = await here.client.create_workspace(here.server.directory.project(name))
    return ApprovalClient(here.server, here.client, made.id, here.ran)


@pytest.mark.parametrize("seconds", [100, 3000])
async def test_the_time_that_asks_have_holds_in_a_workspace_opened_after_it_was_set(seconds: int) -> None:
    async with approval_client(graces=FOREVER) as first:
        clock, address = Clock(), first.server.address
        await first.client.config_set(first.workspace, "options.ask_timeout", seconds)
        here = await _opened_then(first, "other")
        await here.bash(await here.session(), "line")
        await here.pending_permissions()
        await clock.forward(seconds - 1, address)
        assert len(await here.client.pending_permissions(here.workspace)) == 1
        await clock.forward(2, address)
        await here.pending_permissions(0)
        assert here.ran == []


async def test_a_rule_that_is_saved_is_in_the_settings_of_its_workspace_and_clients_hear_of_it() -> None:
    async with approval_client(graces=FOREVER) as first:
        here = await _opened_then(first, "other")
        async with here.client.events(here.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            run = await here.bash(await here.session(), "make")
            (ask,) = await here.pending_permissions()
            assert await here.grant(ask, "allow_always")
            told = await read_until(events, lambda item: isinstance(item.event, ConfigChangedEvent))
            assert here.workspace in str(told[-1].event)
            await here.events_until_end(run)
        assert _saved(first) == []
        assert _saved(here) == list(ask.rules)


def _saved(here: ApprovalClient) -> list[str]:
    file = here.server.directory.data / "workspaces" / here.workspace / "config.json"
    return list(json.loads(file.read_text())["permissions"]["allow"]) if file.exists() else []


async def test_a_changed_file_of_settings_is_told_to_clients_and_holds_for_the_next_ask() -> None:
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


async def test_servers_of_tools_are_started_when_a_workspace_is_opened_and_clients_hear_what_becomes_of_them() -> None:
    async with approval_client(graces=FOREVER) as first:
        async with first.client.events(first.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            await first.client.config_set(first.workspace, "mcp.gone", {"type": "http", "url": "http://127.0.0.1:9/"})
            told = await read_until(
                events, lambda item: isinstance(item.event, McpEvent) and "error" in str(item.event)
            )
            assert "gone" in str(told[-1].event)
        other = await _opened_then(first, "other")
        await _has_failed(other, other.workspace)


async def _has_failed(here: ApprovalClient, workspace: WorkspaceId) -> None:
    """Until the server of tools has been tried there."""
    async with asyncio.timeout(20):
        while not (states := await here.client.mcp_states(workspace)) or not states["gone"].error:
            pass


@pytest.mark.parametrize("skips", [False, True])
async def test_what_the_client_chose_when_it_opened_a_workspace_is_told_and_holds(skips: bool) -> None:
    async with approval_client(graces=FOREVER) as first:
        project = first.server.directory.project("other")
        env = ("COLOUR=red",)
        made = await first.client.create_workspace(project, yolo=skips, debug=skips, env=env)
        told = await first.client.get_workspace(made.id)
        assert (told.path, told.yolo, told.debug, told.env) == (project, skips, skips, env)
        assert told.data_dir == str(first.server.directory.data / "workspaces" / made.id)
        here = ApprovalClient(first.server, first.client, made.id, first.ran)
        run = await here.bash(await here.session(), "line")
        if not skips:
            (ask,) = await here.pending_permissions()
            assert await here.grant(ask, "deny")
        await here.events_until_end(run)
        assert here.ran == ["line"] * skips
