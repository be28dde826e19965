"""R12 in the browser: nothing that is shown runs, and nobody else is asked for anything."""

import json

from playwright.async_api import expect

from holdfast.providers.scripted import Call, Say, Think
from server.helpers import prompt
from web.hostile import BEACON, MARKDOWN, NAMES, huge
from web.stage import Screen, Stage

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


async def harmless(screen: Screen) -> None:
    """Nothing ran, nothing is there that could, and every link goes where links may go."""
    assert await screen.page.evaluate(_INSPECT) == []


async def test_hostile_markdown_runs_nothing_and_asks_nobody(show: Stage) -> None:
    for name, text in MARKDOWN.items():
        show.model.acts[name] = (Think(text), Say(f"{text}\n\nend of {name}"))
    everything = "\n\n".join(MARKDOWN.values())
    show.model.acts["everything"] = (
        Think(everything),
        Say(f"{everything}\n\nend of everything"),
    )
    screen = await show.screen()
    dialogs: list[str] = []
    screen.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    for name in (*MARKDOWN, "everything"):
        await screen.send(name)
        await expect(screen.answers.last).to_contain_text(f"end of {name}")
        await screen.answers.last.locator("button[aria-expanded]").first.click()
        await harmless(screen)
    assert dialogs == []
    assert screen.page.url.startswith(screen.origin)
    assert BEACON not in await screen.page.evaluate(
        "performance.getEntriesByType('resource').map(one => one.name).join()"
    )


async def test_links_open_elsewhere_and_tell_nothing(show: Stage) -> None:
    show.model.acts["link"] = (Say("[there](https://example.org/x) end"),)
    screen = await show.screen()
    await screen.send("link")
    link = screen.answers.last.get_by_role("link", name="there")
    await expect(link).to_have_attribute("target", "_blank")
    relations = (await link.get_attribute("rel") or "").split()
    assert {"noopener", "noreferrer"} <= set(relations)


async def test_hostile_names_and_output_are_text(show: Stage) -> None:
    """Titles, prompts, file names, tool calls and what tools print are shown as they are."""
    client, workspace = await show.terminal()
    screen = await show.screen()
    for number, name in enumerate(NAMES):
        session = (await client.create_session(workspace, name)).id
        await prompt(client, workspace, session, name, f"r{number}")
        await screen.open_session(session)
        await expect(screen.prompts.last).to_contain_text(name[:10])
    command = f"printf '%s' {json.dumps(NAMES[0])}"
    show.model.acts["tool"] = (
        Call("bash", json.dumps({"command": f"echo '{NAMES[1]}'", "description": NAMES[0]})),
        Call("view", json.dumps({"file_path": NAMES[0]})),
        Call(NAMES[0], json.dumps({NAMES[1]: NAMES[0]})),
        Call("bash", json.dumps({"command": command, "description": "print"})),
    )
    await screen.send("tool")
    await expect(screen.answers.last).to_contain_text("Done.")
    await expect(screen.at("tool")).to_have_count(4)
    await harmless(screen)


async def test_huge_input_does_not_hang_the_page(show: Stage) -> None:
    screen = await show.screen()
    for name, text in huge().items():
        show.model.lumps[name] = text
        await screen.at("new-session").click()
        await screen.send(name)
        await expect(screen.prompts).to_have_count(1)
        await expect(screen.answers.last.locator("footer time")).to_be_visible()
        await harmless(screen)
    await screen.send("still there?")
    await expect(screen.answers.last).to_contain_text("echo: still there?")
