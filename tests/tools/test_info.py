"""todos, holdfast_info and holdfast_logs, each through a real run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast import __version__
from holdfast.domain.events import SessionEvent
from holdfast.domain.sessions import Todo
from holdfast.domain.tools import ToolContext
from holdfast.tools.registry import ToolNeeds
from tools.desk import Desk, told


def item(content: str, status: str, active: str = "") -> dict[str, str]:
    return {"content": content, "status": status, "active_form": active or f"{content}ing"}


async def stored(desk: Desk) -> Sequence[Todo]:
    session = await desk.harness.ledger.session(desk.harness.workspace.record.id, desk.harness.session)
    assert session is not None
    return session.todos


async def test_todos_replace_the_list(desk: Desk) -> None:
    first = [item("Look", "in_progress"), item("Write", "pending")]
    result = await desk.does("todos", todos=first)
    assert told(result) == {
        "is_new": True,
        "todos": first,
        "just_started": "Looking",
        "completed": 0,
        "total": 2,
    }
    assert "1 to do, 1 in progress, 0 done" in result.content
    second = [item("Look", "completed"), item("Write", "in_progress"), item("Test", "pending")]
    result = await desk.does("todos", todos=second)
    assert told(result) == {
        "is_new": False,
        "todos": second,
        "just_completed": ["Look"],
        "just_started": "Writeing",
        "completed": 1,
        "total": 3,
    }
    assert [todo.status for todo in await stored(desk)] == ["completed", "in_progress", "pending"]
    events = [event.change.object for _, event in desk.harness.published.events if isinstance(event, SessionEvent)]
    assert any(len(session.todos) == 3 for session in events)
    assert "empty" in (await desk.does("todos", todos=[])).content
    assert list(await stored(desk)) == []


async def test_a_stored_list_is_known_after_a_restart(project: Path) -> None:
    async def known(_: ToolContext) -> Sequence[Todo]:
        return (Todo("Look", "in_progress", "Looking"),)

    desk = await Desk(project).open(ToolNeeds(known_todos=known))
    result = await desk.does("todos", todos=[item("Look", "completed")])
    assert told(result)["is_new"] is False
    assert told(result)["just_completed"] == ["Look"]


async def test_todos_need_a_known_status(desk: Desk) -> None:
    assert "status" in await desk.fails("todos", todos=[item("Look", "done")])
    assert list(await stored(desk)) == []
    assert "200 at most" in await desk.fails("todos", todos=[item(str(n), "pending") for n in range(201)])


async def test_info_tells_what_it_is_given_and_no_secret(project: Path) -> None:
    async def facts(_: ToolContext) -> Mapping[str, Sequence[str]]:
        return {"models": ["large = test/plain"], "providers": ['test: api_key = "s3cr3t"'], "mcp": []}

    desk = await Desk(project).open(ToolNeeds(facts=facts))
    content = (await desk.does("holdfast_info")).content
    assert __version__ in content
    assert str(project) in content
    assert "[models]\nlarge = test/plain" in content
    assert "[mcp]\n(none)" in content
    assert "s3cr3t" not in content


async def test_logs_show_the_end_without_secrets(project: Path) -> None:
    log = project.parent / "holdfast.log"
    desk = await Desk(project).open(ToolNeeds(log_file=lambda: log))
    assert "empty" in (await desk.does("holdfast_logs")).content
    log.write_text("".join(f"line {number}\n" for number in range(60_000)) + "token=s3cr3t\n" + "x" * 5_000 + "\n")
    lines = (await desk.does("holdfast_logs", lines=3)).content.splitlines()
    assert lines[:2] == ["line 59999", "token=[hidden]"]
    assert len(lines[2]) == 2_001
    assert len((await desk.does("holdfast_logs")).content.splitlines()) == 50
    assert len((await desk.does("holdfast_logs", lines=5_000)).content.splitlines()) == 100


async def test_without_a_log_that_is_said(desk: Desk) -> None:
    assert "no log" in await desk.fails("holdfast_logs")
