"""Axe finds nothing serious, in light and dark, from phone to wide screen; nothing is wider than the screen."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.providers.scripted import Call, Say, Think
from web.stage import PHONE, WIDE, Screen, Stage

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
_SIZES = {"phone": PHONE, "laptop": (1280, 800), "wide": WIDE}


async def axe(screen: Screen) -> list[str]:
    """What Axe finds that is serious or worse."""
    if not _AXE.exists():
        pytest.skip("axe-core is not installed: run scripts/web install")
    await screen.page.evaluate(_AXE.read_text())
    options = {"resultTypes": ["violations"], "iframes": False}
    found: dict[str, Any] = await screen.page.evaluate("options => axe.run(document, options)", options)
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
    """Nothing reaches out of the screen but what can be scrolled there, and only small things are: code, tables."""
    assert await screen.page.evaluate(_TOO_WIDE) == []


@pytest.mark.parametrize(("theme", "size"), [("light", "phone"), ("dark", "laptop"), ("light", "wide")])
async def test_axe_finds_nothing_serious_and_everything_fits(show: Stage, theme: str, size: str) -> None:
    show.model.acts["talk"] = (
        Think("What would be best?"),
        Say(_ANSWER),
        Call("bash", json.dumps({"command": "seq 30", "description": "count"})),
    )
    show.model.acts["write it"] = (Call("write", json.dumps({"file_path": "a.txt", "content": "one\ntwo\n"})),)
    screen = await show.screen(size=_SIZES[size], theme=theme)
    faults: dict[str, list[str]] = {}

    async def look(name: str) -> None:
        if size != "wide":
            faults[name] = await axe(screen)
        await fits(screen)

    await screen.is_live()
    await expect(screen.page.locator("html")).to_have_attribute("data-theme", theme)
    await look("welcome")
    await screen.send("talk")
    await expect(screen.answers.last).to_contain_text("Done.")
    await look("conversation")
    await screen.page.keyboard.press("Control+k")
    await expect(screen.at("palette")).to_be_visible()
    await look("palette")
    await screen.page.keyboard.press("Escape")
    await screen.send("write it")
    await expect(screen.at("permission")).to_be_visible()
    await look("permission")
    await screen.at("permission").locator('[data-action="allow"]').click()
    await expect(screen.answers.last).to_contain_text("Done.")
    await screen.page.get_by_role("button", name="Timeline").click()
    await expect(screen.at("timeline")).to_be_visible()
    await look("timeline")
    await screen.page.get_by_role("button", name="Conversation").click()
    await screen.page.get_by_role("button", name="Side panel").click()
    await look("changes")
    assert not {name: found for name, found in faults.items() if found}
