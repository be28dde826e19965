"""Files that a prompt can name, listed by the real server for web pages, which cannot read the disk."""

from pathlib import Path

import pytest

from holdfast.client.errors import ServerProblem
from server.helpers import in_process_server, server_directory


async def test_listed_files_are_those_a_search_visits() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        root = Path(directory.project())
        for name in ("a.py", "src/deep/b.py", "ignored.log", ".hidden"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("x")
        (root / ".gitignore").write_text("*.log\n")
        (root / ".git").mkdir()
        found = await client.list_files(workspace)
        assert set(found.files) >= {"a.py", "src/deep/b.py"}
        assert "ignored.log" not in found.files
        assert not found.is_cut


async def test_a_file_is_read_as_an_attachment() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        root = Path(directory.project())
        (root / "a b.py").write_text("print('ü')\n")
        (root / "x.png").write_bytes(b"\x89PNG\0")
        text = await client.read_file(workspace, "a b.py")
        assert (text.content.decode(), text.file_name, text.mime_type) == (
            "print('ü')\n",
            "a b.py",
            "text/plain; charset=utf-8",
        )
        assert (await client.read_file(workspace, "x.png")).mime_type == "image/png"


@pytest.mark.parametrize(
    "name", ["nowhere", "../outside", "/etc/passwd", "link", "folder", "binary", "", "a\0b", "pipe"]
)
async def test_path_outside_workspace_is_404(name: str) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        root = Path(directory.project())
        (directory.root / "outside").write_text("secret")
        (root / "link").symlink_to(directory.root / "outside")
        (root / "folder").mkdir()
        (root / "binary").write_bytes(b"a\0b")
        with pytest.raises(ServerProblem) as caught:
            await client.read_file(workspace, name)
        assert caught.value.status in (400, 404)


async def test_file_above_limit_returns_remedy() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        with (Path(directory.project()) / "large").open("wb") as file:
            file.truncate(6 * 1024 * 1024)
        with pytest.raises(ServerProblem) as caught:
            await client.read_file(workspace, "large")
        assert caught.value.status == 413
        assert "path" in str(caught.value)
