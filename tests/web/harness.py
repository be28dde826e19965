"""A real server, Debian's Chromium, and pages that are opened by a link, as by a user.

Errors that a page logs or throws, and requests to other hosts, fail a test that does not expect them.
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, Playwright, async_playwright, expect

from holdfast.client.client import Client
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelRequest, StreamPart, TextDelta
from holdfast.providers.scripted_model import Act, Say, ScriptedModel, Step
from server.helpers import EchoModel, Server, ServerDirectory, in_process_server, server_directory

__all__ = ["PHONE", "TIMEOUT", "WIDE", "PageHarness", "PlayModel", "Screen", "launched", "page_harness"]

TIMEOUT = 15_000.0
"""Milliseconds. Nothing takes so long but a fault."""
_LUMP = 4096
PHONE, WIDE = (390, 844), (1920, 1080)

expect.set_options(timeout=TIMEOUT)


class PlayModel(EchoModel):
    """Plays the acts that are set for a prompt; streams the words of `feed` for the prompt "feed"; else echoes."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: dict[str, tuple[Act, ...]] = {}
        self.lumps: dict[str, str] = {}
        """Long answers, which come in large pieces."""
        self.feed: asyncio.Queue[str | None] = asyncio.Queue()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        last = request.messages[-1]
        output = text_of(last)
        acts: tuple[Act, ...] = self.acts.get(output) or (Say(f"echo: {output}"),)
        if last.role != "user":
            acts = (Say("Done."),)
        elif (lump := self.lumps.get(output)) is not None:
            acts = ()
            for start in range(0, len(lump), _LUMP):
                yield TextDelta(lump[start : start + _LUMP])
        elif output == "feed":
            acts = ()
            while (word := await self.feed.get()) is not None:
                yield TextDelta(word)
        async for part in ScriptedModel([Step(acts)]).stream(request):
            yield part

    def stream_words(self, *words: str) -> None:
        for word in words:
            self.feed.put_nowait(word)

    def stop(self) -> None:
        self.feed.put_nowait(None)


class Screen:
    """One tab with shortcuts to its elements."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.faults: list[str] = []
        self.expected: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"broke: {error}"))
        page.on("console", lambda line: self._record_message(line.type, f"{line.text} {line.location.get('url', '')}"))
        page.on("request", lambda request: self._poll(request.url))

    def at(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    @property
    def composer(self) -> Locator:
        return self.at("composer")

    @property
    def answers(self) -> Locator:
        return self.page.locator('[data-testid="message"][data-role="assistant"]')

    @property
    def prompts(self) -> Locator:
        return self.page.locator('[data-testid="message"][data-role="user"]')

    async def send(self, text: str) -> None:
        await self.composer.fill(text)
        await self.composer.press("Enter")

    async def is_live(self) -> None:
        await expect(self.at("connection")).to_have_attribute("data-state", "live")

    async def cursor(self) -> int:
        return int(await self.at("connection").get_attribute("data-cursor") or 0)

    async def open_session(self, session: SessionId) -> None:
        await self.page.locator(f'[data-testid="session"][data-id="{session}"]').click()

    def check(self) -> None:
        faults = [item for item in self.faults if not any(re.search(known, item) for known in self.expected)]
        assert not faults, faults

    def _record_message(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(f"{kind}: {text}")

    def _poll(self, url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(self.origin):
            self.faults.append(f"asked another place: {url}")


class PageHarness:
    """A server in this loop, its model, and its pages."""

    def __init__(self, directory: ServerDirectory, server: Server, model: PlayModel, browser: Browser) -> None:
        self.where = directory
        self.server = server
        self.model = model
        self.browser = browser
        self.screens: list[Screen] = []
        self.contexts: list[BrowserContext] = []

    async def link(self, project: str = "project") -> str:
        made = await (await self.server.client()).open_web()
        return f"{made.url}#{urlencode({'code': made.code, 'dir': self.where.project(project)})}"

    async def screen(
        self,
        *,
        size: tuple[int, int] = (1280, 800),
        theme: str = "light",
        project: str = "project",
        link: str = "",
        proxy: str = "",
    ) -> Screen:
        """Open an authenticated, connected tab in a separate browser context."""
        context = await self.browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            proxy={"server": proxy, "bypass": "<-loopback>"} if proxy else None,
        )
        self.contexts.append(context)
        context.set_default_timeout(TIMEOUT)
        link = link or await self.link(project)
        screen = Screen(await context.new_page(), link.partition("/#")[0])
        self.screens.append(screen)
        await screen.page.goto(link, wait_until="commit")
        return screen

    async def terminal(self) -> tuple[Client, WorkspaceId]:
        """Another client in the same workspace."""
        return await self.server.open_workspace()

    async def close(self) -> None:
        for screen in self.screens:
            await asyncio.sleep(0)
            screen.check()

    async def end(self) -> None:
        for context in self.contexts:
            await context.close()


@asynccontextmanager
async def launched() -> AsyncIterator[Browser]:
    """Launch Debian's Chromium or $HOLDFAST_CHROMIUM; nothing is downloaded.

    The headless shell takes half the time of the full browser.
    """
    found = (shutil.which(name) for name in ("chromium-headless-shell", "chromium"))
    program = os.environ.get("HOLDFAST_CHROMIUM") or next(filter(None, found), None)
    if program is None:
        pytest.skip("chromium is not installed")
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    playwright: Playwright
    async with async_playwright() as playwright:
        home = tempfile.gettempdir()
        browser = await playwright.chromium.launch(
            executable_path=program, args=options, env={**os.environ, "HOME": home}
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def page_harness(
    browser: Browser, prepare: Iterable[Callable[[ServerDirectory], None]] = ()
) -> AsyncIterator[PageHarness]:
    model = PlayModel()
    async with server_directory() as directory:
        for step in prepare:
            step(directory)
        async with in_process_server(directory, model) as server:
            made = PageHarness(directory, server, model, browser)
            try:
                yield made
                await made.close()
            finally:
                model.stop()
                await made.end()
