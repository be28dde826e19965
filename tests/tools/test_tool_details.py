"""Results and permission requests of the read tools in edge cases."""

import base64
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.domain.settings import ToolSettings
from holdfast.domain.store_operations import MarkRead
from holdfast.tools import agent, view
from holdfast.tools.agent import Agent
from holdfast.tools.glob import Glob
from holdfast.tools.grep import Grep
from holdfast.tools.registry import BuiltinTools, ToolNeeds
from holdfast.workspace.files.safe_open import digest_of
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.piped_process import Child
from holdfast.workspace.search.search import FileMatches, GrepRequest, Match, Searcher, SearchScope, TextMatches
from tools.direct_calls import DirectCaller
from trials.sandbox_escapes import git
from workspace.test_search_programs import FakeProgram

PNG = b"\x89PNG\r\n\x1a\n and more"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    return root


async def caller(root: Path, needs: ToolNeeds | None = None) -> DirectCaller:
    return DirectCaller(root, await BuiltinTools(needs).current())


# view


@pytest.mark.parametrize(
    ("content", "arguments", "shown"),
    [
        ("", {}, ["(the file is empty)"]),
        ("", {"offset": 3}, ["(the file is empty)"]),
        ("\n", {}, ["     1|"]),
        ("a", {}, ["     1|a"]),
        ("a\n", {"offset": 1}, ["(the file has only 1 lines)"]),
        ("a\n\n", {}, ["     1|a", "     2|"]),
        ("a\nb\n", {"limit": 1}, ["     1|a", "(1 more lines; continue with offset=1)"]),
        ("a\nb\nc", {"offset": 1, "limit": 1}, ["     2|b", "(1 more lines; continue with offset=2)"]),
        ("a\nb\n", {"offset": 1, "limit": 1}, ["     2|b"]),
        ("a\nb\n", {"limit": 0}, ["     1|a", "(1 more lines; continue with offset=1)"]),
        ("a\nb\n", {"offset": -1, "limit": -1}, ["     1|a", "(1 more lines; continue with offset=1)"]),
    ],
)
async def test_remarks_beside_the_lines_of_a_view(
    root: Path, content: str, arguments: dict[str, object], shown: list[str]
) -> None:
    (root / "f").write_text(content)
    call = await caller(root)
    assert (await call.text("view", file_path="f", **arguments)).split("\n") == ["<file>", *shown, "</file>"]


async def test_viewed_image_is_marked_as_read(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub/p.png").write_bytes(PNG)
    call = await caller(root)
    call.takes_images = True
    outcome = await call("view", file_path="sub/p.png")
    assert base64.b64decode(outcome.data) == PNG
    assert json.loads(outcome.metadata) == {"file_path": str(root / "sub/p.png"), "content": ""}
    (operation,) = call.operations
    assert isinstance(operation, MarkRead)
    mark = operation.mark
    assert (mark.session_id, mark.path) == (call.session_id, str(root / "sub/p.png"))
    assert (mark.read_at, mark.digest) == (call.now, digest_of(PNG))


async def test_the_lines_of_an_enormous_file_are_bounded_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large `limit` of the model does not make the server hold the whole of a huge file."""
    (root / "f").write_text("".join(f"{number:05}\n" for number in range(1, 101)))
    monkeypatch.setattr(view, "_MAX_FILE_SIZE", 60)
    call = await caller(root)
    shown = (await call.text("view", file_path="f", limit=1_000)).split("\n")
    assert shown == [
        "<file>",
        *(f"{number:>6}|{number:05}" for number in range(1, 12)),
        "(the file continues)",
        "</file>",
    ]
    assert await call.text("view", file_path="f", offset=10**12) == "<file>\n(the file ends before this)\n</file>"


async def test_approval_free_directories_apply_only_outside_the_workspace(root: Path) -> None:
    """Inside the workspace a deny rule still applies, even if the workspace contains skills."""
    outside = root.parent / "skills"
    outside.mkdir()
    for folder in (root, outside, root.parent):
        (folder / "f").write_text("x\n")
    call = await caller(root, ToolNeeds(readable=lambda: [str(outside), str(root)]))
    for path, asked in (("f", 1), (str(outside / "f"), 0), (str(root.parent / "f"), 1)):
        call.permits.clear()
        assert "1|x" in await call.text("view", file_path=path)
        assert [permit.path for permit in call.permits] == [os.path.join(root, path)] * asked


# agent


def test_agent_descriptions_are_omitted_when_the_list_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is bounded as a whole; a list that is too long contains only names."""
    monkeypatch.setattr(agent, "_MAX_LIST_LENGTH", 60)
    offered = [("a", "x" * 40), ("b", "x" * 40), ("c", "y" * 20), ("d", " z\n z ")]
    tool = Agent(lambda: offered)
    assert tool.spec.description.splitlines()[-4:] == [f"- a: {'x' * 40}", "- b", "- c", "- d: z z"]
    assert tool.spec is tool.spec
    offered = [("e", "")]
    assert tool.spec.description.splitlines()[-1] == "- e: "
    offered = []
    assert "- e" not in tool.spec.description


# grep and glob


class FakeSearch(Searcher):
    """Returns prepared results and records the search parameters."""

    def __init__(self, text: TextMatches | None = None, files: FileMatches | None = None) -> None:
        super().__init__()
        self.where: list[SearchScope] = []
        self.patterns: list[object] = []
        self._text = text or TextMatches((), is_truncated=False, is_timed_out=False)
        self._files = files or FileMatches((), is_truncated=False, is_timed_out=False)

    async def grep(self, where: SearchScope, ask: GrepRequest) -> TextMatches:
        self.where.append(where)
        self.patterns.append(ask)
        return self._text

    async def files(self, where: SearchScope, pattern: str) -> FileMatches:
        self.where.append(where)
        self.patterns.append(pattern)
        return self._files


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_truncated", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2])
async def test_truncated_and_aborted_searches_are_marked(
    root: Path, count: int, is_truncated: bool, is_late: bool
) -> None:
    """A model must not take a truncated or aborted search for a complete one."""
    matches = tuple(Match("sub/f\n", line, 3, "text") for line in range(1, count + 1))
    paths = tuple(f"f{number}\n" for number in range(count))
    finder = FakeSearch(TextMatches(matches, is_truncated, is_late), FileMatches(paths, is_truncated, is_late))
    call = DirectCaller(root, [Grep(finder), Glob(finder)])
    outcome = await call("grep", pattern="x")
    assert json.loads(outcome.metadata) == {"number_of_matches": count, "truncated": is_truncated or is_late}
    late = "The search was stopped after 5 s: narrow it with path or include."
    if not count:
        assert outcome.content == (f"No matches so far. {late}" if is_late else "No matches found")
    else:
        more = " or more" * (is_truncated or is_late)
        shown = [f"  Line {match.line}, Char 3: text" for match in matches]
        expected = [f"Found {count}{more} match{'es' * (count > 1)}", "", f'"{root}/sub/f\\n":', *shown]
        expected += [
            "",
            "(only the newest files are shown: use a more specific pattern, path or include)",
        ] * is_truncated
        expected += ["", f"({late})"] * is_late
        assert outcome.content.split("\n") == expected
    outcome = await call("glob", pattern="*")
    assert json.loads(outcome.metadata) == {"number_of_files": count, "truncated": is_truncated or is_late}
    lines = outcome.content.split("\n")
    assert len([line for line in lines if line.startswith(f'"{root}/f') and line.endswith('\\n"')]) == count
    assert ("(there are more: use a more specific pattern or path)" in lines) is is_truncated
    assert ("(the search was stopped after 30 s: give a path)" in lines) is is_late
    assert ("No files found" in lines) is (count == 0 and not is_truncated and not is_late)


async def test_search_directory_and_time_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/server")
    (root / "sub").mkdir()
    (root / "sub/f").write_text("")
    finder = FakeSearch(TextMatches((Match("f", 1, 1, "x"),), is_truncated=False, is_timed_out=False))
    settings = ToolSettings()
    call = DirectCaller(root, [Grep(finder, lambda: settings), Glob(finder, lambda: settings)])
    call.environment = {"PATH": "/client", "LANG": "C", "SECRET": "s"}
    assert f"\n{root}/sub/f:\n" in await call.text("grep", pattern="x", path="sub/f")
    await call("glob", pattern=f"{root}/sub/*", path="sub")
    await call("glob", pattern=f"{root}/subject/*", path="sub")
    assert finder.patterns[1:] == ["/*", f"{root}/subject/*"]
    environment = {"PATH": "/client", "LANG": "C"}
    assert finder.where == [
        SearchScope(str(root), f"{root}/sub/f", environment, 5.0, is_file=True),
        SearchScope(str(root), f"{root}/sub", environment, 30.0),
        SearchScope(str(root), f"{root}/sub", environment, 30.0),
    ]
    settings = ToolSettings(grep={"timeout": 2_000_000_000}, glob={"timeout": 3_000_000_000})
    call.environment = {}
    await call("grep", pattern="x")
    await call("glob", pattern="x")
    assert [(where.seconds, where.environment) for where in finder.where[3:]] == [
        (2.0, {"PATH": "/server"}),
        (3.0, {"PATH": "/server"}),
    ]


async def test_searches_use_the_injected_launcher_git_and_limits(root: Path, tmp_path: Path) -> None:
    """The process launcher, the private git, and the user's limits."""
    git("init", "-q", cwd=root)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git") or "")
    started: list[Sequence[str]] = []

    async def start(arguments: Sequence[str], *_: object) -> Child:
        started.append(arguments)
        return FakeProgram(b"", b"", None)

    settings = ToolSettings(grep={"timeout": 1}, glob={"timeout": 1})
    private = PrivateGit(str(tmp_path / "git"))
    call = await caller(root, ToolNeeds(spawn=start, git=private, settings=lambda: settings))
    call.environment = {"PATH": str(programs)}
    for tool, word in (("glob", "ls-files"), ("grep", "grep")):
        assert "stopped after 1e-09 s" in await call.text(tool, pattern="x")
        assert [word in arguments for arguments in started] == [True]
        started.clear()
