"""Features beside the conversation: changed files and undo, attachments, the queue, the timeline and its replay."""

import base64
import json
from pathlib import Path

from playwright.async_api import expect

from holdfast.providers.scripted_model import Call, Say
from holdfast.testing.gates import until
from server.helpers import collect_run_ends, send_prompt
from web.harness import PageHarness

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_GIVE = """([how, name, data]) => {
  const bytes = Uint8Array.from(atob(data), one => one.charCodeAt(0));
  const given = new DataTransfer();
  given.items.add(new File([bytes], name, { type: "image/png" }));
  const place = document.querySelector('[data-testid="composer"]');
  const event = how === "paste"
    ? new ClipboardEvent("paste", { clipboardData: given, bubbles: true, cancelable: true })
    : new DragEvent("drop", { dataTransfer: given, bubbles: true, cancelable: true });
  place.dispatchEvent(event);
}"""

_FRAMES = """new Promise(drawn => {
  let left = 30;
  const on = () => (left-- ? requestAnimationFrame(on) : drawn());
  on();
})"""


async def test_images_are_attached_by_paste_and_drop(harness: PageHarness) -> None:
    screen = await harness.screen()
    await screen.is_live()
    for number, how in enumerate(("paste", "drop"), 1):
        await screen.page.evaluate(_GIVE, [how, f"{how}.png", _PIXEL])
        await expect(screen.at("attachment")).to_have_count(number)
    await screen.send("look at these")
    await expect(screen.answers.last).to_contain_text("echo: look at these")
    await expect(screen.at("attachment")).to_have_count(0)
    client, workspace = await harness.terminal()
    (run,) = await client.list_runs(workspace)
    size = len(base64.b64decode(_PIXEL))
    assert [(item.mime_type, item.size) for item in run.attachments] == [("image/png", size)] * 2


async def test_a_change_is_shown_and_undone(harness: PageHarness) -> None:
    path = Path(harness.where.project()) / "a.txt"
    harness.model.acts["write it"] = (Call("write", json.dumps({"file_path": "a.txt", "content": "one\n"})),)
    screen = await harness.screen()
    await screen.send("write it")
    await screen.at("permission").locator('[data-action="allow"]').click()
    await expect(screen.answers.last).to_contain_text("Done.")
    await until(path.exists)
    await screen.page.get_by_role("button", name="Side panel").click()
    await screen.page.get_by_role("button", name="Undo the run").click()
    await screen.page.locator('[data-action="confirm"]').click()
    await until(lambda: not path.exists())


async def test_the_queue_is_reordered_and_emptied(harness: PageHarness) -> None:
    screen = await harness.screen()
    await screen.send("feed")
    await expect(screen.at("stop")).to_be_visible()
    for name in ("first", "second"):
        await screen.composer.fill(name)
        await screen.at("queue").click()
    await expect(screen.at("queue-item")).to_have_count(2)
    client, workspace = await harness.terminal()
    waiting = [run.prompt for run in reversed(await client.list_runs(workspace)) if run.state == "waiting"]
    assert waiting == ["first", "second"]
    await screen.at("queue-item").last.get_by_role("button", name="Remove").click()
    await expect(screen.at("queue-item")).to_have_count(1)
    harness.model.stream_words("Fed.")
    harness.model.stop()
    await expect(screen.answers.last).to_contain_text("echo: first")


async def test_the_timeline_shows_a_run_and_replays_it_event_by_event(harness: PageHarness) -> None:
    harness.model.acts["work"] = (
        Say("Now."),
        Call("bash", json.dumps({"command": "echo seen", "description": "say so"})),
    )
    client, workspace = await harness.terminal()
    session = (await client.create_session(workspace, "past")).id
    await send_prompt(client, workspace, session, "work", "r1")
    await collect_run_ends(client, workspace, ["r1"])
    screen = await harness.screen()
    await screen.open_session(session)
    await screen.page.get_by_role("button", name="Timeline").click()
    timeline = screen.at("timeline")
    await expect(timeline).to_contain_text("1 run")
    await expect(timeline).to_contain_text("2 steps")
    await screen.page.keyboard.press("+")
    await screen.page.wait_for_function("document.querySelector('.tl-scroll').scrollWidth > innerWidth")
    await screen.page.keyboard.press("0")
    await timeline.get_by_role("button", name="work").click()
    reported = screen.at("replay-event")
    slider = timeline.get_by_role("slider", name="Event")
    count = int(await slider.get_attribute("max") or 0)
    assert count > 5
    # The keys are for the run that was chosen.
    await expect(slider).to_be_focused()
    await screen.page.keyboard.press("Home")
    first = await reported.inner_text()
    replayed = timeline.get_by_role("region", name="The conversation at that event")
    await expect(replayed).not_to_contain_text("Done.")
    seen = {first}
    for _ in range(count - 1):
        await timeline.get_by_role("button", name="Next event").click()
        seen.add(await reported.inner_text())
    assert len(seen) == count, "every event is described once"
    await expect(replayed).to_contain_text("Done.")
    await screen.page.keyboard.press("Escape")
    await expect(slider).to_be_hidden()
    await expect(timeline.get_by_role("button", name="work")).to_be_focused()


async def test_search_finds_titles_and_texts_of_all_sessions(harness: PageHarness) -> None:
    client, workspace = await harness.terminal()
    for number, title in enumerate(("about lighthouses", "about harbours", "about nothing")):
        session = (await client.create_session(workspace, title)).id
        await send_prompt(client, workspace, session, f"number {number}, anchors", f"r{number}")
    await collect_run_ends(client, workspace, ["r0", "r1", "r2"])
    screen = await harness.screen()
    await screen.is_live()
    await screen.page.keyboard.press("Control+Shift+f")
    field = screen.page.get_by_role("combobox", name="Find in all sessions")
    await field.fill("lighthouse")
    await expect(screen.page.get_by_role("option")).to_contain_text(["about lighthouses"])
    await field.fill("number 1, anchors")
    hits = screen.page.get_by_role("option")
    await expect(hits).to_have_count(2)
    await expect(screen.page.locator(".hit-session")).to_contain_text(["about harbours"])
    await field.press("ArrowDown")
    await field.press("Enter")
    await expect(screen.answers).to_contain_text(["echo: number 1, anchors"])
    await expect(screen.page.locator(".message.marked")).to_contain_text("echo: number 1")


async def test_a_match_far_up_is_scrolled_into_view(harness: PageHarness) -> None:
    """Only the end of a long conversation is rendered, and invisible messages have an estimated height."""
    client, workspace = await harness.terminal()
    session = (await client.create_session(workspace, "long")).id
    names = [f"r{number}" for number in range(80)]
    for name in names:
        harness.model.lumps[f"about {name}."] = "\n\n".join(
            f"{name}, line {line}" for line in range(sum(map(ord, name)) % 40)
        )
        await send_prompt(client, workspace, session, f"about {name}.", name)
    await collect_run_ends(client, workspace, names)
    screen = await harness.screen()
    await screen.open_session(session)
    await expect(screen.answers.last).to_be_in_viewport()
    await screen.page.keyboard.press("Control+f")
    field = screen.page.get_by_role("combobox", name="Find in the conversation")
    for name in ("r3", "r40"):
        await field.fill(f"about {name}.")
        await field.press("Enter")
        found = screen.page.locator(".message.marked")
        await expect(found).to_contain_text(f"about {name}.")
        await expect(found).to_be_in_viewport()
        await expect(field).to_be_focused()
        # It stays there when the messages around it have been rendered.
        await screen.page.evaluate(_FRAMES)
        await expect(found).to_be_in_viewport(ratio=1)


async def test_the_page_can_be_used_with_the_keyboard_alone(harness: PageHarness) -> None:
    """A session is made, a prompt sent, another session found and opened, without a mouse."""
    client, workspace = await harness.terminal()
    other = (await client.create_session(workspace, "the other one")).id
    await send_prompt(client, workspace, other, "hello", "r1")
    await collect_run_ends(client, workspace, ["r1"])
    screen = await harness.screen()
    await screen.is_live()
    keys = screen.page.keyboard
    await expect(screen.composer).to_be_focused()
    await keys.type("by keys")
    await keys.press("Enter")
    await expect(screen.answers.last).to_contain_text("echo: by keys")
    await keys.press("Control+k")
    await expect(screen.at("palette")).to_be_visible()
    await keys.type("other one")
    await keys.press("Enter")
    await expect(screen.answers.last).to_contain_text("echo: hello")
    await keys.press("Alt+n")
    await expect(screen.answers).to_have_count(0)
