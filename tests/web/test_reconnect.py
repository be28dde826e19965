"""R6 in the browser: a broken stream is resumed by number and reported; the page reconnects to a restarted server."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.async_api import Browser, expect

from cli.isolated_home import IsolatedHome, isolated_home
from holdfast.client.events import StreamEvent
from holdfast.domain.events import Attached, AttachedEvent, HelloEvent
from holdfast.domain.ids import SessionId
from holdfast.testing.gates import start
from server.helpers import collect_run_ends, read_until, send_prompt
from stream_servers import stream_server
from web.harness import TIMEOUT, PageHarness, Screen

_LOST = r"Failed to load resource|net::ERR|status of 401"


class Line:
    """A proxy between browser and server that can be cut: it passes bytes on and understands nothing."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.is_cut = False
        self.address = ""
        self._ends: set[asyncio.StreamWriter] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        there, onward = await asyncio.open_connection("127.0.0.1", self.port)
        ends = {writer, onward}
        self._ends |= ends
        await asyncio.wait(
            {start(self._pass(reader, onward)), start(self._pass(there, writer))}, return_when=asyncio.FIRST_COMPLETED
        )
        for end in ends:
            end.transport.abort()
        self._ends -= ends

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    def cut(self) -> None:
        self.is_cut = True
        for end in self._ends:
            end.transport.abort()

    def restore_connection(self) -> None:
        self.is_cut = False


@asynccontextmanager
async def line_to(port: int) -> AsyncIterator[Line]:
    line = Line(port)
    async with stream_server(line._serve) as own_port:
        line.address = f"http://127.0.0.1:{own_port}"
        try:
            yield line
        finally:
            line.cut()


async def test_a_broken_stream_is_resumed_by_number_and_reported(harness: PageHarness) -> None:
    link = await harness.link()
    async with line_to(urlsplit(link).port or 0) as line:
        screen = await harness.screen(link=link, proxy=line.address)
        screen.expected.append(_LOST)
        asked: list[str] = []
        screen.page.on("request", lambda request: asked.append(request.url))
        await screen.send("feed")
        harness.model.stream_words("Before ")
        await expect(screen.answers.last).to_contain_text("Before")
        client, workspace = await harness.terminal()
        (run,) = await client.list_runs(workspace)
        before = await screen.cursor()
        line.cut()
        await expect(screen.at("connection")).not_to_have_attribute("data-state", "live")
        harness.model.stream_words("after.")
        harness.model.stop()
        await collect_run_ends(client, workspace, [run.run_id])
        await send_prompt(client, workspace, run.session_id, "while away", "r2")
        await collect_run_ends(client, workspace, ["r2"])
        asked.clear()
        line.restore_connection()
        await screen.is_live()
        await expect(screen.at("resumed")).to_contain_text(f"after event {before}")
        await expect(screen.answers).to_have_count(2)
        await expect(screen.answers.first).to_contain_text("Before after.")
        await expect(screen.answers.last).to_contain_text("echo: while away")
        streams = [dict(parse_qsl(urlsplit(url).query)) for url in asked if "/events?" in url]
        assert streams[-1]["since"] == str(before)
        assert not [url for url in asked if "/snapshot" in url], "nothing was read anew"


async def _link(home: IsolatedHome) -> str:
    return await asyncio.to_thread(home.stdout_of, "web", "--no-open")


async def test_the_page_reconnects_to_a_restarted_server_and_keeps_the_text(browser: Browser) -> None:
    """R2, R9: the active run ends as interrupted; the page reconnects automatically, with a new token."""
    with isolated_home() as home:
        context = await browser.new_context()
        context.set_default_timeout(TIMEOUT)
        try:
            link = await _link(home)
            screen = Screen(await context.new_page(), link.partition("/#")[0])
            screen.expected.append(_LOST)
            await screen.page.goto(link)
            await screen.send("words=4000 pause=5")
            # Text is stored in batches: older text is not lost.
            await expect(screen.answers.last).to_contain_text("word150")
            listed = screen.at("session")
            await expect(listed.locator(".dot.busy")).to_have_count(1)
            pid = home.server_process()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await expect(screen.at("connection")).not_to_have_attribute("data-state", "live")
            # Any command of the user starts the server again.
            assert "interrupted" in await asyncio.to_thread(home.stdout_of, "runs", "--json")
            await screen.is_live()
            await expect(screen.at("stop")).to_be_hidden()
            await expect(listed).to_contain_text("2 messages")
            await expect(listed.locator(".dot.busy")).to_have_count(0)
            await expect(screen.answers.last).to_contain_text("word3")
            await expect(screen.answers.last).to_contain_text(re.compile("interrupted", re.IGNORECASE))
            await screen.send("words=3")
            await expect(screen.answers.last).to_contain_text("word1 word2 word3")
            screen.check()
        finally:
            await context.close()


@pytest.mark.parametrize(
    ("ask", "dialog"),
    [
        ('tool=write {"file_path": "x", "content": "1"}', "permission"),
        ('tool=question {"questions": [{"type": "yes_no", "question": "?", "description": "!"}]}', "question"),
    ],
)
async def test_requests_of_a_killed_server_are_closed(browser: Browser, ask: str, dialog: str) -> None:
    """R10: the panel closes with the run of its request."""
    with isolated_home() as home:
        context = await browser.new_context()
        context.set_default_timeout(TIMEOUT)
        try:
            link = await _link(home)
            screen = Screen(await context.new_page(), link.partition("/#")[0])
            screen.expected.append(_LOST)
            await screen.page.goto(link)
            await screen.send(ask)
            await expect(screen.at(dialog)).to_be_visible()
            pid = home.server_process()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await expect(screen.at("connection")).not_to_have_attribute("data-state", "live")
            assert "interrupted" in await asyncio.to_thread(home.stdout_of, "runs", "--json")
            await screen.is_live()
            await expect(screen.at(dialog)).to_be_hidden()
            await screen.send("words=3")
            await expect(screen.answers.last).to_contain_text("word1 word2 word3")
            screen.check()
        finally:
            await context.close()


async def test_a_page_without_a_token_shows_how_to_get_a_link(harness: PageHarness) -> None:
    link = await harness.link()
    first = await harness.screen(link=link)
    await first.is_live()
    used = await harness.screen(link=link)
    used.expected.append(_LOST)
    await expect(used.at("entry")).to_contain_text("holdfast web")
    bare = await harness.screen(link=link.partition("#")[0])
    await expect(bare.at("entry")).to_contain_text("holdfast web")
    await first.page.reload()
    await first.is_live()
    assert "code" not in first.page.url
    # A new link that is followed in the same tab lets it in, and another one leads to another directory.
    for screen, project in ((bare, "project"), (first, "other")):
        await screen.page.goto(await harness.link(project))
        await screen.is_live()
        await expect(screen.page).to_have_title(f"{project} · Holdfast")
        assert "code" not in screen.page.url


async def test_the_url_identifies_the_session(harness: PageHarness) -> None:
    client, workspace = await harness.terminal()
    session: SessionId = (await client.create_session(workspace, "to be found")).id
    await send_prompt(client, workspace, session, "hello", "r1")
    await collect_run_ends(client, workspace, ["r1"])
    screen = await harness.screen()
    await screen.open_session(session)
    await expect(screen.answers.last).to_contain_text("echo: hello")
    await screen.page.reload()
    await expect(screen.answers.last).to_contain_text("echo: hello")
    # Back and forward work, too, and other clients see the session of the page.
    await screen.at("new-session").click()
    await expect(screen.answers).to_have_count(0)
    async with client.events(workspace, since=await screen.cursor()) as events:
        await read_until(events, lambda item: isinstance(item.event, HelloEvent))
        await screen.page.go_back()
        await read_until(events, _shows(session))
    await expect(screen.answers.last).to_contain_text("echo: hello")


def _shows(session: SessionId) -> Callable[[StreamEvent], bool]:
    def is_there(item: StreamEvent) -> bool:
        event = item.event
        return isinstance(event, AttachedEvent) and event.change.object == Attached(session, 1)

    return is_there
