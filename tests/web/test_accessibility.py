"""Axe finds no serious violations in light and dark, from phone to wide screen; nothing is wider than the screen."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.providers.scripted_model import Call, Say, Think
from web.harness import PHONE, WIDE, PageHarness, Screen

_AXE = Path(__file__).resolve().parents[2] / "web/node_modules/axe-core/axe.min.js"
_ANSWER = """## A plan

Some *text* with `code`, a [link](https://example.org) and a list:

1. one
2. two

```python
def added(x: int) -> int:
    return x + 1  # a comment that is longer than a phone is wide, so that it has to be scrolled
```

| name | value |
|---|---|
| a | 1 |

> quoted words
"""
_CODE = '''"""Words."""

import os  # a comment


@cached
def one(x: int = 1) -> str:
    return f"{x} {os.sep!r}" if x > 0.5 else None
'''
_SIZES = {"phone": (PHONE, (340, 700), (590, 840)), "laptop": ((1280, 800), (1024, 768), WIDE)}
"""Axe looks at the first; everything has to fit all of them."""


async def axe(screen: Screen, place: str) -> list[str]:
    """Return the violations that Axe rates as serious or worse."""
    if not _AXE.exists():
        pytest.skip("axe-core is not installed: run scripts/web install")
    if not await screen.page.evaluate("'axe' in window"):
        await screen.page.evaluate(_AXE.read_text())
    options = {"resultTypes": ["violations"], "iframes": False}
    found: dict[str, Any] = await screen.page.evaluate("asked => axe.run(...asked)", [place, options])
    serious = [item for item in found["violations"] if item["impact"] in ("serious", "critical")]
    return [
        f"{item['id']} {node['target']}: {node['failureSummary']}" for item in serious for node in item["nodes"][:3]
    ]


_TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter(one => {
  const place = one.getBoundingClientRect();
  if (!place.width || !one.checkVisibility({ checkOpacity: true })) return false;
  const scrolls = ["auto", "scroll"].includes(getComputedStyle(one).overflowX) && one.scrollWidth > one.clientWidth + 1;
  if (scrolls && place.height > innerHeight / 2) return true;
  if (place.right <= innerWidth + 1) return false;
  for (let above = one.parentElement; above; above = above.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(above).overflowX)) return false;
  return true;
}).map(one => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)"""


async def fits(screen: Screen) -> None:
    """Nothing is wider than the screen except scrollable elements such as code and tables."""
    await screen.page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert await screen.page.evaluate(_TOO_WIDE) == []


async def test_a_long_session_list_does_not_shrink_the_elements_above_it(harness: PageHarness) -> None:
    client, workspace = await harness.terminal()
    for number in range(30):
        await client.create_session(workspace, f"number {number}")
    screen = await harness.screen()
    await expect(screen.at("session")).to_have_count(30)
    sizes = "['.side-head', 'header.bar'].map(one => document.querySelector(one).offsetHeight)"
    left, right = await screen.page.evaluate(sizes)
    assert left == right


@pytest.mark.parametrize(("theme", "size"), [("light", "phone"), ("dark", "laptop")])
async def test_axe_finds_no_serious_violations_and_everything_fits(harness: PageHarness, theme: str, size: str) -> None:
    harness.model.acts["talk"] = (
        Think("What would be best?"),
        Say(_ANSWER),
        Call("bash", json.dumps({"command": "seq 30", "description": "count"})),
    )
    harness.model.acts["write it"] = (Call("write", json.dumps({"file_path": "a.py", "content": _CODE})),)
    first, *others = _SIZES[size]
    screen = await harness.screen(size=first, theme=theme)
    faults: dict[str, list[str]] = {}

    async def look(name: str, place: str = "html") -> None:
        """Check new elements; the others were checked before."""
        faults[name] = await axe(screen, place)
        for width, height in (*others, first):
            await screen.page.set_viewport_size({"width": width, "height": height})
            await fits(screen)

    await screen.is_live()
    await expect(screen.page.locator("html")).to_have_attribute("data-theme", theme)
    await look("welcome")
    await screen.send("talk")
    await expect(screen.answers.last).to_contain_text("Done.")
    await look("conversation")
    await screen.page.keyboard.press("Control+k")
    await expect(screen.at("palette")).to_be_visible()
    await look("palette", "dialog[open]")
    await screen.page.keyboard.press("Escape")
    await screen.send("write it")
    await expect(screen.at("permission").locator(".diff.coloured")).to_be_visible()
    await look("permission", '[data-testid="permission"]')
    await screen.at("permission").locator('[data-action="allow"]').click()
    await expect(screen.answers.last).to_contain_text("Done.")
    await screen.page.get_by_role("button", name="Timeline").click()
    await expect(screen.at("timeline")).to_be_visible()
    await look("timeline", "main")
    await screen.page.get_by_role("button", name="Conversation").click()
    await screen.page.get_by_role("button", name="Side panel").click()
    await screen.page.locator(".change-name").click()
    await expect(screen.page.locator(".change .diff.coloured")).to_be_visible()
    await look("changes", "aside.panel")
    assert not {name: found for name, found in faults.items() if found}
