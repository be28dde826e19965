"""R12 in the browser: displayed text never runs and never causes a request to another host."""

import json
from collections.abc import Sequence

from playwright.async_api import expect

from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import Call, Say, Think
from server.helpers import send_prompt
from web.harness import PageHarness, Screen
from web.hostile import BEACON, MARKDOWN, NAMES, huge

_INSPECT = """() => {
  const faults = window.pwned ? ["it ran"] : [];
  const bad = "script, style, iframe, object, embed, link, meta, base, form, template, video, audio, image, use";
  for (const message of document.querySelectorAll('[data-testid="message"]')) {
    for (const one of message.querySelectorAll(bad)) if (!one.closest("svg.icon")) faults.push(one.outerHTML);
    for (const one of message.querySelectorAll("*")) {
      for (const name of one.getAttributeNames()) if (name.startsWith("on")) faults.push(one.outerHTML);
      if (one.tagName === "IMG" && !/^(data|blob):/.test(one.getAttribute("src"))) faults.push(one.outerHTML);
      const link = one.getAttribute("href") ?? one.getAttribute("xlink:href");
      if (link !== null && !/^(https?:\\/\\/|mailto:|#)/.test(link)) faults.push(one.outerHTML);
    }
  }
  return faults;
}"""


_WIDE = """() => {
  const code = [...document.querySelectorAll(".pieces")].at(-1);
  if (!code?.textContent.includes("let wide") || code.children.length < 2) return false;
  const pieces = [...code.children].filter(one => one.getBoundingClientRect().top < innerHeight);
  return code.parentElement.scrollWidth > 2000 && pieces.every(one => one.scrollWidth <= one.clientWidth);
}"""


async def harmless(screen: Screen) -> None:
    """Check that nothing ran, no active element exists, and every link is allowed."""
    assert await screen.page.evaluate(_INSPECT) == []


async def output(harness: PageHarness, screen: Screen, texts: Sequence[str]) -> None:
    """The page sees an answer to each of these prompts, one after the other, in one conversation."""
    assert len(texts) < 30, "of more only the last are drawn"
    client, workspace = await harness.terminal()
    session = (await client.create_session(workspace, "hostile")).id
    await screen.open_session(session)
    for text in texts:
        await client.send_prompt(workspace, AgentMessage(session, text, delivery="queue"))
    # There may be one more: a long conversation is summarised.
    await expect(screen.answers.locator("footer time").nth(len(texts) - 1)).to_be_attached()
    await expect(screen.at("stop")).to_be_hidden()


async def test_hostile_markdown_runs_nothing_and_loads_nothing(harness: PageHarness) -> None:
    for name, text in MARKDOWN.items():
        harness.model.acts[name] = (Think(text), Say(f"{text}\n\nend of {name}"))
    everything = "\n\n".join(MARKDOWN.values())
    harness.model.acts["everything"] = (Think(everything), Say(f"{everything}\n\nend of everything"))
    harness.model.acts["a good link"] = (Say("[there](https://example.org/x) end"),)
    screen = await harness.screen()
    dialogs: list[str] = []
    screen.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    names = [*MARKDOWN, "everything"]
    for batch in (names[:16], names[16:]):
        await output(harness, screen, batch)
        reported = await screen.answers.all_text_contents()
        assert [name for name, text in zip(batch, reported, strict=True) if f"end of {name}" not in text] == []
        await screen.page.locator(".thought > button").evaluate_all("all => all.forEach(one => one.click())")
        await expect(screen.page.locator(".thought > .markdown")).to_have_count(len(batch))
        await harmless(screen)
    await screen.send("a good link")
    assert dialogs == []
    assert screen.page.url.startswith(screen.origin)
    assert BEACON not in await screen.page.evaluate(
        "performance.getEntriesByType('resource').map(one => one.name).join()"
    )
    # Links open in another tab, without a referrer.
    link = screen.answers.last.get_by_role("link", name="there")
    await expect(link).to_have_attribute("target", "_blank")
    assert {"noopener", "noreferrer"} <= set((await link.get_attribute("rel") or "").split())


async def test_hostile_names_and_output_are_text(harness: PageHarness) -> None:
    """Titles, prompts, file names, tool calls and tool output are shown unchanged."""
    client, workspace = await harness.terminal()
    screen = await harness.screen()
    for number, name in enumerate(NAMES):
        session = (await client.create_session(workspace, name)).id
        await send_prompt(client, workspace, session, name, f"r{number}")
        await screen.open_session(session)
        await expect(screen.prompts.last).to_contain_text(name[:10])
    command = f"printf '%s' {json.dumps(NAMES[0])}"
    harness.model.acts["tool"] = (
        Call("bash", json.dumps({"command": f"echo '{NAMES[1]}'", "description": NAMES[0]})),
        Call("view", json.dumps({"file_path": NAMES[0]})),
        Call(NAMES[0], json.dumps({NAMES[1]: NAMES[0]})),
        Call("bash", json.dumps({"command": command, "description": "print"})),
    )
    await screen.send("tool")
    await expect(screen.answers.last).to_contain_text("Done.")
    await expect(screen.at("tool")).to_have_count(4)
    await harmless(screen)


async def test_huge_input_does_not_hang_the_page(harness: PageHarness) -> None:
    harness.model.lumps.update(huge())
    screen = await harness.screen()
    await output(harness, screen, list(huge()))
    await harmless(screen)
    # Long lines can be scrolled to their ends: they are not clipped.
    harness.model.lumps["wide code"] = "```js\n" + f"let wide = '{'x' * 400}';\n" * 120 + "```"
    await screen.send("wide code")
    await screen.page.wait_for_function(_WIDE)
    await screen.send("still there?")
    await expect(screen.answers.last).to_contain_text("echo: still there?")
