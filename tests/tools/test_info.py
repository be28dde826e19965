"""todos, holdfast_info and holdfast_logs, each through a real run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast import __version__
from holdfast.domain.events import SessionEvent
from holdfast.domain.sessions import Todo
from holdfast.domain.tools import ToolContext
from holdfast.tools.registry import ToolNeeds
from tools.tool_runner import ToolRunner, metadata_of


def item(content: str, status: str, active: str = "") -> dict[str, str]:
    return {"content": content, "status": status, "active_form": active or f"{content}ing"}


async def stored_todos(runner: ToolRunner) -> Sequence[Todo]:
    session = await runner.harness.ledger.session(runner.harness.workspace.record.id, runner.harness.session)
    assert session is not None
    return session.todos


async def test_todos_replace_the_list(runner: ToolRunner) -> None:
    first = [item("Look", "in_progress"), item("Write", "pending")]
    result = await runner.call_ok("todos", todos=first)
    assert metadata_of(result) == {
        "is_new": True,
        "todos": first,
        "just_started": "Looking",
        "completed": 0,
        "total": 2,
    }
    assert "1 to do, 1 in progress, 0 done" in result.content
    second = [item("Look", "completed"), item("Write", "in_progress"), item("Test", "pending")]
    result = await runner.call_ok("todos", todos=second)
    assert metadata_of(result) == {
        "is_new": False,
        "todos": second,
        "just_completed": ["Look"],
        "just_started": "Writeing",
        "completed": 1,
        "total": 3,
    }
    assert [todo.status for todo in await stored_todos(runner)] == ["completed", "in_progress", "pending"]
    events = [event.change.object for _, event in runner.harness.published.events if isinstance(event, SessionEvent)]
    assert any(len(session.todos) == 3 for session in events)
    assert "empty" in (await runner.call_ok("todos", todos=[])).content
    assert list(await stored_todos(runner)) == []


async def test_stored_todos_are_loaded_after_a_restart(project: Path) -> None:
    async def stored_list(_: ToolContext) -> Sequence[Todo]:
        return (Todo("Look", "in_progress", "Looking"),)

    runner = await ToolRunner(project).open(ToolNeeds(known_todos=stored_list))
    result = await runner.call_ok("todos", todos=[item("Look", "completed")])
    assert metadata_of(result)["is_new"] is False
    assert metadata_of(result)["just_completed"] == ["Look"]


async def test_todos_need_a_known_status(runner: ToolRunner) -> None:
    assert "status" in await runner.call_error("todos", todos=[item("Look", "done")])
    assert list(await stored_todos(runner)) == []
    assert "200 at most" in await runner.call_error("todos", todos=[item(str(n), "pending") for n in range(201)])


async def test_info_reports_its_facts_without_secrets(project: Path) -> None:
    async def facts(_: ToolContext) -> Mapping[str, Sequence[str]]:
        return {"models": ["large = test/plain"], "providers": ['test: api_key = "s3cr3t"'], "mcp": []}

    runner = await ToolRunner(project).open(ToolNeeds(facts=facts))
    content = (await runner.call_ok("holdfast_info")).content
    assert __version__ in content
    assert str(project) in content
    assert "[models]\nlarge = test/plain" in content
    assert "[mcp]\n(none)" in content
    assert "s3cr3t" not in content


async def test_logs_show_the_end_without_secrets(project: Path) -> None:
    log = project.parent / "holdfast.log"
    runner = await ToolRunner(project).open(ToolNeeds(log_file=lambda: log))
    assert "empty" in (await runner.call_ok("holdfast_logs")).content
    log.write_text("".join(f"line {number}\n" for number in range(60_000)) + "token=s3cr3t\n" + "x" * 5_000 + "\n")
    lines = (await runner.call_ok("holdfast_logs", lines=3)).content.splitlines()
    assert lines[:2] == ["line 59999", "token=[hidden]"]
    assert len(lines[2]) == 2_001
    assert len((await runner.call_ok("holdfast_logs")).content.splitlines()) == 50
    assert len((await runner.call_ok("holdfast_logs", lines=5_000)).content.splitlines()) == 100


async def test_missing_log_is_reported(runner: ToolRunner) -> None:
    assert "no log" in await runner.call_error("holdfast_logs")
