"""Edited configuration files: attached clients are notified without any request."""

from pathlib import Path

from holdfast.domain.events import ConfigChangedEvent
from holdfast.server.workspace_manager import GracePeriods
from server.helpers import in_process_server, read_until, server_directory


def _edit(project: str, text: str) -> None:
    Path(project, "holdfast.toml").write_text(text)


async def test_edit_is_published_to_attached_clients() -> None:
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(check_interval=0.01)) as server,
    ):
        client, workspace = await server.open_workspace()
        cursor = (await client.snapshot(workspace)).cursor
        async with client.events(workspace, since=cursor) as events:
            await read_until(events, lambda item: item.number is None)
            _edit(directory.project("project"), '[permissions]\ndeny = ["bash"]\n')
            await read_until(events, lambda item: isinstance(item.event, ConfigChangedEvent))
        handle = server.manager.handle(workspace)
        assert handle.services.configuration.settings.permissions.deny == ("bash",)


async def test_no_polling_without_open_workspace() -> None:
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(check_interval=0.01)) as server,
    ):
        await server.client()
        assert "check" not in server.manager._timers
