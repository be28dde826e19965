"""The server's answer to an undo: which session is meant, and when it is refused."""

from typing import Any, cast

import pytest

from holdfast.domain.errors import BadRequest, NotFound, SessionBusy, UnknownRun
from holdfast.domain.files import UndoReport, UndoRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.server.http.request import Request
from holdfast.server.routes.files import undo_changes
from tools.desk import Desk


class _Open:
    """An open workspace, as the server has it."""

    def __init__(self, desk: Desk) -> None:
        self.workspace = desk.harness.workspace
        self.id = desk.harness.workspace.record.id


NONE = cast(Any, None)


async def ask(desk: Desk, **said: Any) -> UndoReport:  # noqa: ANN401
    opened = cast(Any, _Open(desk))
    call = Request(NONE, NONE, NONE, NONE, {}, {}, UndoRequest(**said), over_socket=True, open_handle=opened)
    return await undo_changes(call)


async def test_the_session_is_found_by_itself(desk: Desk) -> None:
    other = (await desk.harness.workspace.sessions.create("Other")).id
    await desk.does("write", file_path="first.txt", content="1")
    await desk.call_in(other, "write", {"file_path": "second.txt", "content": "2"})
    run = (await desk.files())[0].run_id
    assert (await ask(desk, path=str(desk.root / "first.txt"), dry_run=True)).files[0].outcome == "removed"
    assert (await ask(desk, session_id=other, dry_run=True)).files[0].path == str(desk.root / "second.txt")
    report = await ask(desk, run_id=run)
    assert report.is_done
    assert desk.names() == ["a.txt", "second.txt"]
    # What was taken back does not count: the next in line is the other session's.
    assert (await ask(desk)).is_done
    assert desk.names() == ["a.txt"]
    with pytest.raises(BadRequest, match="nothing to take back"):
        await ask(desk)
    with pytest.raises(BadRequest, match="nothing to take back"):
        await ask(desk, path="second.txt")


async def test_unknown_things_are_refused(desk: Desk) -> None:
    with pytest.raises(BadRequest):
        await ask(desk)
    with pytest.raises(UnknownRun):
        await ask(desk, run_id=RunId("nothing"))
    with pytest.raises(NotFound):
        await ask(desk, session_id=SessionId("nothing"))
    await desk.does("write", file_path="b.txt", content="1")
    with pytest.raises(BadRequest):
        await ask(desk, path="other.txt")


async def test_a_busy_session_is_left_alone(desk: Desk) -> None:
    await desk.does("write", file_path="b.txt", content="1")
    desk.porter.gate.shut()
    desk.porter.gate.reached.clear()
    await desk.begin(("write", {"file_path": "b.txt", "content": "2"}))
    await desk.porter.gate.reached.wait()
    with pytest.raises(SessionBusy):
        await ask(desk, path="b.txt")
    assert (await ask(desk, path="b.txt", dry_run=True)).files[0].outcome == "removed"
    desk.porter.gate.open()
    await desk.harness.quiet()
    assert desk.read("b.txt") == b"2"
    assert (await ask(desk, path="b.txt")).is_done
    assert desk.read("b.txt") == b"1"
