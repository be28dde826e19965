"""Processing of the output of search programs: fake programs with every behaviour."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from holdfast.domain.errors import ToolError
from holdfast.testing.gates import settle_down, start
from holdfast.workspace.process.piped_process import Child, find_program, run_child
from holdfast.workspace.search import search
from holdfast.workspace.search.search import GrepRequest, Searcher, SearchScope, TextMatches

ProgramOutput = tuple[bytes, bytes, int]
"""Output of a program on its two streams, and its exit code."""
NONE: ProgramOutput = (b"", b"", 1)


class FakeProgram:
    """A program that has written all its output; one without an exit code runs until it is killed."""

    reader = asyncio.StreamReader

    def __init__(self, stdout: bytes, stderr: bytes, code: int | None) -> None:
        self.stdout, self.stderr = self.reader(), asyncio.StreamReader()
        self.was_killed = False
        self._handle_end = asyncio.Event()
        self._code = code
        for stream, data in ((self.stdout, stdout), (self.stderr, stderr)):
            stream.feed_data(data)
            if code is not None:
                stream.feed_eof()
        if code is not None:
            self._handle_end.set()

    def kill(self) -> None:
        self.was_killed = True
        self._handle_end.set()

    async def wait(self) -> int:
        await self._handle_end.wait()
        return 137 if self._code is None else self._code


class SearchPrograms:
    """A directory to search, and the programs that run, one after the other."""

    def __init__(self, root: Path, *answers: tuple[bytes, bytes, int | None] | OSError) -> None:
        self.root = root
        self.answers = list(answers)
        self.started: list[Sequence[str]] = []
        self.children: list[FakeProgram] = []
        programs = root.parent / "bin"
        programs.mkdir(exist_ok=True)
        (programs / "rg").write_text("")
        (programs / "rg").chmod(0o755)
        self.environment = {"PATH": str(programs)}
        self.searcher = Searcher(self._start)

    async def _start(self, arguments: Sequence[str], directory: str, environment: Mapping[str, str]) -> Child:
        self.started.append(arguments)
        assert (directory, environment) == (str(self.root), self.environment)
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        self.children.append(FakeProgram(*answer))
        return self.children[-1]

    def where(self, name: str = "", seconds: float = 30, most: int = 100) -> SearchScope:
        place = str(self.root / name) if name else str(self.root)
        return SearchScope(str(self.root), place, self.environment, seconds, most, is_file=bool(name))

    async def grep(self, name: str = "", pattern: str = "needle", **more: float) -> TextMatches:
        return await self.searcher.grep(self.where(name, **more), GrepRequest(pattern))  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    (root / "a").write_text("needle\n" * 20)
    return root


HIT = b"a\0001:1:needle\n"


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([(HIT, b"", 0)], 1),
        ([(b"", b"", 1)], 0),
        ([(b"", b"some file", 1)], 0),
        ([(b"", b"", 2)], 0),
        ([(HIT, b"one file could not be read", 2)], 1),
        ([(b"", b"broken", 2), (HIT, b"", 0)], 1),
        ([(b"", b"broken", 2), NONE], 0),
        ([OSError(), (HIT, b"", 0)], 1),
        ([(b"", b"regex parse error:\n  (\n  ^\nerror: unclosed group", 2)], "unclosed group"),
        ([(b"", b"broken", 2), (b"", b"missing ), unterminated", 2)], "unterminated"),
    ],
)
async def test_ends_of_search(root: Path, answers: list[ProgramOutput | OSError], found: int | str) -> None:
    """The next program runs only if the first is of no use; each started one has ended."""
    programs = SearchPrograms(root, *answers)
    if isinstance(found, str):
        with pytest.raises(ToolError, match=found):
            await programs.grep()
    else:
        result = await programs.grep()
        assert (len(result.matches), result.is_truncated, result.is_timed_out) == (found, False, False)
    assert programs.answers == []
    assert all(child.was_killed for child in programs.children)


async def test_a_program_that_cannot_be_started_at_the_end_is_an_error(root: Path) -> None:
    with pytest.raises(OSError, match="no"):
        await SearchPrograms(root, OSError("no"), OSError("no")).grep()


async def test_a_search_that_takes_too_long_is_ended(root: Path) -> None:
    programs = SearchPrograms(root, (b"", b"", None), (b"", b"", None))
    assert (await programs.grep(seconds=0)).is_timed_out
    assert (await programs.searcher.files(programs.where(seconds=0), "*")).is_timed_out
    assert [child.was_killed for child in programs.children] == [True, True]


async def test_search_at_time_limit_returns_partial_result(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over with the second piece."""
    timers: list[asyncio.Timeout] = []
    really = asyncio.timeout

    def timeout(_: float) -> asyncio.Timeout:
        timers.append(really(None))
        return timers[-1]

    class Slow(asyncio.StreamReader):
        async def read(self, n: int = -1) -> bytes:
            if not self._buffer:  # type: ignore[attr-defined]
                timers[-1].reschedule(asyncio.get_running_loop().time())
            return await super().read(n)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    monkeypatch.setattr(FakeProgram, "reader", Slow)
    programs = SearchPrograms(root, (HIT, b"", None), (b"a\0", b"", None))
    result = await programs.grep()
    assert (len(result.matches), result.is_timed_out) == (1, True)
    names = await programs.searcher.files(programs.where(), "*")
    assert (names.paths, names.is_timed_out) == (("a",), True)
    assert [child.was_killed for child in programs.children] == [True, True]


async def test_collected_matches_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MAX_MATCHES", 5)
    programs = SearchPrograms(root, (b"".join(b"a\0%d:1:needle\n" % line for line in range(1, 21)), b"", None))
    result = await programs.grep()
    assert [match.line for match in result.matches] == [1, 2, 3, 4, 5, 6]
    assert programs.children[0].was_killed
    for most, is_truncated in ((5, True), (6, False)):
        programs.answers = [(b"".join(b"a\0%d:1:needle\n" % line for line in range(1, 21)), b"", None)]
        result = await programs.grep(most=most)
        assert (len(result.matches), result.is_truncated) == (most, is_truncated)


@pytest.mark.parametrize(("most", "is_truncated"), [(2, True), (3, False), (4, False)])
async def test_files_are_listed_once_and_truncated(root: Path, most: int, is_truncated: bool) -> None:
    for name in ("b", "cc"):
        (root / name).write_text("")
    programs = SearchPrograms(root, (b"cc\0a\0./a\0b\0b\0gone\0", b"", 0))
    result = await programs.searcher.files(programs.where(most=most), "*")
    assert (result.paths, result.is_truncated) == (("a", "b", "cc")[:most], is_truncated)


async def test_interrupted_file_list_is_marked_truncated(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MAX_FILES", 2)
    for name in ("b", "c"):
        (root / name).write_text("")
    programs = SearchPrograms(root, (b"a\0b\0c\0", b"", None))
    result = await programs.searcher.files(programs.where(), "*")
    assert (result.paths, result.is_truncated) == (("a", "b"), True)


async def test_displayed_lines_are_read_from_file(root: Path) -> None:
    """A program may have read another file through a symlink that existed for a moment."""
    (root / "wide").write_bytes("\ufeff".encode("utf-16-le") + "one\nneedle".encode("utf-16-le"))
    lines = (b"a\0001:1:secret", b"a\0002:1:needle", b"a\00021:1:needle", b"gone\0001:1:needle", b"wide\0002:1:needle")
    programs = SearchPrograms(root, (b"\n".join((*lines, b"noise", b"a\0x:1:needle", b"")), b"", 0))
    found = await programs.grep()
    assert sorted((match.path, match.line, match.text) for match in found.matches) == [
        ("a", 2, "needle"),
        ("wide", 2, "needle"),
    ]


async def test_explicitly_named_ignored_file_is_searched(root: Path) -> None:
    (root / ".holdfastignore").write_text("a\n")
    programs = SearchPrograms(root, (HIT, b"", 0), (HIT, b"", 0), (b"a\0", b"", 0))
    assert len((await programs.grep("a")).matches) == 1
    assert len((await programs.grep()).matches) == 0
    assert (await programs.searcher.files(programs.where(), "*")).paths == ()


async def test_stderr_is_bounded(root: Path) -> None:
    programs = SearchPrograms(root, (b"", b"x" * 100_000, 2))
    async with run_child(programs._start, ["rg"], str(root), programs.environment) as child:
        code, complaint = await child.end()
    assert (code, len(complaint)) == (2, 8_192)


def test_a_program_of_the_workspace_is_never_run(root: Path) -> None:
    """Nor the target of a symlink outside it."""
    programs, own = root.parent / "bin", root / "tool"
    programs.mkdir()
    own.write_text("")
    own.chmod(0o755)
    (programs / "linked").symlink_to(own)
    (programs / "fine").write_text("")
    (programs / "fine").chmod(0o755)
    paths = {"PATH": f"{root}:{programs}"}
    assert [find_program(name, paths, str(root)) for name in ("tool", "linked", "fine", "none")] == [
        None, None, str(programs / "fine"), None,
    ]  # fmt: skip
    assert find_program("fine", {"PATH": "bin"}, str(root)) is None


@pytest.mark.parametrize("end", ["read", "left", "error", "cancel"])
async def test_nothing_of_a_program_is_left_whatever_ends_its_block(end: str) -> None:
    """Not even the reader of its errors, whose pipe a process outside of its tree may hold open."""
    program = FakeProgram(b"found", b"complaint", None)

    async def launch(*_: object) -> FakeProgram:
        return program

    async def use() -> None:
        async with run_child(launch, ["x"], "/", {}) as child:
            await asyncio.sleep(0)
            if end == "read":
                program.kill()
                program.stderr.feed_eof()
                assert await child.end() == (137, "complaint")
            elif end == "error":
                raise OSError
            elif end == "cancel":
                await asyncio.get_running_loop().create_future()

    before = asyncio.all_tasks()
    using = start(use())
    await settle_down()
    using.cancel()
    await asyncio.wait([using])
    await settle_down()
    assert program.was_killed
    assert asyncio.all_tasks() == before
    assert (using.cancelled(), end == "error") == (end == "cancel", not using.cancelled() and bool(using.exception()))
