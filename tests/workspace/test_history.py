"""Undo planning: the version to which a file returns, without a disk; and an undo whose caller is cancelled."""

import asyncio
import os
from itertools import count
from pathlib import Path

import pytest

from holdfast.domain.errors import NotFound
from holdfast.domain.files import FileVersion, Origin, UndoRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.store_operations import Operation
from holdfast.testing.gates import Gate, start
from holdfast.workspace.files.undo import FileRestore, last_run, plan, undo


class FileHistory:
    """The history of some files, built version by version."""

    def __init__(self) -> None:
        self.versions: list[FileVersion] = []

    def add(
        self, path: str, content: str | None, run: str = "", origin: Origin = "tool", restores: int = -1
    ) -> "FileHistory":
        number = sum(version.path == path for version in self.versions)
        at = len(self.versions)
        self.versions.append(
            FileVersion(
                f"v{at}", SessionId("s"), path, content or "", number, at, at,
                run_id=RunId(run), origin=origin, is_missing=content is None, restores=restores,
            )
        )  # fmt: skip
        return self

    def found(self, path: str, content: str | None, run: str = "r") -> "FileHistory":
        return self.add(path, content, run, "outside")

    def undo(self, path: str) -> FileRestore:
        """Plan the undo of the last change of a file, and record it."""
        (item,) = plan(self.versions, path=path)
        if not item.is_done:
            content = None if item.target.is_missing else item.target.content
            self.add(path, content, origin="undo", restores=item.target.version)
        return item


def test_undo_restores_previous_version() -> None:
    story = FileHistory().found("a", "0").add("a", "1", "r")
    item = story.undo("a")
    assert (item.expected.content, item.target.content, item.reason) == ("1", "0", "")


def test_each_undo_goes_one_change_further() -> None:
    story = FileHistory().found("a", None).add("a", "1", "r").add("a", "2", "r").add("a", "3", "q")
    assert [story.undo("a").target.content for _ in range(3)] == ["2", "1", ""]
    assert story.versions[-1].is_missing
    assert story.undo("a").is_done
    assert len(story.versions) == 7


def test_changes_after_undo() -> None:
    story = FileHistory().found("a", "0").add("a", "1", "r").add("a", "2", "r")
    story.undo("a")
    story.add("a", "3", "q")
    # Before 3 the file contained 1, by the undo: undoing 3 leads there, and then to 0.
    assert [story.undo("a").target.content for _ in range(2)] == ["1", "0"]
    assert story.undo("a").is_done


def test_undo_keeps_changes_of_others() -> None:
    story = FileHistory().found("a", "0").add("a", "1", "r").found("a", "theirs").add("a", "2", "q")
    assert story.undo("a").reason == ""
    item = plan(story.versions, path="a")[0]
    assert item.target.content == "0"
    assert "outside" in item.reason


def test_run_is_undone_as_a_whole() -> None:
    story = (
        FileHistory().found("a", "0").add("a", "1", "r1").add("a", "2", "r2").add("a", "3", "r2").found("b", None, "r2")
    )
    story.add("b", "x", "r2").found("c", "c").add("c", "d", "r1")
    returns = {item.path: item for item in plan(story.versions, run_id=RunId("r2"))}
    assert {path: item.target.content for path, item in returns.items()} == {"a": "1", "b": ""}
    assert returns["b"].target.is_missing
    assert not any(item.reason for item in returns.values())
    assert [item.path for item in plan(story.versions, path="a", run_id=RunId("r2"))] == ["a"]


def test_later_changes_of_other_runs_prevent_undo() -> None:
    story = FileHistory().found("a", "0").add("a", "1", "r1").add("a", "2", "r2")
    (item,) = plan(story.versions, run_id=RunId("r1"))
    assert "others changed it" in item.reason
    story.undo("a")
    (item,) = plan(story.versions, run_id=RunId("r1"))
    assert (item.reason, item.target.content) == ("", "0")


def test_undone_run_stays_undone() -> None:
    story = FileHistory().found("a", "0").add("a", "1", "r1")
    story.undo("a")
    assert plan(story.versions, run_id=RunId("r1"))[0].is_done


def test_last_run_excludes_undone_runs() -> None:
    story = FileHistory().found("a", "0").add("a", "1", "r1").found("b", "0").add("b", "1", "r2")
    assert last_run(story.versions) == "r2"
    story.undo("b")
    assert last_run(story.versions) == "r1"
    story.undo("a")
    with pytest.raises(NotFound):
        last_run(story.versions)


def test_unknown_files_and_runs() -> None:
    story = FileHistory().found("a", "0").add("a", "1", "r1")
    for path, run in (("b", ""), ("", "r9"), ("b", "r1")):
        with pytest.raises(NotFound):
            plan(story.versions, path=path, run_id=RunId(run))


@pytest.mark.parametrize("step", [0, 1])
async def test_an_undo_whose_caller_is_cancelled_is_whole(tmp_path: Path, step: int) -> None:
    """A client that disconnects during either record leaves neither half an undo nor a temporary file."""
    (tmp_path / "a").write_text("1")
    story = FileHistory().found(str(tmp_path / "a"), "0").add(str(tmp_path / "a"), "1", "r")
    gates, recorded, ids = [Gate(), Gate()], list[tuple[Operation, ...]](), count()

    async def record(operations: tuple[Operation, ...]) -> None:
        gate = gates[len(recorded)]
        recorded.append(operations)
        await gate()

    caller = start(
        undo(
            UndoRequest(),
            story.versions,
            root=str(tmp_path),
            record=record,
            now_ms=lambda: 0,
            new_id=lambda: str(next(ids)),
        )
    )
    for number, gate in enumerate(gates):
        await gate.reached.wait()
        if number == step:
            caller.cancel()
            await asyncio.sleep(0)
        gate.open()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert len(recorded) == 2
    assert (os.listdir(tmp_path), (tmp_path / "a").read_text()) == (["a"], "0")
