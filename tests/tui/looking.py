"""The terminal app against the real server, with somebody in front of it."""

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from rich.console import Console, RenderableType
from rich.segment import Segment
from textual.pilot import Pilot
from textual.widgets import Static

from holdfast.client.locate import ServerLocation
from holdfast.engine.ports import Model
from holdfast.tui.app import HoldfastApp
from holdfast.tui.widgets.composer import Composer
from server.helpers import EchoModel, Place, Server, place, serving

__all__ = ["Screen", "drawn", "looking", "standing"]


class Screen:
    """The app with somebody in front of it."""

    def __init__(self, app: HoldfastApp, pilot: Pilot[int]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def editor(self) -> Composer:
        return self.app.editor

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(20):
                while not is_so():
                    assert self.app.is_running, f"the app ended before: {what}"
                    await asyncio.sleep(_moment())
        except TimeoutError:
            raise AssertionError(f"it did not come to: {what}\n{self.picture()}") from None

    async def shows(self, text: str) -> None:
        """Until the conversation shows it."""
        await self.until(lambda: text in self.conversation(), text)

    async def asks(self, kind: type[object]) -> None:
        """Until such a panel is shown, and the keyboard knows of it."""
        await self.until(lambda: isinstance(self.app.panel, kind) and bool(self.app.keyboard.request), kind.__name__)
        await self.pilot.pause()

    def stop_clock(self) -> None:
        """Let no time pass for the keyboard, however busy the machine is: no request accepts keys by itself."""
        now = self.app.clock()
        self.app.clock = lambda: now

    async def settles(self) -> None:
        """Let the time pass after which the request accepts keys."""
        ahead = self.app.clock() - time.monotonic() + 60
        self.app.clock = lambda: time.monotonic() + ahead
        self.app.tick_keyboard()
        await self.until(lambda: self.app.keyboard.is_settled, "an active request")

    async def answered(self) -> None:
        await self.until(lambda: self.app.panel is None, "no request is shown")

    async def opens(self, kind: type[object]) -> None:
        """Until such a dialog is open, and can be answered."""
        await self.until(lambda: isinstance(self.app.screen, kind) and self.app.screen.is_mounted, kind.__name__)
        await self.pilot.pause()

    async def closes(self) -> None:
        await self.until(lambda: len(self.app.screen_stack) == 1, "the conversation again")

    def conversation(self) -> str:
        rows = self.app.transcript.rows.rows
        return "\n".join(strip.text.rstrip() for row in rows for strip in row.lines or ())

    def line(self, name: str) -> str:
        return str(self.app.base.query_one(f"#{name}", Static).render())

    async def write(self, text: str, key: str = "enter") -> None:
        self.editor.insert(text)
        await self.pilot.press(key)

    async def said(self, text: str) -> None:
        """Until a note at the side says it."""
        await self.until(lambda: any(text in note.message for note in self.app._notifications), text)

    def picture(self) -> str:
        """The whole screen as text, without what differs from run to run."""
        wide, high = self.app.size
        console = Console(
            width=wide, height=high, file=io.StringIO(), force_terminal=True, record=True, legacy_windows=False
        )
        screen = self.app.screen
        console.print(screen._compositor.render_update(full=True, screen_stack=self.app._background_screens))
        text = console.export_text(styles=False)
        text = text.replace(self.app.link.directory, "/project".ljust(len(self.app.link.directory)))
        text = text.replace(self.app.link.client.client_id[:8], "12345678")
        text = re.sub(r"\b\d\d:\d\d\b", "12:34", text)
        text = re.sub(r"\b\d+ s\b", "0 s", text).replace("Thought for 0 s", "Thought")
        text = re.sub(r"[\u2800-\u28ff]", "⠋", text)
        # How long the instructions of a model are is no part of a screen.
        text = re.sub(r" {3,}(?=\S.*? [\d.]+k? tokens \()", "   ", re.sub(r"[\d.]+k? tokens \(", "800 tokens (", text))
        return "\n".join(line.rstrip() for line in text.split("\n"))


def drawn(screen: Screen) -> list[Segment]:
    """All that the terminal is told to show now."""
    update = screen.app.screen._compositor.render_update(full=True, screen_stack=screen.app._background_screens)
    return [segment for segment in Console(width=200).render(cast(RenderableType, update)) if not segment.control]


@asynccontextmanager
async def looking(
    server: Server,
    *,
    session: str = "",
    size: tuple[int, int] = (100, 30),
    project: str = "project",
    yolo: bool = False,
) -> AsyncIterator[Screen]:
    where = ServerLocation(server.address, str(server.place.data), can_be_started=False)
    app = HoldfastApp(where, server.place.project(project), session=session, yolo=yolo)
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.link.state == "live", "the workspace is open")
        yield screen


@asynccontextmanager
async def standing(model: Model | None = None) -> AsyncIterator[tuple[Place, Server]]:
    async with place() as where, serving(where, model or EchoModel()) as server:
        yield where, server


def _moment() -> float:
    """Between two looks at a screen that tells nobody when it has changed."""
    return 0.005
