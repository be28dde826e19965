"""The same search with three programs: ripgrep (if installed), git, and the built-in walk."""

import asyncio
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from holdfast.domain.errors import ToolError
from holdfast.testing.gates import start
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.piped_process import find_program, run_child, spawn, split_records
from holdfast.workspace.search.search import GrepRequest, Searcher, SearchScope, TextMatches

WAYS = ("git", "own", "rg")
PATH = os.environ["PATH"]


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class SearchFixture:
    """A repository to search, and one way to search it."""

    def __init__(self, root: Path, way: str) -> None:
        self.root = root
        private = PrivateGit(str(root.parent / "git")) if way == "git" else None
        self.searcher = Searcher(git=private, uses_ripgrep=way == "rg")

    def put(self, name: str, content: bytes = b"needle\n", *, age: int = 0) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))

    def where(self, path: str = "", seconds: float = 30, most: int = 100) -> SearchScope:
        fixture = str(self.root / path) if path else str(self.root)
        return SearchScope(str(self.root), fixture, {"PATH": PATH}, seconds, most, os.path.isfile(fixture))

    async def grep(self, pattern: str, path: str = "", include: str = "", *, literal: bool = False) -> TextMatches:
        return await self.searcher.grep(self.where(path), GrepRequest(pattern, literal, include))

    async def lines(self, pattern: str, path: str = "", include: str = "", *, literal: bool = False) -> list[str]:
        found = await self.grep(pattern, path, include, literal=literal)
        return [f"{match.path}:{match.line}:{match.column}:{match.text}" for match in found.matches]

    async def names(self, pattern: str, path: str = "", most: int = 100) -> list[str]:
        return list((await self.searcher.files(self.where(path, most=most), pattern)).paths)


@pytest.fixture(params=sorted(WAYS))
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> SearchFixture:
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q")
    return SearchFixture(root, request.param)


async def test_lines_are_found_with_positions(fixture: SearchFixture) -> None:
    fixture.put("a.txt", b"nothing\nthe needle here\n")
    fixture.put("b/with space.txt", "äö needle\r\n".encode())
    assert sorted(await fixture.lines("ne+dle")) == ["a.txt:2:5:the needle here", "b/with space.txt:1:4:äö needle"]
    assert await fixture.lines("nowhere") == []
    assert await fixture.lines("^the") == ["a.txt:2:1:the needle here"]
    assert sorted(await fixture.lines(r"\bneedle$")) == ["b/with space.txt:1:4:äö needle"]


async def test_the_newest_files_come_first(fixture: SearchFixture) -> None:
    for age, name in enumerate(["c", "a", "b"]):
        fixture.put(name, b"needle\nneedle\n", age=age)
    assert [match.path for match in (await fixture.grep("needle")).matches] == ["c", "c", "a", "a", "b", "b"]


async def test_matches_are_bounded(fixture: SearchFixture) -> None:
    fixture.put("old", b"needle\n" * 150, age=100)
    fixture.put("new", b"needle\n" * 99)
    found = await fixture.grep("needle")
    assert len(found.matches) == 100
    assert found.is_truncated
    assert [match.path for match in found.matches].count("new") == 99


async def test_result_at_limit_is_not_truncated(fixture: SearchFixture) -> None:
    fixture.put("a", b"needle\n" * 100)
    found = await fixture.grep("needle")
    assert (len(found.matches), found.is_truncated) == (100, False)
    fixture.put("a", b"needle\n" * 101)
    assert (await fixture.grep("needle")).is_truncated


async def test_long_lines_are_cut(fixture: SearchFixture) -> None:
    fixture.put("a", b"needle" + b"x" * 3_000_000 + b"\nneedle\n")
    first, second = (await fixture.grep("needle")).matches
    assert len(first.text) == 501
    assert second.line == 2


async def test_ignored_files_are_not_searched(fixture: SearchFixture) -> None:
    for name in ("seen", "build/x", "x.log", "sub/own", "sub/kept.log", "crush", "node_modules/n/x", ".venv/x"):
        fixture.put(name)
    fixture.put(".gitignore", b"build/\n*.log\n")
    fixture.put("sub/.gitignore", b"!kept.log\n")
    fixture.put("sub/.holdfastignore", b"own\n")
    fixture.put(".crushignore", b"crush\n")
    assert sorted(match.path for match in (await fixture.grep("needle")).matches) == ["seen", "sub/kept.log"]
    assert await fixture.names("**") == [
        "seen", ".gitignore", ".crushignore", "sub/kept.log", "sub/.gitignore", "sub/.holdfastignore",
    ]  # fmt: skip


async def test_explicitly_named_ignored_directory_is_searched(fixture: SearchFixture) -> None:
    fixture.put("build/x")
    fixture.put(".gitignore", b"build/\n")
    fixture.put("build/deep/y", b"other\n")
    assert await fixture.names("x", "build") == ["x"]
    assert await fixture.names("*", "build/deep") == ["y"]
    assert await fixture.lines("needle", "build") == ["x:1:1:needle"]


async def test_hidden_files_are_searched(fixture: SearchFixture) -> None:
    fixture.put(".github/workflows/ci.yml")
    assert await fixture.lines("needle") == [".github/workflows/ci.yml:1:1:needle"]
    assert await fixture.names("*.yml") == [".github/workflows/ci.yml"]


async def test_binary_files_are_not_searched(fixture: SearchFixture) -> None:
    fixture.put("a.bin", b"\0needle\n")
    fixture.put("latin.txt", b"\xe9 needle\n")
    assert await fixture.lines("needle") == ["latin.txt:1:3:\ufffd needle"]


PATTERNS = {
    "*.py": ["a.py", "b/c.py", "x/b/c.py"],
    "*.{py,ts}": ["a.py", "b/c.py", "b/d.ts", "x/b/c.py"],
    "c*": ["b/c.py", "x/b/c.py"],
    "b/*.py": ["b/c.py"],
    "./b/*.py": ["b/c.py"],
    "/b/*.py": ["b/c.py"],
    "b/c.p": [],
    "b/c": [],
    "b": [],
    "b/**": ["b/c.py", "b/d.ts"],
    "{b,x/b}/*.py": ["b/c.py", "x/b/c.py"],
    "*/b/*": ["x/b/c.py"],
    "**/b/*.py": ["b/c.py", "x/b/c.py"],
    "**/d.*": ["b/d.ts"],
    "?.py": ["a.py", "b/c.py", "x/b/c.py"],
    "[ab].py": ["a.py"],
    "nothing": [],
}
"""Patterns with the files they select. A pattern matches whole paths, and without a slash names at every depth."""


async def test_patterns_select_the_same_files_in_both_searches(fixture: SearchFixture) -> None:
    for name in ("a.py", "b/c.py", "x/b/c.py", "b/d.ts", "e.txt", "out.py"):
        fixture.put(name)
    fixture.put(".gitignore", b"out.py\n")
    for pattern, wanted in PATTERNS.items():
        included = (await fixture.grep("needle", include=pattern)).matches
        assert sorted(match.path for match in included) == wanted, pattern
        assert sorted(await fixture.names(pattern)) == wanted, pattern


async def test_one_file_or_directory_can_be_searched(fixture: SearchFixture) -> None:
    fixture.put("a/x")
    fixture.put("a/-y")
    fixture.put("b/x")
    assert await fixture.lines("needle", "a/-y") == ["-y:1:1:needle"]
    assert sorted(await fixture.lines("needle", "a")) == ["-y:1:1:needle", "x:1:1:needle"]


async def test_names_with_line_breaks(fixture: SearchFixture) -> None:
    """The text before such a name and after its line break are names of other files, too."""
    names = ["a", "b.txt", "a\nb.txt", "\n", "c\n\nd/\ne", "d\n1:1:needle"]
    for name in names:
        fixture.put(name)
    assert sorted(await fixture.lines("needle")) == sorted(f"{name}:1:1:needle" for name in names)
    assert await fixture.lines("needle", "a\nb.txt") == ["a\nb.txt:1:1:needle"]
    assert sorted(await fixture.names("*")) == sorted(names)


async def test_literal_text(fixture: SearchFixture) -> None:
    fixture.put("a", b"f(x)[0]\nfx0\n")
    assert await fixture.lines("f(x)[", literal=True) == ["a:1:1:f(x)[0]"]
    fixture.put("a", b"-e --files\n")
    assert await fixture.lines("-e --files", literal=True) == ["a:1:1:-e --files"]
    assert await fixture.lines("--files") == ["a:1:4:-e --files"]


@pytest.mark.parametrize("pattern", ["f(", "[a", "*x", "(?P<n"])
async def test_invalid_pattern_is_explained(fixture: SearchFixture, pattern: str) -> None:
    fixture.put("a")
    with pytest.raises(ToolError, match="regular expression") as raised:
        await fixture.grep(pattern)
    assert "literal_text" in str(raised.value)
    assert "ANYCRLF" not in str(raised.value)


async def test_look_around_patterns(fixture: SearchFixture) -> None:
    fixture.put("a", b"foobar\nfoobaz\n")
    assert await fixture.lines("foo(?!bar)") == ["a:2:1:foobaz"]


async def test_files_are_found_by_name_shortest_first(fixture: SearchFixture) -> None:
    for name in ("x.py", "src/long_name.py", "src/a.py", "src/deep/er/b.py", "src/c.ts"):
        fixture.put(name)
    assert await fixture.names("*.py") == ["x.py", "src/a.py", "src/deep/er/b.py", "src/long_name.py"]
    assert await fixture.names("src/*.py") == ["src/a.py", "src/long_name.py"]
    assert await fixture.names("**/*.{ts,js}") == ["src/c.ts"]
    assert await fixture.names("*.py", "src") == ["a.py", "deep/er/b.py", "long_name.py"]
    assert await fixture.names("nothing*") == []


async def test_files_are_bounded(fixture: SearchFixture) -> None:
    for number in range(12):
        fixture.put(f"f{number:02}")
    found = await fixture.searcher.files(fixture.where(most=10), "f*")
    assert (len(found.paths), found.is_truncated) == (10, True)
    found = await fixture.searcher.files(fixture.where(most=12), "f*")
    assert (len(found.paths), found.is_truncated) == (12, False)


async def test_deleted_files_are_not_listed(fixture: SearchFixture) -> None:
    fixture.put("gone")
    fixture.put("here")
    git(fixture.root, "add", ".")
    (fixture.root / "gone").unlink()
    assert await fixture.names("*") == ["here"]


async def test_nested_repository_is_not_a_file(fixture: SearchFixture) -> None:
    fixture.put("inner/x")
    git(fixture.root / "inner", "init", "-q")
    assert [name for name in await fixture.names("*") if name != "inner/x"] == []


async def test_symlinks_do_not_leave_workspace(fixture: SearchFixture) -> None:
    (fixture.root.parent / "outside").mkdir()
    (fixture.root.parent / "outside" / "x").write_bytes(b"needle\n")
    os.symlink("../outside", fixture.root / "link")
    os.symlink("../outside/x", fixture.root / "file")
    assert await fixture.lines("needle") == []


async def test_c45_cancelled_search_leaves_no_process(fixture: SearchFixture) -> None:
    """C-45: cancelled at any moment, the program has ended when the search has."""
    for number in range(30):
        fixture.put(f"d{number}/x", b"needle\n" * 200)
    pids: list[int] = []
    began = asyncio.Event()

    async def watched(*arguments: object) -> object:
        child = await spawn(*arguments)  # type: ignore[arg-type]
        pids.append(child._process.pid)  # type: ignore[attr-defined]
        began.set()
        return child

    searcher = Searcher(watched, PrivateGit(str(fixture.root.parent / "git")))  # type: ignore[arg-type]
    task = start(searcher.grep(fixture.where(), GrepRequest("needle")))
    await began.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not any(map(is_alive, pids))


# Without external programs


async def test_built_in_walk_outside_repository(tmp_path: Path) -> None:
    fixture = SearchFixture(tmp_path, "git")
    fixture.put("a")
    fixture.put(".gitignore", b"b\n")
    fixture.put("b")
    assert await fixture.lines("needle") == ["a:1:1:needle"]


async def test_failing_program_is_skipped(tmp_path: Path) -> None:
    """A failing ripgrep does not end the search; one inside the workspace is never run."""
    tools, root = tmp_path / "bin", tmp_path / "root"
    for folder in (tools, root / "bin"):
        folder.mkdir(parents=True)
        (folder / "rg").write_text('#!/bin/sh\necho broken >&2\necho ran >> "$0.ran"\nexit 3\n')
        (folder / "rg").chmod(0o755)
    fixture = SearchFixture(root, "rg")
    fixture.put("a")
    where = SearchScope(str(root), str(root), {"PATH": f"{root / 'bin'}:{tools}:/bin"}, 30)
    assert find_program("rg", where.environment, str(root)) is None
    assert len((await fixture.searcher.grep(where, GrepRequest("needle"))).matches) == 1
    where = SearchScope(str(root), str(root), {"PATH": f"{tools}:/bin"}, 30)
    assert len((await fixture.searcher.grep(where, GrepRequest("needle"))).matches) == 1
    assert (tools / "rg.ran").exists()
    assert not (root / "bin" / "rg.ran").exists()


async def test_git_runs_no_program_of_repository(tmp_path: Path) -> None:
    fixture = SearchFixture(tmp_path, "git")
    git(tmp_path, "init", "-q")
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external", "core.hooksPath"):
        git(tmp_path, "config", name, str(program))
    fixture.put("a")
    assert await fixture.lines("needle", include="a") == ["a:1:1:needle"]
    assert await fixture.names("a") == ["a"]
    assert not (tmp_path / "ran").exists()


async def test_records_may_be_long_and_fragmented(tmp_path: Path) -> None:
    script = r"printf 'a\nbb'; printf 'c\n'; head -c 3000000 /dev/zero | tr '\0' x; printf '\nend\nlast'"
    async with run_child(spawn, ["/bin/sh", "-c", script], str(tmp_path), {"PATH": PATH}) as child:
        records = [record async for record in split_records(child.child.stdout, b"\n")]
        assert await child.end() == (0, "")
    assert records[:2] == [b"a", b"bbc"]
    assert records[-2:] == [b"end", b"last"]
    assert len(records) == 5
    assert len(records[2]) < 1_200_000


async def test_settings_of_the_users_ripgrep_are_ignored(fixture: SearchFixture, tmp_path: Path) -> None:
    """They may exclude files, or run a program for each of them."""
    fixture.put("a.txt")
    settings = tmp_path / "ripgreprc"
    settings.write_text("--glob=!a.txt\n--pre=false\n")
    where = msgspec.structs.replace(fixture.where(), environment={"PATH": PATH, "RIPGREP_CONFIG_PATH": str(settings)})
    found = await fixture.searcher.grep(where, GrepRequest("needle", is_literal=True, include=""))
    assert [match.path for match in found.matches] == ["a.txt"]
