"""A conversation in the browser: sent, streamed, cancelled, and the same in every client."""

import json

from playwright.async_api import expect

from holdfast.client.view import View
from holdfast.domain.messages import text_of
from holdfast.providers.scripted_model import Call, Say, Think
from server.helpers import collect_run_ends, read_until, run_ended, send_prompt
from web.harness import PageHarness, Screen


async def drawn(screen: Screen) -> list[list[str]]:
    """Every message on the screen, as it is drawn; copies and folds make no difference, nor do ids of the page."""
    found: list[list[str]] = await screen.page.locator('[data-testid="message"]').evaluate_all(
        "all => all.map(one => [one.dataset.id, one.dataset.role, one.innerText])"
    )
    return found


async def test_a_prompt_is_sent_and_its_answer_streams(harness: PageHarness) -> None:
    screen = await harness.screen()
    await screen.is_live()
    await screen.send("feed")
    await expect(screen.prompts).to_have_count(1)
    await expect(screen.prompts).to_contain_text("feed")
    harness.model.stream_words("Once ", "upon ")
    await expect(screen.answers.last).to_contain_text("Once upon")
    await expect(screen.at("stop")).to_be_visible()
    harness.model.stream_words("a **time**.")
    await expect(screen.answers.last).to_contain_text("Once upon a time.")
    harness.model.stop()
    await expect(screen.at("stop")).to_be_hidden()
    await expect(screen.answers.last.locator("strong")).to_have_text("time")
    assert "code=" not in screen.page.url


async def test_another_client_cancels_what_the_page_has_sent(harness: PageHarness) -> None:
    """R3."""
    screen = await harness.screen()
    await screen.send("feed")
    harness.model.stream_words("Words ")
    await expect(screen.answers.last).to_contain_text("Words")
    client, workspace = await harness.terminal()
    (run,) = await client.list_runs(workspace)
    assert (await client.cancel_session(workspace, run.session_id)).cancelled == (run.run_id,)
    await expect(screen.at("stop")).to_be_hidden()
    await expect(screen.answers.last).to_contain_text("ancel")
    await screen.send("and now")
    await expect(screen.answers.last).to_contain_text("echo: and now")


async def test_the_page_cancels_what_another_client_has_sent(harness: PageHarness) -> None:
    client, workspace = await harness.terminal()
    session = (await client.create_session(workspace, "of the terminal")).id
    await send_prompt(client, workspace, session, "feed", "r1")
    screen = await harness.screen()
    await screen.open_session(session)
    harness.model.stream_words("Words ")
    await expect(screen.answers.last).to_contain_text("Words")
    await screen.at("stop").click()
    (end,) = await collect_run_ends(client, workspace, ["r1"])
    assert end.outcome == "cancelled"
    await expect(screen.at("stop")).to_be_hidden()


async def test_two_tabs_and_a_terminal_are_identical(harness: PageHarness) -> None:
    """R6: one client from the start, one from the middle of a streamed answer, the third is not a browser."""
    client, workspace = await harness.terminal()
    session = (await client.create_session(workspace, "shared")).id
    harness.model.acts["work"] = (
        Think("How does one do this?"),
        Say("First `ls`:\n\n```sh\nls\n```\n"),
        Call("bash", json.dumps({"command": "echo seen", "description": "say so"})),
    )
    first = await harness.screen()
    await first.open_session(session)
    await send_prompt(client, workspace, session, "work", "r1")
    await collect_run_ends(client, workspace, ["r1"])
    await send_prompt(client, workspace, session, "feed", "r2")
    harness.model.stream_words("Half of ")
    await expect(first.answers.last).to_contain_text("Half of")
    second = await harness.screen(size=(1280, 800))
    await second.open_session(session)
    await expect(second.answers.last).to_contain_text("Half of")
    harness.model.stream_words("an answer.")
    harness.model.stop()
    async with client.events(workspace, since=0) as events:
        view = View()
        items = await read_until(events, run_ended("r2"))
    for item in items:
        view.apply(item)
    for screen in (first, second):
        await expect(screen.at("stop")).to_be_hidden()
        await expect(screen.at("connection")).to_have_attribute("data-cursor", str(view.cursor))
        await expect(screen.page.locator('[data-testid="tool"]')).to_have_count(1)
    seen = await drawn(first)
    assert seen == await drawn(second)
    known = [message for message in view.messages(session) if message.role in ("user", "assistant")]
    assert [(name, role) for name, role, _ in seen] == [(message.id, message.role) for message in known]
    for message, (_, _, text) in zip(known, seen, strict=True):
        assert text_of(message)[:5] in text


async def test_queued_prompts_are_shown_and_can_be_edited(harness: PageHarness) -> None:
    screen = await harness.screen()
    await screen.send("feed")
    await expect(screen.at("stop")).to_be_visible()
    client, workspace = await harness.terminal()
    (run,) = await client.list_runs(workspace)
    for name in ("second", "third"):
        await send_prompt(client, workspace, run.session_id, name, name)
    await expect(screen.at("queue-item")).to_have_count(2)
    await client.cancel_run(workspace, (await client.list_runs(workspace))[0].run_id)
    await expect(screen.at("queue-item")).to_have_count(1)
    await expect(screen.at("queue-item")).to_contain_text("second")
    harness.model.stream_words("First.")
    harness.model.stop()
    await expect(screen.answers.last).to_contain_text("echo: second")
    await expect(screen.at("queue-item")).to_have_count(0)
