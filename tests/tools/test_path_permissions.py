"""Paths that tools may read and write, with and without an approval."""

import base64
import os
from pathlib import Path

import pytest

from holdfast.domain.settings import PermissionSettings
from holdfast.permissions.rule_decision import RuleSet
from holdfast.tools.registry import ToolNeeds
from tools.tool_runner import ToolRunner

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


OUTSIDE = ["../secret.txt", "b/../../secret.txt", "link.txt", "dir/secret.txt"]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_outside_of_the_workspace_an_approval_is_requested(runner: ToolRunner, path: str) -> None:
    """The request has the real path, with links and `..` resolved."""
    os.symlink("../secret.txt", runner.root / "link.txt")
    os.symlink("..", runner.root / "dir")
    (runner.root / "b").mkdir()
    real = str(runner.root.parent / "secret.txt")
    runner.approver.denies = lambda _: True
    assert "denied" in await runner.call_error("view", file_path=path)
    assert "denied" in await runner.call_error("grep", pattern="secret", path=path)
    assert runner.approver.actions() == [("view", "read", real), ("grep", "list", real)]
    assert runner.approver.requests[0].params == {"file_path": real, "offset": 0, "limit": 200}
    assert await runner.read_marks() == []
    runner.approver.denies = lambda _: False
    assert "1|secret" in (await runner.call_ok("view", file_path=path)).content
    runner.approver.denies = lambda _: True
    await runner.call_error("write", file_path=path, content="x")
    assert runner.approver.actions()[-1] == ("write", "write", real)
    assert (runner.root.parent / "secret.txt").read_bytes() == b"secret"


GONE = [
    ("ls", {}),
    ("ls", {"path": "b"}),
    ("grep", {"pattern": "one"}),
    ("glob", {"pattern": "*"}),
    ("view", {"file_path": "a.txt"}),
    ("edit", {"file_path": "a.txt", "old_string": "one", "new_string": "1"}),
    ("multiedit", {"file_path": "a.txt", "edits": [{"old_string": "one", "new_string": "1"}]}),
    ("write", {"file_path": "b/a.txt", "content": "x"}),
]


@pytest.mark.parametrize(("tool", "arguments"), GONE)
async def test_deleted_workspace_directory_is_reported(
    runner: ToolRunner, tool: str, arguments: dict[str, object]
) -> None:
    """It is not created again, and files elsewhere can still be read."""
    runner.root.rename(runner.root.with_name("moved"))
    error = await runner.call_error(tool, **arguments)
    assert error.startswith(f"The directory of this workspace, {runner.root}, is gone")
    assert "user" in error
    assert not runner.root.exists()
    assert "1|secret" in (await runner.call_ok("view", file_path=str(runner.root.parent / "secret.txt"))).content


async def test_reading_inside_the_workspace_needs_no_approval(runner: ToolRunner) -> None:
    for tool, arguments in (
        ("view", {"file_path": "a.txt"}),
        ("ls", {}),
        ("grep", {"pattern": "one"}),
        ("glob", {"pattern": "*"}),
    ):
        await runner.call_ok(tool, **arguments)
    assert runner.approver.requests == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("view", {"file_path": "a.txt"}),
        ("view", {"file_path": "./x/../a.txt"}),
        ("ls", {}),
        ("grep", {"pattern": "one"}),
        ("glob", {"pattern": "*"}),
    ],
)
async def test_deny_rules_apply_to_reads_inside_the_workspace(
    runner: ToolRunner, tool: str, arguments: dict[str, str]
) -> None:
    settings = PermissionSettings(ask=("view(a.txt)", "ls", "grep", "glob(**)"))
    runner.approver.rules = RuleSet(settings, str(runner.root), real=os.path.realpath)
    runner.approver.denies = lambda _: True
    assert "denied" in await runner.call_error(tool, **arguments)


async def test_ls_requests_an_approval_outside_the_workspace(runner: ToolRunner) -> None:
    (runner.root.parent / "project2").mkdir()
    await runner.call_ok("ls", path="../project2")
    assert runner.approver.actions() == [("ls", "list", str(runner.root.parent / "project2"))]
    assert runner.approver.requests[0].params == {
        "path": str(runner.root.parent / "project2"),
        "ignore": [],
        "depth": 0,
    }


async def test_every_change_requests_an_approval(runner: ToolRunner) -> None:
    runner.approver.denies = lambda _: True
    await runner.call("view", file_path="a.txt")
    for tool, arguments in (
        ("write", {"content": "x"}),
        ("edit", {"old_string": "one", "new_string": "x"}),
        ("multiedit", {"edits": [{"old_string": "one", "new_string": "x"}]}),
    ):
        assert "denied" in await runner.call_error(tool, file_path="a.txt", **arguments)
    real = str(runner.root / "a.txt")
    assert runner.approver.actions() == [(tool, "write", real) for tool in ("write", "edit", "multiedit")]
    assert runner.approver.requests[1].params == {
        "file_path": real,
        "old_content": "one\ntwo\nthree\n",
        "new_content": "x\ntwo\nthree\n",
    }
    assert runner.read("a.txt") == b"one\ntwo\nthree\n"
    assert await runner.versions() == []


async def test_configured_directories_are_readable_without_an_approval(project: Path) -> None:
    runner = await ToolRunner(project).open(ToolNeeds(readable=lambda: [str(project.parent / "skills")]))
    (project.parent / "skills").mkdir()
    (project.parent / "skills" / "s.md").write_text("skill")
    await runner.call_ok("view", file_path="../skills/s.md")
    assert runner.approver.requests == []


async def test_dangling_link_is_resolved_to_its_target(runner: ToolRunner) -> None:
    os.symlink("../new.txt", runner.root / "link.txt")
    runner.approver.denies = lambda permit: not permit.path.startswith(f"{runner.root}/")
    await runner.call_error("write", file_path="link.txt", content="x")
    assert "new.txt" not in os.listdir(runner.root.parent)


async def test_a_link_inside_is_followed_and_shown(runner: ToolRunner) -> None:
    os.symlink("a.txt", runner.root / "link.txt")
    await runner.call("view", file_path="link.txt")
    result = await runner.call_ok("write", file_path="link.txt", content="x")
    assert "link.txt (which is a.txt)" in result.content
    assert runner.read("a.txt") == b"x"
    assert os.readlink(runner.root / "link.txt") == "a.txt"


async def test_circular_links_are_an_error(runner: ToolRunner) -> None:
    os.symlink("two", runner.root / "one")
    os.symlink("one", runner.root / "two")
    for tool in ("view", "ls"):
        await runner.call_error(tool, **({"file_path": "one/x"} if tool == "view" else {"path": "one"}))


@pytest.mark.parametrize("tool", ["view", "write", "edit", "ls", "grep"])
async def test_target_that_is_not_utf8_is_refused(runner: ToolRunner, tool: str) -> None:
    """A link to a name that is not UTF-8: it could be neither stored nor sent, and used to fail the run."""
    name = "odd-\udcff"
    (runner.root / name).mkdir() if tool in ("ls", "grep") else (runner.root / name).write_text("x")
    os.symlink(name, runner.root / "link")
    arguments: dict[str, dict[str, object]] = {
        "view": {"file_path": "link"},
        "write": {"file_path": "link", "content": "y"},
        "edit": {"file_path": "link", "old_string": "x", "new_string": "y"},
        "ls": {"path": "link"},
        "grep": {"pattern": "x", "path": "link"},
    }
    assert "not valid UTF-8" in await runner.call_error(tool, **arguments[tool])
