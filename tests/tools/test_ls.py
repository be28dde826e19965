"""ls on real directories, through a real run."""

import base64
import os
from pathlib import Path

import pytest

from holdfast.domain.settings import ToolSettings
from holdfast.tools.registry import ToolNeeds
from tools.desk import Desk, told

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def repository(desk: Desk) -> None:
    (desk.root / ".git").mkdir()


async def test_names_with_line_breaks_stay_in_their_line(desk: Desk) -> None:
    """A JSON string, as the model has to give it back."""
    repository(desk)
    desk.put("b\nc.txt", b"needle\n")
    whole = f'"{desk.root}/b\\nc.txt"'
    assert '  - "b\\nc.txt"' in (await desk.does("ls")).content.splitlines()
    assert (await desk.does("glob", pattern="*c.txt")).content == whole
    found = (await desk.does("grep", pattern="needle")).content
    assert found.splitlines()[2:] == [f"{whole}:", "  Line 1, Char 1: needle"]


async def test_ls_shows_a_tree(desk: Desk) -> None:
    repository(desk)
    desk.put("b/c.txt", b"")
    desk.put("b/d/e/f.txt", b"")
    desk.put(".github/w.yml", b"")
    os.symlink("b", desk.root / "link")
    result = await desk.does("ls")
    assert result.content.splitlines() == [
        f"- {desk.root}/",
        "  - .github/",
        "    - w.yml",
        "  - a.txt",
        "  - b/",
        "    - c.txt",
        "    - d/",
        "      - e/",
        "        - f.txt",
        "  - link -> b",
    ]
    assert told(result) == {"number_of_files": 9, "truncated": False}
    assert "c.txt" in (await desk.does("ls", path="b", depth=1)).content
    assert "e/" not in (await desk.does("ls", path="b", depth=1)).content


async def test_ls_of_nothing(desk: Desk) -> None:
    (desk.root / "b").mkdir()
    assert "nothing in it" in (await desk.call("ls", path="b")).content


async def test_ls_outside_of_a_repository_is_short(desk: Desk) -> None:
    desk.put("b/c/d/e.txt", b"")
    assert "c/" in (await desk.does("ls")).content
    assert "e.txt" not in (await desk.does("ls")).content
    for number in range(103):
        desk.put(f"f{number:03}", b"")
    result = await desk.does("ls")
    assert told(result) == {"number_of_files": 100, "truncated": True}
    assert len([line for line in result.content.splitlines() if "- f" in line]) < 103


async def test_ls_has_limits_that_a_user_may_set(project: Path) -> None:
    settings = ToolSettings(ls={"max_items": 3, "max_depth": 1})
    desk = await Desk(project).open(ToolNeeds(settings=lambda: settings))
    for name in ("b/x", "c/x", "d/x"):
        desk.put(name, b"")
    result = await desk.does("ls")
    assert told(result) == {"number_of_files": 3, "truncated": True}
    assert "- x" not in result.content


async def test_ls_cuts_at_the_bottom(project: Path) -> None:
    """A large directory does not push its neighbours out."""
    desk = await Desk(project).open(ToolNeeds(settings=lambda: ToolSettings(ls={"max_items": 10, "max_depth": 9})))
    for number in range(50):
        desk.put(f"aa/{number}", b"")
    desk.put("zz/last", b"")
    assert "- zz/" in (await desk.does("ls")).content


async def test_ls_leaves_out_what_is_ignored(desk: Desk) -> None:
    repository(desk)
    for name in ("build/x", "keep/y.log", "keep/z.py", "node_modules/n", "own/o", "crush/c", "sub/only", "sub/other"):
        desk.put(name, b"")
    desk.put(".gitignore", b"build/\n*.log\n")
    desk.put(".holdfastignore", b"own\n")
    desk.put(".crushignore", b"/crush\n")
    desk.put("sub/.ignore", b"only\n")
    content = (await desk.does("ls", ignore=["*.txt"])).content
    assert "z.py" in content
    assert "other" in content
    for hidden in ("build", "y.log", "node_modules", "own/", "crush/", "only", "a.txt", ".git/"):
        assert hidden not in content, hidden
    assert "- x" in (await desk.does("ls", path="build")).content


@pytest.mark.parametrize(("path", "says"), [("a.txt", "is a file"), ("nothing", "no directory")])
async def test_ls_wants_a_directory(desk: Desk, path: str, says: str) -> None:
    answer = await desk.fails("ls", path=path)
    assert path in answer
    assert says in answer
