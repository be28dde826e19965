"""R10 in the browser: every screen asks, the first answer counts, the others say who gave it."""

import json

from playwright.async_api import expect

from holdfast.providers.scripted import Call
from server.helpers import collect
from web.stage import Stage

_WRITE = (Call("write", json.dumps({"file_path": "a.txt", "content": "one\n"})),)
_QUESTION = {
    "questions": [
        {
            "type": "single_choice",
            "question": "Which colour?",
            "description": "It will be *painted*.",
            "choices": [{"id": "r", "label": "Red"}, {"id": "g", "label": "Green"}],
        }
    ]
}


async def test_a_permission_is_answered_in_one_tab_and_closes_in_the_other(show: Stage) -> None:
    show.model.acts["write it"] = _WRITE
    first, second = await show.screen(), await show.screen()
    await second.is_live()
    await first.send("write it")
    await expect(first.at("permission")).to_be_visible()
    await expect(second.at("permission")).to_be_visible()
    await expect(second.at("permission")).to_contain_text("a.txt")
    await first.at("permission").locator('[data-action="allow"]').click()
    await expect(first.at("permission")).to_be_hidden()
    await expect(second.at("permission")).to_be_hidden()
    await expect(second.at("permission-closed")).to_contain_text("Allowed in another page")
    await expect(first.at("permission-closed")).to_be_hidden()
    await expect(first.answers.last).to_contain_text("Done.")
    client, workspace = await show.terminal()
    assert await client.pending_permissions(workspace) == ()


async def test_an_ask_that_was_put_aside_says_who_answered_it(show: Stage) -> None:
    """By keys alone, also after a reason was begun and given up."""
    show.model.acts["write it"] = _WRITE
    first, second = await show.screen(), await show.screen()
    await second.is_live()
    await first.send("write it")
    await expect(first.at("permission")).to_be_visible()
    await first.page.keyboard.press("Escape")
    await expect(first.at("permission")).to_be_hidden()
    await expect(first.at("run-status")).to_contain_text("Waiting for an answer")
    await expect(first.at("tool")).to_have_attribute("data-state", "asked")
    await expect(second.at("permission")).to_be_visible()
    await second.page.keyboard.press("r")
    await expect(second.page.get_by_label("Why not?")).to_be_focused()
    await second.page.keyboard.press("Escape")
    await second.page.keyboard.press("a")
    await expect(first.at("permission-closed")).to_contain_text("Allowed in another page")
    await expect(first.at("tool")).to_have_attribute("data-state", "done")


async def test_an_ask_survives_a_reload_and_goes_with_its_run(show: Stage) -> None:
    show.model.acts["write it"] = _WRITE
    screen = await show.screen()
    await screen.send("write it")
    await expect(screen.at("permission")).to_be_visible()
    await screen.page.reload()
    await expect(screen.at("permission")).to_be_visible()
    client, workspace = await show.terminal()
    (run,) = await client.list_runs(workspace)
    await client.cancel_run(workspace, run.run_id)
    await expect(screen.at("permission")).to_be_hidden()
    (end,) = await collect(client, workspace, [run.run_id])
    assert end.outcome == "cancelled"


async def test_an_ask_of_one_session_does_not_block_another(show: Stage) -> None:
    show.model.acts["write it"] = _WRITE
    screen = await show.screen()
    await screen.send("write it")
    await expect(screen.at("permission")).to_be_visible()
    await screen.page.keyboard.press("Escape")
    await expect(screen.at("permission")).to_be_hidden()
    await screen.at("new-session").click()
    await screen.send("something else")
    await expect(screen.answers.last).to_contain_text("echo: something else")
    client, workspace = await show.terminal()
    assert len(await client.pending_permissions(workspace)) == 1


async def test_a_question_is_answered(show: Stage) -> None:
    show.model.acts["ask me"] = (Call("question", json.dumps(_QUESTION)),)
    screen = await show.screen()
    await screen.send("ask me")
    await expect(screen.at("question")).to_contain_text("Which colour?")
    await screen.at("question").get_by_text("Green").click()
    await screen.at("question").locator('[data-action="send"]').click()
    await expect(screen.at("question")).to_be_hidden()
    await expect(screen.answers.last).to_contain_text("Done.")
    results = [part for request in show.model.requests for part in request.messages[-1].tool_results]
    assert not results or "Green" in str(results)
