"""Taking changes back on a real disk, after real runs."""

import itertools
import os
from pathlib import Path

import pytest

from holdfast.domain.errors import BadRequest, NotFound
from holdfast.domain.files import UndoneFile, UndoReport, UndoRequest
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import Operation
from holdfast.workspace.files.undo import undo
from tools.desk import Desk

_ids = itertools.count()


async def take_back(desk: Desk, path: str = "", run: str = "", *, force: bool = False, dry: bool = False) -> UndoReport:
    engine = desk.harness.workspace.engine

    async def record(operations: tuple[Operation, ...]) -> object:
        return await engine.recorder.put(*operations)

    return await undo(
        UndoRequest(path, RunId(run), force=force, dry_run=dry),
        await desk.files(),
        root=str(desk.root),
        record=record,
        now_ms=engine.clock.now_ms,
        new_id=lambda: f"undo-{next(_ids)}",
    )


def only(report: UndoReport) -> UndoneFile:
    (file,) = report.files
    return file


async def run(desk: Desk, run_id: str, *calls: tuple[str, dict[str, object]]) -> None:
    await desk.begin(*calls, run_id=run_id)
    await desk.harness.quiet()


def writes(path: str, content: str) -> tuple[str, dict[str, object]]:
    return "write", {"file_path": path, "content": content}


async def test_a_file_goes_back_step_by_step(desk: Desk) -> None:
    await desk.does("view", file_path="a.txt")
    await desk.does("edit", file_path="a.txt", old_string="one", new_string="1")
    await desk.does("edit", file_path="a.txt", old_string="two", new_string="2")
    report = await take_back(desk, "a.txt")
    assert report.is_done
    assert only(report).outcome == "restored"
    assert "-2\n+two" in only(report).diff
    assert desk.read("a.txt") == b"1\ntwo\nthree\n"
    await take_back(desk, str(desk.root / "a.txt"))
    assert desk.read("a.txt") == b"one\ntwo\nthree\n"
    assert only(await take_back(desk, "a.txt")).outcome == "unchanged"
    assert [(file.origin, file.restores) for file in await desk.files()][3:] == [("undo", 1), ("undo", 0)]


async def test_a_new_file_is_removed(desk: Desk) -> None:
    await desk.does("write", file_path="n.txt", content="x")
    assert only(await take_back(desk, "n.txt")).outcome == "removed"
    assert desk.names() == ["a.txt"]
    assert (await desk.versions())[-1] == ("n.txt", 2, None)


async def test_a_run_goes_back_in_all_its_files(desk: Desk) -> None:
    await desk.does("view", file_path="a.txt")
    arguments: dict[str, object] = {"file_path": "a.txt", "old_string": "one", "new_string": "1"}
    await run(desk, "r1", ("edit", arguments), writes("b.txt", "b"), writes("b.txt", "bb"))
    await run(desk, "r2", writes("c.txt", "c"))
    report = await take_back(desk, run="r1")
    outcomes = {Path(file.path).name: file.outcome for file in report.files}
    assert outcomes == {"a.txt": "restored", "b.txt": "removed"}
    assert desk.names() == ["a.txt", "c.txt"]
    assert desk.read("a.txt") == b"one\ntwo\nthree\n"
    # Without a word it is the last run that still counts.
    assert [Path(file.path).name for file in (await take_back(desk)).files] == ["c.txt"]
    with pytest.raises(NotFound):
        await take_back(desk)


async def test_one_file_that_changed_stops_the_whole(desk: Desk) -> None:
    await run(desk, "r1", writes("b.txt", "b\n"), writes("c.txt", "c\n"))
    desk.put("b.txt", b"mine\n")
    before = len(await desk.files())
    report = await take_back(desk, run="r1")
    assert not report.is_done
    refused = report.files[0]
    assert (refused.outcome, refused.reason) == ("refused", "it has changed since")
    assert "-b\n+mine" in refused.diff
    assert (desk.read("b.txt"), desk.read("c.txt")) == (b"mine\n", b"c\n")
    assert len(await desk.files()) == before
    assert (await take_back(desk, run="r1", force=True)).is_done
    assert desk.names() == ["a.txt"]
    # What was there is not lost: it is a version.
    assert "mine\n" in [content for _, _, content in await desk.versions()]


async def test_a_plan_changes_nothing(desk: Desk) -> None:
    await run(desk, "r1", writes("b.txt", "b\n"))
    report = await take_back(desk, run="r1", dry=True)
    assert not report.is_done
    assert only(report).outcome == "removed"
    assert desk.read("b.txt") == b"b\n"


async def test_form_and_mode_are_kept(desk: Desk) -> None:
    path = desk.put("d.txt", b"\xef\xbb\xbfa\r\nb\r\n")
    path.chmod(0o640)
    await desk.does("view", file_path="d.txt")
    await desk.does("edit", file_path="d.txt", old_string="b", new_string="c")
    await take_back(desk, "d.txt")
    assert desk.read("d.txt") == b"\xef\xbb\xbfa\r\nb\r\n"
    assert path.stat().st_mode & 0o777 == 0o640


async def test_after_an_undo_the_model_has_to_look_again(desk: Desk) -> None:
    await desk.does("write", file_path="b.txt", content="1")
    await desk.does("write", file_path="b.txt", content="2")
    await take_back(desk, "b.txt")
    assert "changed since" in await desk.fails("write", file_path="b.txt", content="3")


async def test_a_link_in_its_place_is_refused(desk: Desk) -> None:
    await desk.does("write", file_path="b.txt", content="1")
    await desk.does("write", file_path="b.txt", content="2")
    (desk.root / "b.txt").unlink()
    os.symlink("../secret.txt", desk.root / "b.txt")
    with pytest.raises(BadRequest, match="link"):
        await take_back(desk, str(desk.root / "b.txt"), force=True)
    assert desk.read("../secret.txt") == b"secret"


async def test_an_empty_file_is_not_a_missing_one(desk: Desk) -> None:
    """Both have no text."""
    await desk.does("write", file_path="new.txt", content="")
    assert only(await take_back(desk, "new.txt", dry=True)).outcome == "removed"
    desk.put("old.txt", b"")
    await desk.does("view", file_path="old.txt")
    await desk.does("write", file_path="old.txt", content="x")
    assert only(await take_back(desk, "old.txt")).outcome == "restored"
    assert desk.read("old.txt") == b""
    # Somebody has removed what was written empty: that is a change.
    (desk.root / "new.txt").unlink()
    assert only(await take_back(desk, "new.txt")).outcome == "unchanged"
    await desk.does("write", file_path="new.txt", content="y")
    await desk.does("write", file_path="new.txt", content="")
    (desk.root / "new.txt").unlink()
    refused = only(await take_back(desk, "new.txt"))
    assert (refused.outcome, refused.reason) == ("refused", "it was removed since")
    assert only(await take_back(desk, "new.txt", force=True)).outcome == "restored"
    assert desk.read("new.txt") == b"y"


async def test_what_is_back_already_gets_no_version(desk: Desk) -> None:
    await run(desk, "r1", writes("b.txt", "b\n"), writes("c.txt", "c\n"))
    (desk.root / "b.txt").unlink()
    before = len(await desk.files())
    report = await take_back(desk, run="r1")
    assert [(Path(file.path).name, file.outcome) for file in report.files] == [
        ("b.txt", "unchanged"),
        ("c.txt", "removed"),
    ]
    assert report.is_done
    added = (await desk.files())[before:]
    assert [(Path(file.path).name, file.origin, file.restores) for file in added] == [("c.txt", "undo", 0)]
    assert (await take_back(desk, run="r1")).is_done
    assert len(await desk.files()) == before + 1


async def test_a_change_from_outside_is_a_version_of_its_own(desk: Desk) -> None:
    await run(desk, "r1", writes("b.txt", "b\n"))
    desk.put("b.txt", b"mine\n")
    await take_back(desk, "b.txt", force=True)
    added = [(file.origin, file.content, file.is_missing, file.restores, file.run_id) for file in await desk.files()]
    assert added[2:] == [("outside", "mine\n", False, -1, ""), ("undo", "", True, 0, "")]


async def test_what_is_no_text_is_not_overwritten(desk: Desk) -> None:
    """No history could give it back, not even if somebody insists."""
    await desk.does("write", file_path="b.txt", content="1")
    desk.put("b.txt", b"\0\1")
    refused = only(await take_back(desk, "b.txt", force=True))
    assert (refused.outcome, refused.reason) == ("refused", "it has changed since and is no text: move it away first")
    assert desk.read("b.txt") == b"\0\1"


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5_000])
async def test_a_path_that_is_none_is_refused(desk: Desk, path: str) -> None:
    await desk.does("write", file_path="b.txt", content="1")
    with pytest.raises((BadRequest, NotFound)):
        await take_back(desk, path or " ")
