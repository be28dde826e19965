"""Files through the real server: read before write, versions, undo."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.isolated_home import IsolatedHome, isolated_home
from e2e.tool_client import ToolClient, tool_client
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import FileEvent
from holdfast.domain.files import UndoRequest
from server.helpers import server_directory


def view(path: str) -> tuple[str, dict[str, object]]:
    return ("view", {"file_path": path})


def write(path: str, content: str) -> tuple[str, dict[str, object]]:
    return ("write", {"file_path": path, "content": content})


def edit(path: str, old: str, new: str) -> tuple[str, dict[str, object]]:
    return ("edit", {"file_path": path, "old_string": old, "new_string": new})


async def test_read_before_write_compares_content_also_after_restart() -> None:
    async with server_directory() as directory:
        async with tool_client(directory) as one:
            file = one.project / "a.txt"
            file.write_text("one\n")
            session = await one.session()
            (unread,) = await one.call_tools_and_wait(edit("a.txt", "one", "two"), session=session)
            assert unread.is_error
            await one.call_tools_and_wait(view("a.txt"), session=session)
        was = file.stat()
        async with tool_client(directory) as again:
            file.write_text("eno\n")
            os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
            (changed,) = await again.call_tools_and_wait(write("a.txt", "two\n"), session=session)
            assert changed.is_error
            file.write_text("one\n")
            (same,) = await again.call_tools_and_wait(edit("a.txt", "one", "two"), session=session)
            assert not same.is_error
            assert file.read_text() == "two\n"
            (other,) = await again.call_tools_and_wait(edit("a.txt", "two", "three"))
            assert other.is_error


async def test_line_ends_mode_and_diff() -> None:
    async with tool_client() as one:
        file = one.project / "a.sh"
        file.write_bytes(b"one\r\ntwo\r\n")
        file.chmod(0o750)
        _, result = await one.call_tools_and_wait(view("a.sh"), edit("a.sh", "one\ntwo", "one\nzwei"))
        assert file.read_bytes() == b"one\r\nzwei\r\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o750
        metadata = json.loads(result.metadata)
        assert (metadata["additions"], metadata["removals"]) == (1, 1)
        assert {"old_content", "new_content"} <= metadata.keys()
        (new,) = await one.call_tools_and_wait(write("deep/er/new.txt", "x\n"))
        assert json.loads(new.metadata).keys() >= {"diff", "additions", "removals"}


@pytest.mark.parametrize("how", ["absolute", "dots", "link", "link of a directory"])
async def test_path_outside_workspace_needs_approval(how: str) -> None:
    """The target of a symlink is checked and displayed."""
    async with tool_client(yolo=False) as one:
        await one.client.config_set(one.workspace, "permissions.allow", ["write(**)", "view(**)"], scope=1)
        outside = one.server.directory.root / "outside"
        outside.mkdir()
        (outside / "a.txt").write_text("secret\n")
        (one.project / "link.txt").symlink_to(outside / "a.txt")
        (one.project / "place").symlink_to(outside)
        path = {
            "absolute": str(outside / "a.txt"),
            "dots": "../outside/a.txt",
            "link": "link.txt",
            "link of a directory": "place/a.txt",
        }[how]
        session = await one.session()
        run = await one.call_tools(session, view(path))
        (ask,) = await one.pending_permissions()
        assert str(outside / "a.txt") in (ask.path, ask.params["file_path"], ask.description)
        assert await one.grant(ask, "deny")
        await one.run_end(run)
        assert "secret" not in str(await one.results(session))


async def test_versions_are_stored_and_published_for_stock_clients() -> None:
    async with tool_client() as one:
        (one.project / "a.txt").write_text("one\n")
        session = await one.session()
        calls = (view("a.txt"), edit("a.txt", "one", "two"), edit("a.txt", "two", "three"), write("b.txt", "b"))
        run = await one.call_tools(session, *calls)
        items = await one.events_until_end(run)
        reported = [item.event.change.object for item in items if isinstance(item.event, FileEvent)]
        listed = await one.client.list_history(one.workspace, session)
        a = [(version.version, version.content) for version in listed if version.path.endswith("a.txt")]
        assert a == [(0, "one\n"), (1, "two\n"), (2, "three\n")]
        b = [(version.version, version.content) for version in listed if version.path.endswith("b.txt")]
        assert b == [(0, ""), (1, "b")]
        assert {version.id for version in reported} == {version.id for version in listed}
        assert all(Path(version.path).is_absolute() for version in listed)
        assert await one.client.list_read_files(one.workspace, session)


async def _make_changes(one: ToolClient) -> tuple[str, str]:
    """Perform two runs: the second changes a file and creates one."""
    session = await one.session()
    (one.project / "a.txt").write_text("one\n")
    await one.run_end(await one.call_tools(session, view("a.txt"), edit("a.txt", "one", "two")))
    second = await one.call_tools(session, edit("a.txt", "two", "three"), write("new.txt", "new\n"))
    await one.run_end(second)
    return session, second.run_id


async def test_undo_of_a_run_and_of_a_file_over_the_wire() -> None:
    async with tool_client() as one:
        _, run = await _make_changes(one)
        file, new = one.project / "a.txt", one.project / "new.txt"
        plan = await one.client.undo_changes(one.workspace, UndoRequest(dry_run=True))
        assert not plan.is_done
        assert {Path(item.path).name: item.outcome for item in plan.files} == {
            "a.txt": "restored",
            "new.txt": "removed",
        }
        assert (file.read_text(), new.exists()) == ("three\n", True)

        file.write_text("by hand\n")
        refused = await one.client.undo_changes(one.workspace, UndoRequest(run_id=run))  # type: ignore[arg-type]
        assert not refused.is_done
        assert (file.read_text(), new.exists()) == ("by hand\n", True)

        file.write_text("three\n")
        done = await one.client.undo_changes(one.workspace, UndoRequest(run_id=run))  # type: ignore[arg-type]
        assert done.is_done
        assert (file.read_text(), new.exists()) == ("two\n", False)
        assert (await one.client.undo_changes(one.workspace, UndoRequest(path="a.txt"))).is_done
        assert file.read_text() == "one\n"
        with pytest.raises(ServerProblem) as caught:
            await one.client.undo_changes(one.workspace, UndoRequest(path="never.txt"))
        assert caught.value.status == 400


@pytest.fixture
def home() -> Iterator[IsolatedHome]:
    with isolated_home() as made:
        yield made


def test_the_undo_command(home: IsolatedHome) -> None:
    """`holdfast undo` reverts a file or a run, prints a preview, and explains refusals."""
    file = home.work / "a.txt"
    home.stdout_of("run", "--yolo", 'tool=write {"file_path": "a.txt", "content": "one\\n"}')
    home.stdout_of("run", "--yolo", "--continue", 'tool=write {"file_path": "a.txt", "content": "two\\n"}')
    plan = home.stdout_of("undo", "--dry-run", "a.txt")
    assert file.read_text() == "two\n"
    assert "-two" in plan
    home.stdout_of("undo", "a.txt")
    assert file.read_text() == "one\n"
    home.stdout_of(
        "run",
        "--yolo",
        "--continue",
        "--run-id",
        "r3",
        'tool=view {"file_path": "a.txt"} tool=write {"file_path": "a.txt", "content": "x"}',
    )
    assert file.read_text() == "x"
    file.write_text("by hand\n")
    refused = home.call("undo", "--run", "r3")
    assert refused.returncode == 1
    assert file.read_text() == "by hand\n"
    assert "a.txt" in refused.stdout + refused.stderr
    home.stdout_of("undo", "--run", "r3", "--force")
    assert file.read_text() == "one\n"
    unknown = home.call("undo", "never.txt")
    assert unknown.returncode != 0
    assert "Traceback" not in unknown.stderr
