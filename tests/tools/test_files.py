"""ls, view and write on real files, each through a real run."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.helpers import PATIENT, results_of
from holdfast.core import Parts, SystemClock, Workspace, open_workspace
from holdfast.domain.events import FileEvent
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ToolResult
from holdfast.domain.models import ModelRequest
from holdfast.engine.ports import Outlet
from holdfast.providers.scripted import Call, Say, ScriptedModel, Step
from holdfast.testing.harness import FixedModels, Tape, World, counting_ids
from holdfast.testing.memory import MemoryLedger
from holdfast.tools.registry import BuiltinTools


class Desk:
    """A directory, a session that works in it, and the real clock, for the times of real files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._next = Call("none")
        self._worlds: list[World] = []

    async def open(self) -> "Desk":
        tapes: list[Tape] = []

        def tap(outlet: Outlet) -> Outlet:
            tapes.append(Tape(outlet))
            return tapes[0]

        ledger = MemoryLedger()
        model = FixedModels(ScriptedModel(self._script))
        parts = Parts(ledger, model, BuiltinTools(), PATIENT, SystemClock(), counting_ids(), tap)
        workspace: Workspace = await open_workspace(str(self.root), parts)
        session = await workspace.sessions.create("Test")
        self._worlds = [World(workspace, tapes[0], session.id, ledger)]
        return self

    @property
    def world(self) -> World:
        return self._worlds[0]

    def _script(self, request: ModelRequest) -> Step:
        return Step((Say("done"),)) if request.messages[-1].role == "tool" else Step((self._next,))

    async def call(self, tool: str, **arguments: object) -> ToolResult:
        """What the tool answers, in a run of its own."""
        return await self.call_in(None, tool, arguments)

    async def call_in(self, session: SessionId | None, tool: str, arguments: dict[str, object]) -> ToolResult:
        self._next = Call(tool, json.dumps(arguments))
        run = await self.world.prompt("go", session=session)
        await self.world.workspace.engine.until_quiet(session or self.world.session)
        assert self.world.end_of(run.run_id).outcome == "completed"
        return results_of(await self.world.messages(session))[-1]

    async def fails(self, tool: str, **arguments: object) -> str:
        result = await self.call(tool, **arguments)
        assert result.is_error, result.content
        return result.content

    async def versions(self) -> list[tuple[str, int, str]]:
        files: Sequence[FileVersion] = await self.world.ledger.files(self.world.workspace.record.id, self.world.session)
        return [(file.path.removeprefix(f"{self.root}/"), file.version, file.content) for file in files]

    async def marks(self) -> Sequence[ReadMark]:
        return await self.world.ledger.read_marks(self.world.workspace.record.id, self.world.session)


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    return await Desk(root).open()


def read(desk: Desk, name: str) -> bytes:
    return (desk.root / name).read_bytes()


def put(desk: Desk, name: str, content: bytes) -> None:
    (desk.root / name).write_bytes(content)


# ls


async def test_ls_lists_names(desk: Desk) -> None:
    (desk.root / "b").mkdir()
    put(desk, "b/c.txt", b"")
    put(desk, ".hidden", b"")
    assert (await desk.call("ls")).content == "a.txt\nb/"
    assert (await desk.call("ls", path="b")).content == "c.txt"
    assert (await desk.call("ls", path=str(desk.root / "b"))).content == "c.txt"


async def test_ls_of_nothing(desk: Desk) -> None:
    (desk.root / "b").mkdir()
    assert "empty" in (await desk.call("ls", path="b")).content


async def test_ls_stops_somewhere(desk: Desk) -> None:
    for number in range(203):
        put(desk, f"f{number:03}", b"")
    lines = (await desk.call("ls")).content.splitlines()
    assert len(lines) == 201
    assert "4 more" in lines[-1]


@pytest.mark.parametrize("path", ["a.txt", "nothing"])
async def test_ls_wants_a_directory(desk: Desk, path: str) -> None:
    assert path in await desk.fails("ls", path=path)


# view


async def test_view_numbers_lines(desk: Desk) -> None:
    result = await desk.call("view", file_path="a.txt")
    assert result.content == "<file>\n     1|one\n     2|two\n     3|three\n</file>"
    assert json.loads(result.metadata) == {"file_path": str(desk.root / "a.txt"), "content": "one\ntwo\nthree"}


async def test_view_shows_a_section(desk: Desk) -> None:
    result = await desk.call("view", file_path="a.txt", offset=1, limit=1)
    assert result.content == "<file>\n     2|two\n(1 more lines)\n</file>"
    assert "<file>\n</file>" in (await desk.call("view", file_path="a.txt", offset=9)).content
    assert "1|one" in (await desk.call("view", file_path="a.txt", offset=-5)).content


async def test_view_shows_200_lines_unless_told_otherwise(desk: Desk) -> None:
    put(desk, "long.txt", b"x\n" * 250)
    assert "(50 more lines)" in (await desk.call("view", file_path="long.txt")).content
    assert "250|x" in (await desk.call("view", file_path="long.txt", limit=500)).content


async def test_view_cuts_long_lines(desk: Desk) -> None:
    put(desk, "wide.txt", b"x" * 3_000)
    assert f"|{'x' * 2_000}...\n" in (await desk.call("view", file_path="wide.txt")).content


async def test_view_refuses_what_is_too_large(desk: Desk) -> None:
    put(desk, "big.txt", b"x\n" * (100 * 1024))
    assert not (await desk.call("view", file_path="big.txt")).is_error
    put(desk, "big.txt", b"x\n" * (100 * 1024) + b"x")
    assert "larger" in await desk.fails("view", file_path="big.txt")


async def test_view_refuses_what_is_no_text(desk: Desk) -> None:
    put(desk, "a.bin", b"\x80\x00\xff")
    assert "UTF-8" in await desk.fails("view", file_path="a.bin")
    assert await desk.marks() == []


@pytest.mark.parametrize("path", ["nothing.txt", "."])
async def test_view_wants_a_file(desk: Desk, path: str) -> None:
    assert path in await desk.fails("view", file_path=path)


async def test_view_marks_what_was_read(desk: Desk) -> None:
    before = time.time_ns() // 1_000_000
    await desk.call("view", file_path="./a.txt")
    (mark,) = await desk.marks()
    assert mark.path == str(desk.root / "a.txt")
    assert before <= mark.read_at <= time.time_ns() // 1_000_000


# write


async def test_write_makes_a_file_and_its_directories(desk: Desk) -> None:
    result = await desk.call("write", file_path="new/deep/b.txt", content="é\n")
    assert not result.is_error
    assert read(desk, "new/deep/b.txt") == "é\n".encode()
    assert await desk.versions() == [("new/deep/b.txt", 0, "é\n")]
    assert (json.loads(result.metadata)["additions"], json.loads(result.metadata)["removals"]) == (1, 0)


async def test_write_wants_a_file_to_be_read_first(desk: Desk) -> None:
    assert "view" in await desk.fails("write", file_path="a.txt", content="x")
    assert read(desk, "a.txt") == b"one\ntwo\nthree\n"
    assert await desk.versions() == []


async def test_write_after_view(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    result = await desk.call("write", file_path=str(desk.root / "a.txt"), content="one\n2\nthree\n")
    assert not result.is_error
    assert read(desk, "a.txt") == b"one\n2\nthree\n"
    metadata = json.loads(result.metadata)
    assert (metadata["additions"], metadata["removals"]) == (1, 1)
    assert "-two\n+2" in metadata["diff"]


async def test_reading_counts_for_its_own_session_only(desk: Desk) -> None:
    other = (await desk.world.workspace.sessions.create("Other")).id
    await desk.call_in(other, "view", {"file_path": "a.txt"})
    assert "view" in await desk.fails("write", file_path="a.txt", content="x")


async def test_write_refuses_a_file_that_changed_since(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    put(desk, "a.txt", b"somebody else was here")
    soon = time.time() + 10
    os.utime(desk.root / "a.txt", (soon, soon))
    assert "changed" in await desk.fails("write", file_path="a.txt", content="x")
    assert read(desk, "a.txt") == b"somebody else was here"
    assert await desk.versions() == []


async def test_write_refuses_what_is_there_already(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    assert "already" in await desk.fails("write", file_path="a.txt", content="one\ntwo\nthree\n")
    assert await desk.versions() == []


async def test_write_may_follow_write(desk: Desk) -> None:
    """What was written is known: it need not be read again."""
    for content in ("1", "2", "3"):
        assert not (await desk.call("write", file_path="b.txt", content=content)).is_error
    assert read(desk, "b.txt") == b"3"


async def test_write_keeps_the_old_and_the_new_content(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    await desk.call("write", file_path="a.txt", content="new")
    assert await desk.versions() == [("a.txt", 0, "one\ntwo\nthree\n"), ("a.txt", 1, "new")]
    told = [event.payload.payload for _, event in desk.world.tape.events if isinstance(event, FileEvent)]
    assert [file.version for file in told] == [0, 1]


async def test_versions_have_ids_of_their_own(desk: Desk) -> None:
    await desk.call("view", file_path="a.txt")
    await desk.call("write", file_path="a.txt", content="ONE\nTWO\nTHREE\n")
    files = await desk.world.ledger.files(desk.world.workspace.record.id, desk.world.session)
    assert len({file.id for file in files}) == len(files) == 2


async def test_write_keeps_line_ends(desk: Desk) -> None:
    """Windows line ends are kept: in the file, in its history, and when contents are compared."""
    put(desk, "dos.txt", b"a\r\nb\r\n")
    await desk.call("view", file_path="dos.txt")
    assert "already" in await desk.fails("write", file_path="dos.txt", content="a\r\nb\r\n")
    await desk.call("write", file_path="dos.txt", content="a\r\nc\r\n")
    assert read(desk, "dos.txt") == b"a\r\nc\r\n"
    assert await desk.versions() == [("dos.txt", 0, "a\r\nb\r\n"), ("dos.txt", 1, "a\r\nc\r\n")]
    assert not (await desk.call("write", file_path="dos.txt", content="a\nc\n")).is_error
    assert read(desk, "dos.txt") == b"a\nc\n"


async def test_write_refuses_a_directory(desk: Desk) -> None:
    (desk.root / "b").mkdir()
    assert "directory" in await desk.fails("write", file_path="b", content="x")


async def test_write_does_not_touch_what_is_no_text(desk: Desk) -> None:
    put(desk, "a.bin", b"\x80\x00\xff")
    await desk.call("view", file_path="a.bin")
    await desk.fails("write", file_path="a.bin", content="x")
    assert read(desk, "a.bin") == b"\x80\x00\xff"


async def test_write_through_a_file_is_an_error(desk: Desk) -> None:
    """A directory on the way that is a file: the tool breaks, the turn does not."""
    await desk.fails("write", file_path="a.txt/b.txt", content="x")
    assert await desk.versions() == []


# Where they may go


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "b/../../secret.txt", "link.txt", "dir/secret.txt"])
async def test_nothing_leaves_the_workspace(desk: Desk, path: str) -> None:
    os.symlink("../secret.txt", desk.root / "link.txt")
    os.symlink("..", desk.root / "dir")
    assert "outside" in await desk.fails("view", file_path=path)
    assert "outside" in await desk.fails("write", file_path=path, content="x")
    assert "outside" in await desk.fails("ls", path=path)
    assert read(desk, "../secret.txt") == b"secret"
    assert (await desk.marks(), await desk.versions()) == ([], [])


async def test_a_link_to_nothing_outside_is_outside(desk: Desk) -> None:
    os.symlink("../new.txt", desk.root / "link.txt")
    assert "outside" in await desk.fails("write", file_path="link.txt", content="x")
    assert "new.txt" not in os.listdir(desk.root.parent)


async def test_a_link_inside_is_followed(desk: Desk) -> None:
    os.symlink("a.txt", desk.root / "link.txt")
    await desk.call("view", file_path="link.txt")
    await desk.call("write", file_path="a.txt", content="x")
    assert read(desk, "link.txt") == b"x"
    assert os.readlink(desk.root / "link.txt") == "a.txt"


async def test_a_neighbour_with_a_longer_name_is_outside(desk: Desk) -> None:
    (desk.root.parent / "project2").mkdir()
    assert "outside" in await desk.fails("ls", path="../project2")


# Arguments


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("view", {"path": "a.txt"}, "path"),
        ("view", {}, "file_path"),
        ("view", {"file_path": "a.txt", "offset": "3"}, "offset"),
        ("write", {"file_path": "a.txt"}, "content"),
        ("write", {"file_path": "a.txt", "content": "x", "mode": 1}, "mode"),
        ("ls", {"ignore": []}, "ignore"),
    ],
)
async def test_wrong_arguments_are_explained(desk: Desk, tool: str, arguments: dict[str, object], named: str) -> None:
    explanation = await desk.fails(tool, **arguments)
    assert named in explanation
    assert tool in explanation


async def test_each_tool_tells_a_model_how_to_call_it() -> None:
    for tool in await BuiltinTools().current():
        schema = json.loads(tool.spec.parameters)
        assert schema["type"] == "object"
        assert "file_path" in schema["properties"] or "path" in schema["properties"]
        assert len(tool.spec.description) > 40
