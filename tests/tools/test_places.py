"""Where tools may read and write, and who is asked."""

import base64
import os
from pathlib import Path

import pytest

from holdfast.domain.settings import PermissionSettings
from holdfast.permissions.rule_decision import RuleSet
from holdfast.tools.registry import ToolNeeds
from tools.desk import Desk

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


OUTSIDE = ["../secret.txt", "b/../../secret.txt", "link.txt", "dir/secret.txt"]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_outside_of_the_workspace_an_approval_is_requested(desk: Desk, path: str) -> None:
    """With the real path: a link or a detour is shown for what it is."""
    os.symlink("../secret.txt", desk.root / "link.txt")
    os.symlink("..", desk.root / "dir")
    (desk.root / "b").mkdir()
    real = str(desk.root.parent / "secret.txt")
    desk.porter.refuses = lambda _: True
    assert "denied" in await desk.fails("view", file_path=path)
    assert "denied" in await desk.fails("grep", pattern="secret", path=path)
    assert desk.porter.actions() == [("view", "read", real), ("grep", "list", real)]
    assert desk.porter.asked[0].params == {"file_path": real, "offset": 0, "limit": 200}
    assert await desk.marks() == []
    desk.porter.refuses = lambda _: False
    assert "1|secret" in (await desk.does("view", file_path=path)).content
    desk.porter.refuses = lambda _: True
    await desk.fails("write", file_path=path, content="x")
    assert desk.porter.actions()[-1] == ("write", "write", real)
    assert (desk.root.parent / "secret.txt").read_bytes() == b"secret"


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
async def test_a_workspace_that_is_gone_is_called_gone(desk: Desk, tool: str, arguments: dict[str, object]) -> None:
    """Nothing is made in its place, and what lies elsewhere can be read."""
    desk.root.rename(desk.root.with_name("moved"))
    told = await desk.fails(tool, **arguments)
    assert told.startswith(f"The directory of this workspace, {desk.root}, is gone")
    assert "user" in told
    assert not desk.root.exists()
    assert "1|secret" in (await desk.does("view", file_path=str(desk.root.parent / "secret.txt"))).content


async def test_reading_inside_the_workspace_needs_no_approval(desk: Desk) -> None:
    for tool, arguments in (
        ("view", {"file_path": "a.txt"}),
        ("ls", {}),
        ("grep", {"pattern": "one"}),
        ("glob", {"pattern": "*"}),
    ):
        await desk.does(tool, **arguments)
    assert desk.porter.asked == []


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
async def test_inside_rules_count_for_reading_too(desk: Desk, tool: str, arguments: dict[str, str]) -> None:
    settings = PermissionSettings(ask=("view(a.txt)", "ls", "grep", "glob(**)"))
    desk.porter.rules = RuleSet(settings, str(desk.root), real=os.path.realpath)
    desk.porter.refuses = lambda _: True
    assert "denied" in await desk.fails(tool, **arguments)


async def test_ls_asks_outside(desk: Desk) -> None:
    (desk.root.parent / "project2").mkdir()
    await desk.does("ls", path="../project2")
    assert desk.porter.actions() == [("ls", "list", str(desk.root.parent / "project2"))]
    assert desk.porter.asked[0].params == {"path": str(desk.root.parent / "project2"), "ignore": [], "depth": 0}


async def test_every_change_is_asked_for(desk: Desk) -> None:
    desk.porter.refuses = lambda _: True
    await desk.call("view", file_path="a.txt")
    for tool, arguments in (
        ("write", {"content": "x"}),
        ("edit", {"old_string": "one", "new_string": "x"}),
        ("multiedit", {"edits": [{"old_string": "one", "new_string": "x"}]}),
    ):
        assert "denied" in await desk.fails(tool, file_path="a.txt", **arguments)
    real = str(desk.root / "a.txt")
    assert desk.porter.actions() == [(tool, "write", real) for tool in ("write", "edit", "multiedit")]
    assert desk.porter.asked[1].params == {
        "file_path": real,
        "old_content": "one\ntwo\nthree\n",
        "new_content": "x\ntwo\nthree\n",
    }
    assert desk.read("a.txt") == b"one\ntwo\nthree\n"
    assert await desk.versions() == []


async def test_some_directories_may_be_read_unasked(project: Path) -> None:
    desk = await Desk(project).open(ToolNeeds(readable=lambda: [str(project.parent / "skills")]))
    (project.parent / "skills").mkdir()
    (project.parent / "skills" / "s.md").write_text("skill")
    await desk.does("view", file_path="../skills/s.md")
    assert desk.porter.asked == []


async def test_a_link_to_nothing_leads_to_its_target(desk: Desk) -> None:
    os.symlink("../new.txt", desk.root / "link.txt")
    desk.porter.refuses = lambda permit: not permit.path.startswith(f"{desk.root}/")
    await desk.fails("write", file_path="link.txt", content="x")
    assert "new.txt" not in os.listdir(desk.root.parent)


async def test_a_link_inside_is_followed_and_shown(desk: Desk) -> None:
    os.symlink("a.txt", desk.root / "link.txt")
    await desk.call("view", file_path="link.txt")
    result = await desk.does("write", file_path="link.txt", content="x")
    assert "link.txt (which is a.txt)" in result.content
    assert desk.read("a.txt") == b"x"
    assert os.readlink(desk.root / "link.txt") == "a.txt"


async def test_links_in_a_circle_are_an_error(desk: Desk) -> None:
    os.symlink("two", desk.root / "one")
    os.symlink("one", desk.root / "two")
    for tool in ("view", "ls"):
        await desk.fails(tool, **({"file_path": "one/x"} if tool == "view" else {"path": "one"}))


@pytest.mark.parametrize("tool", ["view", "write", "edit", "ls", "grep"])
async def test_a_path_that_nothing_can_hold_is_refused(desk: Desk, tool: str) -> None:
    """A link leads to a name that is no UTF-8, which could be neither stored nor sent: it used to fail the run."""
    name = "odd-\udcff"
    (desk.root / name).mkdir() if tool in ("ls", "grep") else (desk.root / name).write_text("x")
    os.symlink(name, desk.root / "link")
    arguments: dict[str, dict[str, object]] = {
        "view": {"file_path": "link"},
        "write": {"file_path": "link", "content": "y"},
        "edit": {"file_path": "link", "old_string": "x", "new_string": "y"},
        "ls": {"path": "link"},
        "grep": {"pattern": "x", "path": "link"},
    }
    assert "not valid UTF-8" in await desk.fails(tool, **arguments[tool])
