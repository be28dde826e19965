"""A directory is replaced by a link between check and use: the target of the link is never shown."""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from holdfast.domain.tools import Permit
from holdfast.extensions import markdown_dir
from holdfast.extensions.search_paths import SearchPath
from holdfast.tools import ls
from holdfast.tools.registry import ToolNeeds
from holdfast.workspace.files import safe_open
from holdfast.workspace.files.ignore_files import IgnoreRules
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.process.piped_process import Child, spawn
from holdfast.workspace.project_context import find_context_sources, read_context_files
from holdfast.workspace.search.fallback_scan import walk
from tools.tool_runner import ToolRunner
from trials.link_swaps import SECRET, SwappedProject, exchange, try_swap


@pytest.fixture
def project(tmp_path: Path) -> SwappedProject:
    return SwappedProject(tmp_path)


@pytest.fixture(params=["openat2", "step by step"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> int:
        raise NotImplementedError

    if request.param != "openat2":
        monkeypatch.setattr(safe_open, "_openat2", unknown)


def once(act: Callable[[], None]) -> Callable[[], None]:
    """Perform the action on the first call only."""
    left = [act]

    def first() -> None:
        if left:
            left.pop()()

    return first


@pytest.mark.usefixtures("_way")
def test_no_link_is_followed_below_an_open_directory(project: SwappedProject) -> None:
    handle = os.open(project.root, os.O_RDONLY)
    for path in ("x", "x/f.txt", "d/y/f.txt", "x/e/f.txt", "../outside/f.txt", "d/../../outside/f.txt", "d/f.txt/x"):
        with pytest.raises(OSError, match=r"."):
            safe_open.open_beneath(handle, path, os.O_RDONLY)
        assert path == "x" or safe_open.status_beneath(handle, path) is None
    for path in ("d/f.txt", "./d//e/./f.txt", "d", ".", ""):
        os.close(safe_open.open_beneath(handle, path, os.O_RDONLY))
    os.close(handle)


CALLS: list[tuple[str, dict[str, object]]] = [
    ("grep", {"pattern": "needle", "path": "d"}),
    ("grep", {"pattern": "needle", "path": "d/f.txt"}),
    ("glob", {"pattern": "**/*.txt", "path": "d"}),
    ("ls", {"path": "d"}),
    ("view", {"file_path": "d/f.txt"}),
    ("view", {"file_path": f"d/{SECRET}"}),
]


@pytest.mark.usefixtures("_way")
async def test_link_that_replaces_an_approved_directory_is_not_followed(project: SwappedProject) -> None:
    """The directory is replaced after the permission check, before the tool continues."""
    runner = await ToolRunner(project.root).open()
    allow = runner.approver.permit
    for path in (None, "/nowhere"):
        # With ripgrep or git, and with neither.
        runner.environment["PATH"] = path or os.environ["PATH"]
        for tool, arguments in CALLS:

            async def permit(permit: Permit) -> None:
                await allow(permit)
                exchange(*project.pairs[0])

            runner.approver.permit = permit  # type: ignore[method-assign]
            result = await runner.call(tool, **arguments)
            exchange(*project.pairs[0])
            assert SECRET not in result.content.replace(f"d/{SECRET}", ""), (tool, arguments, path)
            assert result.is_error, (tool, arguments, path, result.content)


async def git_init(root: Path) -> None:
    assert await (await asyncio.create_subprocess_exec("git", "-C", str(root), "init", "-q")).wait() == 0


@pytest.mark.parametrize("program", ["rg", "git"])
async def test_search_results_from_a_swapped_directory_are_not_shown(project: SwappedProject, program: str) -> None:
    """The program sees a directory but opens a link; the directory is restored when the program is done."""
    real = shutil.which(program)
    if real is None:
        pytest.fail(f"{program} is needed for this test")
    tools = project.root.parent / "tools"
    tools.mkdir()
    swap = f"mv {project.root}/d {project.root}/z; cp -r {project.outside} {project.root}/d"
    undo = f"rm -r {project.root}/d; mv {project.root}/z {project.root}/d"
    (tools / program).write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin\n{swap}\n{real} "$@"\ncode=$?\n{undo}\nexit $code\n')
    (tools / program).chmod(0o755)
    await git_init(project.root)
    runner = await ToolRunner(project.root).open()
    runner.environment["PATH"] = str(tools)
    for tool, arguments in (("grep", {"pattern": "needle"}), ("glob", {"pattern": "**/*.txt"})):
        result = await runner.call_ok(tool, **arguments)
        assert SECRET not in result.content, (program, result.content)


async def test_a_search_refuses_a_directory_that_becomes_a_link_when_it_starts(project: SwappedProject) -> None:
    async def swapped(arguments: Sequence[str], directory: str, environment: Mapping[str, str]) -> Child:
        exchange(*project.pairs[0])
        try:
            return await spawn(arguments, directory, environment)
        finally:
            exchange(*project.pairs[0])

    runner = await ToolRunner(project.root).open(ToolNeeds(spawn=swapped))
    assert "was replaced by another one" in await runner.call_error("grep", pattern="needle", path="d")


@pytest.mark.usefixtures("_way")
async def test_ls_stays_below_the_directory_it_has_opened(
    project: SwappedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced in the middle of the walk: at the top, and one level below."""
    for pair in project.pairs:
        swap = once(lambda pair=pair: exchange(*pair))  # type: ignore[misc]

        def entries(handle: int, folder: str) -> list[tuple[str, bool, bool, str]]:
            found = safe_open.entries_of(handle, folder)
            swap()  # noqa: B023
            return found

        monkeypatch.setattr(ls, "entries_of", entries)
        runner = await ToolRunner(project.root).open()
        content = (await runner.call_ok("ls", path="d")).content
        exchange(*pair)
        assert "inside.txt" in content
        assert f"{SECRET}.txt" not in content


@pytest.mark.usefixtures("_way")
def test_built_in_walk_stays_below_the_directory_it_has_opened(project: SwappedProject) -> None:
    handle = os.open(project.root, os.O_RDONLY)
    found = walk(handle, str(project.root), IgnoreRules(str(project.root)))
    assert next(found) == "d/f.txt"
    exchange(*project.pairs[1])
    assert not [path for path in found if SECRET in path]
    os.close(handle)


def test_context_files_are_checked_when_they_are_opened(project: SwappedProject) -> None:
    for folder in (project.root / "d", project.outside):
        (folder / "notes.md").write_text(f"from {folder.name}")
    places = find_context_sources(project.root, (), ["d/notes.md"])
    assert [file.text for file in read_context_files(places)] == ["from d"]
    exchange(*project.pairs[0])
    assert read_context_files(places) == []


def test_project_extensions_are_checked_when_they_are_opened(
    project: SwappedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skills, commands and agents of a project."""
    for folder, text in ((project.root / "d", "inside"), (project.outside, SECRET)):
        (folder / "note.md").write_text(text)
    swap = once(lambda: exchange(*project.pairs[0]))

    def then_swap(top: str, path: str) -> bool:
        verdict = is_within(top, path)
        swap()
        return verdict

    monkeypatch.setattr(markdown_dir, "is_within", then_swap)
    markdown_directory = markdown_dir.MarkdownDirectory("files", lambda file: (file.data, file.error))
    found = markdown_directory.scan([SearchPath(str(project.root / "d"), "project", within=str(project.root))])
    assert not any(SECRET.encode() in data for data, _ in found if data)


def test_long_trial_of_link_swaps_finds_no_leak() -> None:
    try_swap(8)
