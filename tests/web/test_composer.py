"""The composer in the browser: completions, the queue, drafts, history and scrolling."""

from pathlib import Path

from playwright.async_api import expect

from holdfast.domain.messages import BinaryPart, Message
from server.helpers import send_prompt
from web.harness import PageHarness

_AT = "document.querySelector('.scroller')"
_REST = f"({_AT}.scrollHeight - {_AT}.scrollTop - {_AT}.clientHeight)"


async def _asked(harness: PageHarness) -> tuple[Message, ...]:
    client, workspace = await harness.terminal()
    (session,) = await client.list_sessions(workspace)
    return await client.list_user_messages(workspace, session.id)


async def test_a_mentioned_file_is_completed_and_attached(harness: PageHarness) -> None:
    root = Path(harness.where.project())
    (root / "src").mkdir()
    (root / "src" / "review.py").write_text("not this")
    (root / "src" / "view.py").write_text("the text of the view")
    screen = await harness.screen()
    await screen.is_live()
    await screen.composer.press_sequentially("look at @vie")
    offers = screen.page.get_by_role("option")
    await expect(offers).to_have_text(["src/view.py", "src/review.py"])
    await screen.composer.press("Tab")
    await expect(screen.composer).to_have_value("look at @src/view.py ")
    await screen.composer.press("Enter")
    await expect(screen.prompts.last).to_contain_text("view.py")
    await expect(screen.answers.last).to_contain_text("echo:")
    (message,) = await _asked(harness)
    assert any(
        b"the text of the view" in bytes(part.data.data) for part in message.parts if isinstance(part, BinaryPart)
    )


async def test_drafts_survive_a_reload(harness: PageHarness) -> None:
    """Once it is sent it is not."""
    screen = await harness.screen()
    await screen.is_live()
    await screen.composer.fill("half a thought")
    await screen.page.reload()
    await screen.is_live()
    await expect(screen.composer).to_have_value("half a thought")
    await screen.composer.press("Enter")
    await expect(screen.answers.last).to_contain_text("echo: half a thought")
    await screen.page.reload()
    await expect(screen.answers.last).to_contain_text("echo: half a thought")
    await expect(screen.composer).to_have_value("")


async def test_queued_prompts_are_moved_removed_and_edited(harness: PageHarness) -> None:
    screen = await harness.screen()
    await screen.is_live()
    await screen.send("feed")
    await expect(screen.at("stop")).to_be_visible()
    for name in ("first", "second", "third"):
        await screen.composer.fill(name)
        await screen.composer.press("Alt+Enter")
    items = screen.at("queue-item")
    await expect(items).to_have_count(3)
    await screen.page.keyboard.press("Alt+q")
    await expect(items.nth(0)).to_be_focused()
    await items.nth(2).focus()
    await screen.page.keyboard.press("Shift+ArrowUp")
    await expect(items.nth(1)).to_contain_text("third")
    await expect(items.nth(1)).to_be_focused()
    await items.nth(0).drag_to(items.nth(2))
    await expect(items.nth(2)).to_contain_text("first")
    await items.nth(0).focus()
    await screen.page.keyboard.press("x")
    await expect(items).to_have_count(2)
    await items.filter(has_text="second").focus()
    await screen.page.keyboard.press("s")
    await expect(items.filter(has_text="second")).to_have_attribute("data-delivery", "steer")
    await items.filter(has_text="first").focus()
    await screen.page.keyboard.press("Enter")
    await expect(screen.composer).to_have_value("first")
    await expect(items).to_have_count(1)
    # Esc warns, and cancels when it is pressed again; queued prompts return to the composer.
    await screen.composer.press("Escape")
    await expect(screen.at("run-status")).to_contain_text("Esc again cancels")
    await screen.composer.press("Escape")
    await expect(screen.composer).to_have_value("second\n\nfirst")
    await expect(screen.at("stop")).to_be_hidden()
    await expect(screen.answers.last).to_contain_text("Cancelled")


async def test_sent_prompts_are_found_in_the_history(harness: PageHarness) -> None:
    client, workspace = await harness.terminal()
    session = (await client.create_session(workspace, "s")).id
    await send_prompt(client, workspace, session, "from the terminal")
    screen = await harness.screen()
    await screen.is_live()
    await screen.send("from the page")
    await expect(screen.answers.last).to_contain_text("echo: from the page")
    await screen.composer.press("ArrowUp")
    await expect(screen.composer).to_have_value("from the page")
    await screen.composer.press("ArrowUp")
    await expect(screen.composer).to_have_value("from the terminal")
    await screen.composer.press("ArrowDown")
    await screen.composer.press("ArrowDown")
    await expect(screen.composer).to_have_value("")
    await screen.composer.press("Control+r")
    await screen.composer.press_sequentially("term")
    await expect(screen.page.get_by_role("option")).to_have_text(["from the terminal"])
    await screen.composer.press("Enter")
    await expect(screen.composer).to_have_value("from the terminal")


async def test_a_shell_command_is_run_and_shown(harness: PageHarness) -> None:
    screen = await harness.screen()
    await screen.is_live()
    await screen.send("!echo said by the shell; exit 3")
    await expect(screen.prompts.last).to_contain_text("said by the shell")
    await expect(screen.prompts.last).to_contain_text("exit code 3")
    await expect(screen.composer).to_have_value("")


async def test_the_newest_line_is_followed_until_the_reader_scrolls(harness: PageHarness) -> None:
    screen = await harness.screen()
    await screen.is_live()
    await screen.send("feed")
    harness.model.stream_words(*(f"line {number}\n\n" for number in range(80)))
    await expect(screen.answers.last).to_contain_text("line 79")
    await screen.page.wait_for_function(f"{_REST} < 24")
    await screen.answers.last.hover()
    await screen.page.mouse.wheel(0, -600)
    await expect(screen.at("to-end")).to_be_visible()
    # The button appears with the event of the wheel, before the browser has scrolled.
    await screen.page.wait_for_function(f"{_REST} > 500")
    top = await screen.page.evaluate(f"{_AT}.scrollTop")
    harness.model.stream_words(*(f"line {number}\n\n" for number in range(80, 160)))
    await expect(screen.answers.last).to_contain_text("line 159")
    assert abs(await screen.page.evaluate(f"{_AT}.scrollTop") - top) < 400
    await screen.at("to-end").click()
    await screen.page.wait_for_function(f"{_REST} < 24")
    harness.model.stop()
    await expect(screen.at("stop")).to_be_hidden()
