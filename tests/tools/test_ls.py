"""ls on real directories, through a real run."""

import base64
import os
from pathlib import Path

import pytest

from holdfast.domain.settings import ToolSettings
from holdfast.tools.registry import ToolNeeds
from tools.tool_runner import ToolRunner, metadata_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def repository(runner: ToolRunner) -> None:
    (runner.root / ".git").mkdir()


async def test_name_with_a_line_break_is_shown_as_a_json_string(runner: ToolRunner) -> None:
    """The model must be able to pass the name back."""
    repository(runner)
    runner.write_file("b\nc.txt", b"needle\n")
    whole = f'"{runner.root}/b\\nc.txt"'
    assert '  - "b\\nc.txt"' in (await runner.call_ok("ls")).content.splitlines()
    assert (await runner.call_ok("glob", pattern="*c.txt")).content == whole
    found = (await runner.call_ok("grep", pattern="needle")).content
    assert found.splitlines()[2:] == [f"{whole}:", "  Line 1, Char 1: needle"]


async def test_ls_shows_a_tree(runner: ToolRunner) -> None:
    repository(runner)
    runner.write_file("b/c.txt", b"")
    runner.write_file("b/d/e/f.txt", b"")
    runner.write_file(".github/w.yml", b"")
    os.symlink("b", runner.root / "link")
    result = await runner.call_ok("ls")
    assert result.content.splitlines() == [
        f"- {runner.root}/",
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
    assert metadata_of(result) == {"number_of_files": 9, "truncated": False}
    assert "c.txt" in (await runner.call_ok("ls", path="b", depth=1)).content
    assert "e/" not in (await runner.call_ok("ls", path="b", depth=1)).content


async def test_ls_of_an_empty_directory(runner: ToolRunner) -> None:
    (runner.root / "b").mkdir()
    assert "only ignored entries" in (await runner.call("ls", path="b")).content


async def test_ls_outside_a_repository_has_a_smaller_depth(runner: ToolRunner) -> None:
    runner.write_file("b/c/d/e.txt", b"")
    assert "c/" in (await runner.call_ok("ls")).content
    assert "e.txt" not in (await runner.call_ok("ls")).content
    for number in range(103):
        runner.write_file(f"f{number:03}", b"")
    result = await runner.call_ok("ls")
    assert metadata_of(result) == {"number_of_files": 100, "truncated": True}
    assert len([line for line in result.content.splitlines() if "- f" in line]) < 103


async def test_ls_limits_are_configurable(project: Path) -> None:
    settings = ToolSettings(ls={"max_items": 3, "max_depth": 1})
    runner = await ToolRunner(project).open(ToolNeeds(settings=lambda: settings))
    for name in ("b/x", "c/x", "d/x"):
        runner.write_file(name, b"")
    result = await runner.call_ok("ls")
    assert metadata_of(result) == {"number_of_files": 3, "truncated": True}
    assert "- x" not in result.content


async def test_ls_truncates_the_deepest_level_first(project: Path) -> None:
    """A large directory does not displace its siblings."""
    runner = await ToolRunner(project).open(
        ToolNeeds(settings=lambda: ToolSettings(ls={"max_items": 10, "max_depth": 9}))
    )
    for number in range(50):
        runner.write_file(f"aa/{number}", b"")
    runner.write_file("zz/last", b"")
    assert "- zz/" in (await runner.call_ok("ls")).content


async def test_ls_omits_ignored_files(runner: ToolRunner) -> None:
    repository(runner)
    for name in ("build/x", "keep/y.log", "keep/z.py", "node_modules/n", "own/o", "crush/c", "sub/only", "sub/other"):
        runner.write_file(name, b"")
    runner.write_file(".gitignore", b"build/\n*.log\n")
    runner.write_file(".holdfastignore", b"own\n")
    runner.write_file(".crushignore", b"/crush\n")
    runner.write_file("sub/.ignore", b"only\n")
    content = (await runner.call_ok("ls", ignore=["*.txt"])).content
    assert "z.py" in content
    assert "other" in content
    for hidden in ("build", "y.log", "node_modules", "own/", "crush/", "only", "a.txt", ".git/"):
        assert hidden not in content, hidden
    assert "- x" in (await runner.call_ok("ls", path="build")).content


@pytest.mark.parametrize(("path", "says"), [("a.txt", "is a file"), ("nothing", "no directory")])
async def test_ls_refuses_a_file(runner: ToolRunner, path: str, says: str) -> None:
    answer = await runner.call_error("ls", path=path)
    assert path in answer
    assert says in answer
