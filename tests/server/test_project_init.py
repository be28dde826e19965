"""Project initialisation: whether the user is prompted for it, and at most once per project."""

import os
from pathlib import Path

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import ConfigChangedEvent
from holdfast.domain.ids import WorkspaceId
from server.helpers import ServerDirectory, in_process_server, read_until, server_directory


async def _asks(client: Client, workspace: WorkspaceId) -> bool:
    return (await client.needs_init(workspace)).needs_init


async def test_user_is_prompted_once_across_servers() -> None:
    async with server_directory() as directory:
        _fill(directory, ("main.py",))
        async with in_process_server(directory) as server:
            client, workspace = await server.open_workspace()
            assert await _asks(client, workspace)
            assert await _asks(client, workspace), "to look is not to be asked"
            await client.init_project(workspace)
            assert not await _asks(client, workspace)
            assert os.listdir(directory.project()) == ["main.py"]
        async with in_process_server(directory) as server:
            client, workspace = await server.open_workspace()
            assert not await _asks(client, workspace)


async def test_init_state_is_per_workspace() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        for name in ("one", "two"):
            _fill(directory, ("main.py",), name)
        client, one = await server.open_workspace("one")
        two = (await client.create_workspace(directory.project("two"))).id
        await client.init_project(one)
        assert [await _asks(client, workspace) for workspace in (one, two)] == [False, True]


@pytest.mark.parametrize(
    "files",
    [
        (),
        (".git/HEAD", ".gitignore"),
        ("main.py", "AGENTS.md"),
        ("main.py", "CLAUDE.md"),
        ("main.py", ".cursor/rules/style.md"),
        ("main.py", "docs/house.md"),
        ("main.py", "GUIDE.md"),
    ],
)
async def test_empty_or_described_project_needs_no_init(files: tuple[str, ...]) -> None:
    """Including files named in the settings and the file that would be written."""
    async with server_directory() as directory, in_process_server(directory) as server:
        _fill(directory, files)
        client, workspace = await server.open_workspace()
        await client.config_set(workspace, "options.context_paths", ["docs/house.md"])
        await client.config_set(workspace, "options.initialize_as", "GUIDE.md")
        assert not await _asks(client, workspace)


async def test_context_file_in_parent_of_repository_counts() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _fill(directory, ("main.py", ".git/HEAD", "AGENTS.md", "below/more.py"))
        client, below = await server.open_workspace("project/below")
        assert not await _asks(client, below)
        os.unlink(f"{directory.project()}/AGENTS.md")
        assert await _asks(client, below)


async def test_init_prompt_names_configured_file() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        assert "write AGENTS.md " in (await client.init_prompt(workspace)).prompt
        await client.config_set(workspace, "options.initialize_as", "docs/GUIDE.md")
        prompt = (await client.init_prompt(workspace)).prompt
        assert "write docs/GUIDE.md " in prompt
        assert "AGENTS.md" not in prompt


async def test_unwritable_init_mark_is_reported_without_effect() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _fill(directory, ("main.py",))
        client, workspace = await server.open_workspace()
        data = server.manager.handle(workspace).data_dir
        _block_write(data)
        cursor = (await client.snapshot(workspace)).cursor
        async with client.events(workspace, since=cursor) as events:
            await read_until(events, lambda item: item.number is None)
            with pytest.raises(ServerProblem) as refused:
                await client.init_project(workspace)
            assert refused.value.status == 503
            data.unlink()
            await client.init_project(workspace)
            await client.create_session(workspace)
            reported = await read_until(events, lambda item: item.number is not None)
        assert sum(isinstance(item.event, ConfigChangedEvent) for item in reported) == 1
        assert not await _asks(client, workspace)


def _block_write(data: Path) -> None:
    data.parent.mkdir(exist_ok=True)
    if data.exists():
        data.rename(data.with_suffix(".away"))
    data.write_text("in the way")


def _fill(directory: ServerDirectory, files: tuple[str, ...], project: str = "project") -> None:
    for name in files:
        path = Path(directory.project(project), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
