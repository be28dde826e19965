"""Configuration changes over the wire: each is published once; a refused change is neither published nor stored."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import ConfigChangedEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.protocol.bodies import ConfigModelRequest, SelectedModel
from server.helpers import Server, ServerDirectory, in_process_server, read_until, server_directory

Change = Callable[[Client, WorkspaceId], Awaitable[Any]]
KEY = {"scope": 0, "provider_id": "mine", "kind": "string", "api_key": "$MINE"}
TOKEN = {"scope": 1, "provider_id": "mine", "kind": "oauth", "api_key": {"access_token": "t"}}
CHOICE = SelectedModel("scripted", "demo")

CHANGES: dict[str, Change] = {
    "set": lambda client, workspace: client.config_set(workspace, "options.tui.transparent", value=True),
    "set to what it is": lambda client, workspace: client.config_set(workspace, "options.debug", value=False),
    "remove": lambda client, workspace: client.config_remove(workspace, "options.tui.diff_mode"),
    "model": lambda client, workspace: client.config_model(workspace, ConfigModelRequest("large", CHOICE, 1)),
    "compact": lambda client, workspace: client.config_compact(workspace, {"scope": 0, "enabled": True}),
    "key": lambda client, workspace: client.config_provider_key(workspace, KEY),
    "token": lambda client, workspace: client.config_provider_key(workspace, TOKEN),
    "start": lambda client, workspace: client.init_project(workspace),
}
REFUSED: dict[str, Change] = {
    "set": lambda client, workspace: client.config_set(workspace, "options.debug", "loud"),
    "set where": lambda client, workspace: client.config_set(workspace, "options.debug", value=True, scope=2),
    "store": lambda client, workspace: client.config_set(workspace, "storage.url", "postgresql://db/x"),
    "store as a table": lambda client, workspace: client.config_set(workspace, "storage", {"key_file": "/k"}, scope=1),
    "remove where": lambda client, workspace: client.config_remove(workspace, "options.debug", scope=2),
    "model where": lambda client, workspace: client.config_model(workspace, ConfigModelRequest("large", CHOICE, 7)),
    "model how": lambda client, workspace: client.config_model(
        workspace, ConfigModelRequest("large", msgspec.structs.replace(CHOICE, top_k=-1), 1)
    ),
    "compact": lambda client, workspace: client.config_compact(workspace, {"scope": 0}),
    "compact where": lambda client, workspace: client.config_compact(workspace, {"scope": "0", "enabled": True}),
    "key": lambda client, workspace: client.config_provider_key(workspace, {**KEY, "kind": "hm"}),
    "token": lambda client, workspace: client.config_provider_key(workspace, {**TOKEN, "api_key": "t"}),
    "refresh": lambda client, workspace: client.config_refresh_oauth(workspace, {"scope": 0, "provider_id": "nobody"}),
}


async def _count_config_events(server: Server, change: Change) -> int:
    """Return the number of configuration events that readers receive for a change."""
    client, workspace = await server.open_workspace()
    async with client.events(workspace, since=0) as events:
        await read_until(events, lambda item: item.number is None)
        await change(client, workspace)
        # The next read of the configuration would publish a change that was not published yet.
        await client.get_config(workspace)
        await client.create_session(workspace)
        seen = await read_until(events, lambda item: item.number is not None)
    return sum(isinstance(item.event, ConfigChangedEvent) for item in seen)


def _files(directory: ServerDirectory) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.data.rglob("*.json")}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_change_is_published_once(change: Change) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        assert await _count_config_events(server, change) == 1


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
async def test_refused_change_is_neither_published_nor_stored(change: Change) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:

        async def refused(client: Client, workspace: WorkspaceId) -> None:
            with pytest.raises(ServerProblem) as raised:
                await change(client, workspace)
            assert raised.value.status == 400

        before = _files(directory)
        assert await _count_config_events(server, refused) == 0
        assert _files(directory) == before


async def test_provider_name_may_contain_dots() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        await client.config_provider_key(workspace, {**KEY, "provider_id": "my.own"})
        settings = server.manager.handle(workspace).services.settings
        assert settings.providers["my.own"].api_key == "$MINE"


async def test_token_without_refresh_support_is_not_reported_as_missing() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        asked = {"scope": 0, "provider_id": "mine"}
        with pytest.raises(ServerProblem, match="Not signed in"):
            await client.config_refresh_oauth(workspace, asked)
        await client.config_provider_key(workspace, TOKEN)
        with pytest.raises(ServerProblem, match="sign in again"):
            await client.config_refresh_oauth(workspace, asked)


@pytest.mark.parametrize("text", ["= broken", None])
async def test_unreadable_credentials_are_not_a_server_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    _spoil(tmp_path / "holdfast" / "credentials.toml", text)
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        with pytest.raises(ServerProblem, match="move it away") as refused:
            await client.config_refresh_oauth(workspace, {"scope": 0, "provider_id": "mine"})
        assert refused.value.status == 400


def _spoil(file: Path, text: str | None) -> None:
    file.parent.mkdir()
    file.mkdir() if text is None else file.write_text(text)
