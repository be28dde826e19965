"""Undo on a real disk, after real runs."""

import itertools
import os
from pathlib import Path

import pytest

from holdfast.domain.errors import BadRequest, NotFound
from holdfast.domain.files import UndoneFile, UndoReport, UndoRequest
from holdfast.domain.ids import RunId
from holdfast.domain.store_operations import Operation
from holdfast.workspace.files.undo import undo
from tools.tool_runner import ToolRunner

_ids = itertools.count()


async def undo_last(
    runner: ToolRunner, path: str = "", run: str = "", *, force: bool = False, dry: bool = False
) -> UndoReport:
    engine = runner.harness.workspace.engine

    async def record(operations: tuple[Operation, ...]) -> object:
        return await engine.recorder.put(*operations)

    return await undo(
        UndoRequest(path, RunId(run), force=force, dry_run=dry),
        await runner.files(),
        root=str(runner.root),
        record=record,
        now_ms=engine.clock.now_ms,
        new_id=lambda: f"undo-{next(_ids)}",
    )


def only(report: UndoReport) -> UndoneFile:
    (file,) = report.files
    return file


async def run(runner: ToolRunner, run_id: str, *calls: tuple[str, dict[str, object]]) -> None:
    await runner.start(*calls, run_id=run_id)
    await runner.harness.wait_until_idle()


def writes(path: str, content: str) -> tuple[str, dict[str, object]]:
    return "write", {"file_path": path, "content": content}


async def test_undo_reverts_a_file_step_by_step(runner: ToolRunner) -> None:
    await runner.call_ok("view", file_path="a.txt")
    await runner.call_ok("edit", file_path="a.txt", old_string="one", new_string="1")
    await runner.call_ok("edit", file_path="a.txt", old_string="two", new_string="2")
    report = await undo_last(runner, "a.txt")
    assert report.is_done
    assert only(report).outcome == "restored"
    assert "-2\n+two" in only(report).diff
    assert runner.read("a.txt") == b"1\ntwo\nthree\n"
    await undo_last(runner, str(runner.root / "a.txt"))
    assert runner.read("a.txt") == b"one\ntwo\nthree\n"
    assert only(await undo_last(runner, "a.txt")).outcome == "unchanged"
    assert [(file.origin, file.restores) for file in await runner.files()][3:] == [("undo", 1), ("undo", 0)]


async def test_undo_of_a_new_file_removes_it(runner: ToolRunner) -> None:
    await runner.call_ok("write", file_path="n.txt", content="x")
    assert only(await undo_last(runner, "n.txt")).outcome == "removed"
    assert runner.names() == ["a.txt"]
    assert (await runner.versions())[-1] == ("n.txt", 2, None)


async def test_undo_of_a_run_reverts_all_its_files(runner: ToolRunner) -> None:
    await runner.call_ok("view", file_path="a.txt")
    arguments: dict[str, object] = {"file_path": "a.txt", "old_string": "one", "new_string": "1"}
    await run(runner, "r1", ("edit", arguments), writes("b.txt", "b"), writes("b.txt", "bb"))
    await run(runner, "r2", writes("c.txt", "c"))
    report = await undo_last(runner, run="r1")
    outcomes = {Path(file.path).name: file.outcome for file in report.files}
    assert outcomes == {"a.txt": "restored", "b.txt": "removed"}
    assert runner.names() == ["a.txt", "c.txt"]
    assert runner.read("a.txt") == b"one\ntwo\nthree\n"
    # Without a run id, the last run that is not undone is meant.
    assert [Path(file.path).name for file in (await undo_last(runner)).files] == ["c.txt"]
    with pytest.raises(NotFound):
        await undo_last(runner)


async def test_one_changed_file_prevents_the_whole_undo(runner: ToolRunner) -> None:
    await run(runner, "r1", writes("b.txt", "b\n"), writes("c.txt", "c\n"))
    runner.write_file("b.txt", b"mine\n")
    before = len(await runner.files())
    report = await undo_last(runner, run="r1")
    assert not report.is_done
    refused = report.files[0]
    assert (refused.outcome, refused.reason) == ("refused", "it has changed since")
    assert "-b\n+mine" in refused.diff
    assert (runner.read("b.txt"), runner.read("c.txt")) == (b"mine\n", b"c\n")
    assert len(await runner.files()) == before
    assert (await undo_last(runner, run="r1", force=True)).is_done
    assert runner.names() == ["a.txt"]
    # The previous content is not lost: it is a version.
    assert "mine\n" in [content for _, _, content in await runner.versions()]


async def test_dry_run_changes_nothing(runner: ToolRunner) -> None:
    await run(runner, "r1", writes("b.txt", "b\n"))
    report = await undo_last(runner, run="r1", dry=True)
    assert not report.is_done
    assert only(report).outcome == "removed"
    assert runner.read("b.txt") == b"b\n"


async def test_undo_keeps_encoding_line_endings_and_mode(runner: ToolRunner) -> None:
    path = runner.write_file("d.txt", b"\xef\xbb\xbfa\r\nb\r\n")
    path.chmod(0o640)
    await runner.call_ok("view", file_path="d.txt")
    await runner.call_ok("edit", file_path="d.txt", old_string="b", new_string="c")
    await undo_last(runner, "d.txt")
    assert runner.read("d.txt") == b"\xef\xbb\xbfa\r\nb\r\n"
    assert path.stat().st_mode & 0o777 == 0o640


async def test_undo_requires_a_new_view_before_the_next_edit(runner: ToolRunner) -> None:
    await runner.call_ok("write", file_path="b.txt", content="1")
    await runner.call_ok("write", file_path="b.txt", content="2")
    await undo_last(runner, "b.txt")
    assert "changed since" in await runner.call_error("write", file_path="b.txt", content="3")


async def test_undo_refuses_a_link_at_the_path(runner: ToolRunner) -> None:
    await runner.call_ok("write", file_path="b.txt", content="1")
    await runner.call_ok("write", file_path="b.txt", content="2")
    (runner.root / "b.txt").unlink()
    os.symlink("../secret.txt", runner.root / "b.txt")
    with pytest.raises(BadRequest, match="link"):
        await undo_last(runner, str(runner.root / "b.txt"), force=True)
    assert runner.read("../secret.txt") == b"secret"


async def test_empty_file_and_missing_file_are_distinguished(runner: ToolRunner) -> None:
    """Neither has text."""
    await runner.call_ok("write", file_path="new.txt", content="")
    assert only(await undo_last(runner, "new.txt", dry=True)).outcome == "removed"
    runner.write_file("old.txt", b"")
    await runner.call_ok("view", file_path="old.txt")
    await runner.call_ok("write", file_path="old.txt", content="x")
    assert only(await undo_last(runner, "old.txt")).outcome == "restored"
    assert runner.read("old.txt") == b""
    # The file that was written empty was removed from outside: that is a change.
    (runner.root / "new.txt").unlink()
    assert only(await undo_last(runner, "new.txt")).outcome == "unchanged"
    await runner.call_ok("write", file_path="new.txt", content="y")
    await runner.call_ok("write", file_path="new.txt", content="")
    (runner.root / "new.txt").unlink()
    refused = only(await undo_last(runner, "new.txt"))
    assert (refused.outcome, refused.reason) == ("refused", "it was removed since")
    assert only(await undo_last(runner, "new.txt", force=True)).outcome == "restored"
    assert runner.read("new.txt") == b"y"


async def test_undo_of_a_reverted_file_adds_no_version(runner: ToolRunner) -> None:
    await run(runner, "r1", writes("b.txt", "b\n"), writes("c.txt", "c\n"))
    (runner.root / "b.txt").unlink()
    before = len(await runner.files())
    report = await undo_last(runner, run="r1")
    assert [(Path(file.path).name, file.outcome) for file in report.files] == [
        ("b.txt", "unchanged"),
        ("c.txt", "removed"),
    ]
    assert report.is_done
    added = (await runner.files())[before:]
    assert [(Path(file.path).name, file.origin, file.restores) for file in added] == [("c.txt", "undo", 0)]
    assert (await undo_last(runner, run="r1")).is_done
    assert len(await runner.files()) == before + 1


async def test_outside_change_becomes_a_version(runner: ToolRunner) -> None:
    await run(runner, "r1", writes("b.txt", "b\n"))
    runner.write_file("b.txt", b"mine\n")
    await undo_last(runner, "b.txt", force=True)
    added = [(file.origin, file.content, file.is_missing, file.restores, file.run_id) for file in await runner.files()]
    assert added[2:] == [("outside", "mine\n", False, -1, ""), ("undo", "", True, 0, "")]


async def test_undo_does_not_overwrite_binary_content(runner: ToolRunner) -> None:
    """The history could not restore it, so that `force` does not apply either."""
    await runner.call_ok("write", file_path="b.txt", content="1")
    runner.write_file("b.txt", b"\0\1")
    refused = only(await undo_last(runner, "b.txt", force=True))
    assert (refused.outcome, refused.reason) == (
        "refused",
        "it has changed since and is not a text file: move it away first",
    )
    assert runner.read("b.txt") == b"\0\1"


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5_000])
async def test_invalid_path_is_refused(runner: ToolRunner, path: str) -> None:
    await runner.call_ok("write", file_path="b.txt", content="1")
    with pytest.raises((BadRequest, NotFound)):
        await undo_last(runner, path or " ")
