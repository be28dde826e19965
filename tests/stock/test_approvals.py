"""Stories of permissions and questions, played by a client that is as strict as a stock one."""

import json
from pathlib import Path

from stock.client import StockClient
from stock.recorded_story import Story
from stock.tui import StockTui

FINISHED = "agent_event created agent_finished"
QUESTION: dict[str, object] = {"type": "yes_no", "question": "Shall I?", "description": "It would take a while."}


def check(story: str, **clients: StockClient) -> None:
    for name, client in clients.items():
        Story(story).check(name, client.log, client.screen.labels)


def results(tui: StockTui) -> list[str]:
    parts = [part for item in tui.screen.messages.values() for part in item["parts"] or ()]
    return [part["data"]["content"] for part in parts if part["type"] == "tool_result"]


def write(name: str, text: str = "new") -> str:
    return "use write " + json.dumps({"file_path": name, "content": text})


def ask(*questions: dict[str, object]) -> str:
    return "use question " + json.dumps({"questions": questions})


async def test_tui_permissions(socket: Path, project: Path) -> None:
    """Allowed once, allowed for the session, denied, and withdrawn by a cancel."""
    tui = StockTui(socket, project)
    await tui.start()
    await tui.send(write("one.txt"))
    await tui.see("permission_notification created open")
    dialog = tui.screen.dialog
    assert dialog is not None
    assert (dialog["tool_name"], dialog["action"]) == ("write", "write")
    assert dialog["params"]["file_path"] == str(project / "one.txt")
    assert await tui.grant("allow")
    await tui.see(FINISHED)
    assert (project / "one.txt").read_text() == "new"

    await tui.send(write("two.txt"))
    await tui.see("permission_notification created open")
    assert await tui.grant("allow_session")
    await tui.see(FINISHED)
    await tui.send(write("two.txt", "newer"))
    await tui.see(FINISHED)
    assert (project / "two.txt").read_text() == "newer"

    await tui.send(write("three.txt"))
    await tui.see("permission_notification created open")
    assert await tui.grant("deny")
    await tui.see(FINISHED)
    assert results(tui)[-1] == "User denied permission"
    assert tui.screen.ends()[-1] == "end_turn"

    await tui.send(write("three.txt"))
    await tui.see("permission_notification created open")
    late = tui.screen.dialog
    await tui.cancel()
    await tui.see(FINISHED)
    assert tui.screen.dialog is None
    tui.screen.dialog = late
    assert not await tui.grant("allow")
    assert not (project / "three.txt").exists()
    await tui.leave()
    check("tui-permissions", A=tui)


async def test_tui_questions(socket: Path, project: Path) -> None:
    """Two questions answered, one form cancelled."""
    tui = StockTui(socket, project)
    await tui.start()
    choices = [{"id": "oak", "label": "Oak"}, {"id": "elm", "label": "Elm"}]
    which: dict[str, object] = {
        "type": "single_choice",
        "label": "Tree",
        "question": "Which tree?",
        "description": "For the bench.",
        "choices": choices,
    }
    await tui.send(ask(which, QUESTION))
    await tui.see("question_batch_request created")
    form = tui.screen.form
    assert form is not None
    assert [item["question"] for item in form["questions"]] == ["Which tree?", "Shall I?"]
    assert form["confirm_title"]
    assert await tui.answer({"selected_ids": ["oak"]}, {"yes": False})
    await tui.see(FINISHED)
    assert results(tui) == ['Q1: Which tree?\nUser selected: ["oak"]\n\nQ2: Shall I?\nUser answered: no']

    await tui.send(ask(QUESTION))
    await tui.see("question_batch_request created")
    assert await tui.dismiss()
    await tui.see(FINISHED)
    assert results(tui)[-1] == "User cancelled this question"
    assert tui.screen.ends()[-1] == "end_turn"
    await tui.leave()
    check("tui-questions", A=tui)


async def test_c47_two_screens_and_several_requests(socket: Path, project: Path) -> None:
    """C-47: a screen that connects while requests of two sessions are open shows one after the other; the first
    answer closes the dialog on both screens.
    """
    first, second, late = (StockTui(socket, project) for _ in range(3))
    await first.start()
    await first.send(write("one.txt"))
    await first.see("permission_notification created open")
    await second.start()
    await second.send(write("two.txt"))
    late.screen.shown = "no session yet"
    await late.start()
    await late.see("permission_request created")
    for screen in (first.screen, late.screen):
        assert screen.dialog is not None
        assert screen.dialog["params"]["file_path"] == str(project / "one.txt")
    assert await late.grant("allow")
    await late.see("permission_request created")
    await first.see(FINISHED)
    for screen in (first.screen, late.screen):
        assert screen.dialog is not None
        assert screen.dialog["params"]["file_path"] == str(project / "two.txt")
    assert await first.grant("deny")
    await late.see("permission_notification created denied")
    assert late.screen.dialog is None
    for tui in (late, second, first):
        await tui.leave()
