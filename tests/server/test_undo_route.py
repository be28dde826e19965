"""The undo route: selection of the session, and refusals."""

from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.domain.errors import BadRequest, NotFound, SessionBusy, UnknownRun
from holdfast.domain.files import UndoReport, UndoRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.server.http.request import Request
from holdfast.server.routes.files import undo_changes
from tools.tool_runner import ToolRunner


class _Open:
    """An open workspace, as the server holds it."""

    def __init__(self, runner: ToolRunner) -> None:
        self.workspace = self.owned = runner.harness.workspace
        self.id = runner.harness.workspace.record.id


NONE = cast(Any, None)


@pytest.fixture
async def runner(tmp_path: Path) -> ToolRunner:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_bytes(b"one\ntwo\nthree\n")
    return await ToolRunner(root).open()


async def request_undo(runner: ToolRunner, **fields: Any) -> UndoReport:  # noqa: ANN401
    opened = cast(Any, _Open(runner))
    call = Request(NONE, NONE, NONE, NONE, {}, {}, UndoRequest(**fields), over_socket=True, open_handle=opened)
    return await undo_changes(call)


async def test_session_of_the_last_change_is_selected(runner: ToolRunner) -> None:
    other = (await runner.harness.workspace.sessions.create("Other")).id
    await runner.call_ok("write", file_path="first.txt", content="1")
    await runner.call_in(other, "write", {"file_path": "second.txt", "content": "2"})
    run = (await runner.files())[0].run_id
    assert (await request_undo(runner, path=str(runner.root / "first.txt"), dry_run=True)).files[0].outcome == "removed"
    assert (await request_undo(runner, session_id=other, dry_run=True)).files[0].path == str(runner.root / "second.txt")
    report = await request_undo(runner, run_id=run)
    assert report.is_done
    assert runner.names() == ["a.txt", "second.txt"]
    # Undone changes do not count: the latest remaining change is in the other session.
    assert (await request_undo(runner)).is_done
    assert runner.names() == ["a.txt"]
    with pytest.raises(BadRequest, match="nothing to undo"):
        await request_undo(runner)
    with pytest.raises(BadRequest, match="nothing to undo"):
        await request_undo(runner, path="second.txt")


async def test_unknown_session_path_or_run_is_refused(runner: ToolRunner) -> None:
    with pytest.raises(BadRequest):
        await request_undo(runner)
    with pytest.raises(UnknownRun):
        await request_undo(runner, run_id=RunId("nothing"))
    with pytest.raises(NotFound):
        await request_undo(runner, session_id=SessionId("nothing"))
    await runner.call_ok("write", file_path="b.txt", content="1")
    with pytest.raises(BadRequest):
        await request_undo(runner, path="other.txt")


async def test_undo_in_a_busy_session_is_refused(runner: ToolRunner) -> None:
    await runner.call_ok("write", file_path="b.txt", content="1")
    runner.approver.gate.shut()
    runner.approver.gate.reached.clear()
    await runner.start(("write", {"file_path": "b.txt", "content": "2"}))
    await runner.approver.gate.reached.wait()
    with pytest.raises(SessionBusy):
        await request_undo(runner, path="b.txt")
    assert (await request_undo(runner, path="b.txt", dry_run=True)).files[0].outcome == "removed"
    runner.approver.gate.open()
    await runner.harness.wait_until_idle()
    assert runner.read("b.txt") == b"2"
    assert (await request_undo(runner, path="b.txt")).is_done
    assert runner.read("b.txt") == b"1"
