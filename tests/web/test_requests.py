"""R10 in the browser: every client shows a request, the first answer counts, the others show where it was given."""

import json

from playwright.async_api import expect

from holdfast.providers.scripted_model import Call
from server.helpers import collect_run_ends
from web.harness import PHONE, PageHarness

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


async def test_a_permission_is_answered_in_one_tab_and_closes_in_the_other(harness: PageHarness) -> None:
    harness.model.acts["write it"] = _WRITE
    first, second = await harness.screen(), await harness.screen()
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
    client, workspace = await harness.terminal()
    assert await client.pending_permissions(workspace) == ()


async def test_a_postponed_request_shows_where_it_was_answered(harness: PageHarness) -> None:
    """And it is answered with keys, also after a reason was begun and given up."""
    harness.model.acts["write it"] = _WRITE
    first, second = await harness.screen(), await harness.screen()
    await second.is_live()
    await first.send("write it")
    await expect(first.at("permission")).to_be_visible()
    await first.page.get_by_label("Decide later").click()
    await expect(first.at("permission")).to_be_hidden()
    await expect(first.at("run-status")).to_contain_text("Waiting for approval")
    await expect(first.at("tool")).to_have_attribute("data-state", "awaiting-approval")
    await expect(second.at("permission")).to_be_visible()
    await second.page.keyboard.press("Tab")
    await second.page.keyboard.press("r")
    await expect(second.page.get_by_label("Reason")).to_be_focused()
    await second.page.keyboard.press("Escape")
    await expect(second.at("permission").locator('[data-action="deny"]')).to_be_focused()
    await second.page.keyboard.press("a")
    await expect(first.at("permission-closed")).to_contain_text("Allowed in another page")
    await expect(first.at("tool")).to_have_attribute("data-state", "done")


async def test_a_request_survives_a_reload_and_closes_with_its_run(harness: PageHarness) -> None:
    harness.model.acts["write it"] = _WRITE
    screen = await harness.screen()
    await screen.send("write it")
    await expect(screen.at("permission")).to_be_visible()
    await screen.page.reload()
    await expect(screen.at("permission")).to_be_visible()
    client, workspace = await harness.terminal()
    (run,) = await client.list_runs(workspace)
    await client.cancel_run(workspace, run.run_id)
    await expect(screen.at("permission")).to_be_hidden()
    (end,) = await collect_run_ends(client, workspace, [run.run_id])
    assert end.outcome == "cancelled"


async def test_a_request_of_one_session_does_not_block_another(harness: PageHarness) -> None:
    harness.model.acts["write it"] = _WRITE
    screen = await harness.screen()
    await screen.send("write it")
    await expect(screen.at("permission")).to_be_visible()
    await screen.page.get_by_label("Decide later").click()
    await expect(screen.at("permission")).to_be_hidden()
    await screen.at("new-session").click()
    await screen.send("something else")
    await expect(screen.answers.last).to_contain_text("echo: something else")
    client, workspace = await harness.terminal()
    assert len(await client.pending_permissions(workspace)) == 1


async def test_a_question_is_answered(harness: PageHarness) -> None:
    harness.model.acts["ask me"] = (Call("question", json.dumps(_QUESTION)),)
    screen = await harness.screen()
    await screen.send("ask me")
    await expect(screen.at("question")).to_contain_text("Which colour?")
    await screen.at("question").get_by_text("Green").click()
    await screen.at("question").locator('[data-action="send"]').click()
    await expect(screen.at("question")).to_be_hidden()
    await expect(screen.answers.last).to_contain_text("Done.")
    results = [part for request in harness.model.requests for part in request.messages[-1].tool_results]
    assert not results or "Green" in str(results)


async def open_requests(harness: PageHarness) -> int:
    client, workspace = await harness.terminal()
    return len(await client.pending_permissions(workspace)) + len(await client.pending_questions(workspace))


async def test_text_typed_while_a_request_appears_is_a_prompt(harness: PageHarness) -> None:
    """Letters of the shortcuts, digits, a paste, a held Enter, a click: nothing is answered, and no letter is lost."""
    harness.model.acts["write it"] = _WRITE
    screen = await harness.screen()
    keyboard, request = screen.page.keyboard, screen.at("permission")
    await screen.send("write it")
    await keyboard.type("always")
    await expect(request).to_have_attribute("data-state", "writing")
    await keyboard.type(" asdwr1 was das?")
    await expect(screen.composer).to_have_value("always asdwr1 was das?")
    await keyboard.press("Enter")
    await expect(screen.page.get_by_text("always asdwr1 was das?")).to_be_visible()
    await keyboard.press("Enter")
    await expect(request).to_have_attribute("data-state", "active")
    await keyboard.insert_text("a\td")
    await expect(request).to_have_attribute("data-state", "writing")
    # Buttons are inactive: a click moves the focus and does not answer.
    await request.locator('[data-action="allow"]').click(force=True)
    await expect(request).to_have_attribute("data-state", "focused")
    await keyboard.press("Escape")
    await keyboard.press("Enter")
    await expect(screen.composer).to_have_value("")
    await keyboard.down("Enter")
    await expect(request).to_have_attribute("data-state", "active")
    await keyboard.down("Enter")
    await keyboard.up("Enter")
    assert await open_requests(harness) == 1
    await expect(request).to_have_attribute("data-state", "active")
    await keyboard.press("ArrowRight")
    await keyboard.press("ArrowLeft")
    await keyboard.press("Enter")
    await expect(request).to_be_hidden()
    assert await open_requests(harness) == 0


async def test_the_next_request_has_to_settle_and_a_question_takes_numbers(harness: PageHarness) -> None:
    harness.model.acts["both"] = (*_WRITE, Call("question", json.dumps(_QUESTION)))
    screen = await harness.screen()
    keyboard = screen.page.keyboard
    await screen.send("both")
    await screen.composer.fill("a draft")
    await expect(screen.at("permission")).to_have_attribute("data-state", "writing")
    await keyboard.press("Tab")
    await keyboard.press("a")
    await expect(screen.at("question")).to_be_visible()
    await expect(screen.composer).to_be_focused()
    await expect(screen.composer).to_have_value("a draft")
    await screen.composer.fill("")
    await expect(screen.at("question")).to_have_attribute("data-state", "active")
    await keyboard.type("2 more")
    await expect(screen.composer).to_have_value("2 more")
    await expect(screen.at("question").locator(":checked")).to_have_count(0)
    await screen.composer.fill("")
    await expect(screen.at("question")).to_have_attribute("data-state", "active")
    await keyboard.press("2")
    await keyboard.press("Enter")
    await expect(screen.at("question")).to_be_hidden()


async def test_auto_approve_is_confirmed_and_shown(harness: PageHarness) -> None:
    screen = await harness.screen(size=PHONE)
    await screen.is_live()
    client, workspace = await harness.terminal()
    for keys, is_on in ((("y", "Enter"), False), (("Tab", "Enter"), True)):
        await screen.page.keyboard.press("Alt+y")
        await expect(screen.at("confirm")).to_be_visible()
        for key in keys:
            await screen.page.keyboard.press(key)
        await expect(screen.at("confirm")).to_be_hidden()
        await expect(screen.at("auto-approve")).to_be_visible(visible=is_on)
        assert (await client.get_skip(workspace)).skip is is_on
