"""The page in Chromium: loading time, and the cost of streaming a long answer, frame by frame."""

import asyncio
import gzip
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from bench.figures import Figure, Goal
from bench.in_process import directory
from holdfast.client.server_launcher import locate
from holdfast.domain.model_requests import FinishedPart, ModelInfo, ModelRequest, StreamPart, TextDelta
from holdfast.server.serve import ServerOptions, serve
from holdfast.server.web.web_app import BUNDLE

__all__ = ["measure"]

TOKENS = 4_000
PAUSE = 0.004
_PATIENCE = 90_000
_BLOCK = """
## Part {number}

Some words about this, *some* of them **strong**, one `named`, and a [link](https://example.org/{number}).

- the first point, which goes on for a while
- the second one

```python
def part_{number}(x: int) -> list[str]:
    return [f"{{x}} {{y}}" for y in range({number})]  # a comment
```

| name | value |
|---|---|
| part | {number} |
"""
_WATCH = """() => {
  const frames = (window.frames_ = []);
  let last = performance.now();
  const tick = now => {
    if (window.frames_ !== frames) return;
    frames.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""


def _tokens() -> list[str]:
    """Yield Markdown with all constructs, in pieces as models send them."""
    text = "".join(_BLOCK.format(number=number) for number in range(TOKENS // 60))
    pieces = [text[start : start + 5] for start in range(0, len(text), 5)]
    return (pieces * (TOKENS // len(pieces) + 1))[:TOKENS]


class _Talker:
    """A model that sends one long answer at a constant rate."""

    @property
    def info(self) -> ModelInfo:
        return ModelInfo("bench", "talker", context_window=200_000)

    async def large(self) -> "_Talker":
        return self

    async def small(self) -> "_Talker":
        return self

    async def renewed(self, _: object) -> None:
        return None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        began = time.perf_counter()
        for number, piece in enumerate(_tokens() if request.tools else ["A title"]):
            yield TextDelta(piece)
            await asyncio.sleep(max(0.0, began + number * PAUSE - time.perf_counter()))
        yield FinishedPart("stop")


def _work(trace: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the tasks of the page's main thread: start in seconds, and processor time in milliseconds."""
    main = {(item["pid"], item["tid"]) for item in trace if item.get("args", {}).get("name") == "CrRendererMain"}
    tasks = [item for item in trace if item["name"] == "RunTask" and (item["pid"], item["tid"]) in main]
    return sorted((item["ts"] / 1e6, item.get("tdur", 0) / 1e3) for item in tasks)


async def _frames(page: Page) -> list[float]:
    """Return the duration of each frame in milliseconds, until the end of the answer."""
    await _ask(page)
    await page.evaluate(_WATCH)
    await asyncio.sleep(TOKENS * PAUSE)
    await _end(page)
    frames: list[float] = await page.evaluate("window.frames_")
    return frames


async def _worked(browser: Browser, page: Page) -> list[tuple[float, float]]:
    """Return the processor time by task. Tracing costs time itself, so it is measured with a separate answer."""
    await _ask(page)
    await browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline"])
    await asyncio.sleep(TOKENS * PAUSE)
    trace: dict[str, Any] = json.loads(await browser.stop_tracing())
    await _end(page)
    return _work(trace["traceEvents"])


async def _ask(page: Page) -> None:
    await page.get_by_test_id("new-session").click()
    await page.get_by_test_id("composer").fill("talk")
    await page.get_by_test_id("composer").press("Enter")
    await page.get_by_test_id("stop").wait_for()


async def _end(page: Page) -> None:
    await page.get_by_test_id("stop").wait_for(state="hidden", timeout=_PATIENCE)


async def _measured(link: str) -> tuple[float, list[float], list[tuple[float, float]]]:
    program = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or "chromium"
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=options)
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(_PATIENCE)
        began = time.perf_counter()
        await page.goto(link)
        await page.locator('[data-testid="connection"][data-state="live"]').wait_for()
        there = time.perf_counter() - began
        # Other work on the machine only delays frames: the better of two answers is closer to our own cost.
        frames = min([await _frames(page) for _ in range(2)], key=max)
        work = await _worked(browser, page)
        await browser.close()
    return there * 1e3, frames, work


def _quarter(work: list[tuple[float, float]], number: int) -> float:
    """Return the processor time of one quarter of the duration, in milliseconds."""
    began, ended = work[0][0], work[-1][0]
    size = (ended - began) / 4
    return sum(spent for at, spent in work if number <= (at - began) / size < number + 1)


def _environment(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "XDG"))}
    return {**kept, "HOME": str(root), "XDG_RUNTIME_DIR": str(root), "HOLDFAST_DATA_DIR": str(root / "d")}


def measure() -> list[Figure]:
    """Return the rows.

    Frames are those of a browser without a screen, which draws with the processor; other work delays them.
    Work is processor time of the page's own thread, which is not affected by other work.
    """
    if shutil.which("chromium") is None and "HOLDFAST_CHROMIUM" not in os.environ:
        print("omitted: the page, because chromium is not installed", file=sys.stderr)
        return []
    with directory() as root:
        (root / "holdfast").mkdir(mode=0o700)
        known = _environment(root)
        server = subprocess.Popen([sys.executable, "-m", "bench.web", str(root)], env=known, stderr=subprocess.PIPE)
        try:
            assert server.stderr is not None
            assert any(b"listening" in line for line in server.stderr)
            command = [sys.executable, "-m", "holdfast", "web", "--no-open"]
            link = subprocess.run(command, env=known, cwd=root, check=True, capture_output=True, text=True).stdout
            there, frames, work = asyncio.run(_measured(link.strip()))
        finally:
            server.kill()
            server.communicate()
    first, last = (_quarter(work, number) for number in (0, 3))
    packed = sum(len(gzip.compress(path.read_bytes(), 9)) for path in BUNDLE.rglob("*") if path.is_file())
    return [
        Figure("page: until it is live", there, "ms", goal=Goal(1_500)),
        Figure("page: 4,000 tokens, the worst frame", max(frames), "ms", goal=Goal(50)),
        Figure("page: the most work for a frame", max(spent for _, spent in work), "ms", goal=Goal(50)),
        Figure("page: work of the last quarter", last, "ms", first, "the first quarter", Goal(1.25, is_ratio=True)),
        Figure("page: all its files, packed", packed / 1024, "KiB", goal=Goal(250)),
    ]


def _serve(root: Path) -> None:
    logging.basicConfig(level=logging.INFO)
    where = locate(environment=_environment(root))
    asyncio.run(serve(ServerOptions(Path(where.data_dir), Path(where.address.path)), _Talker()))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
