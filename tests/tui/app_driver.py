"""Drives the real terminal app against a real server: presses keys, and waits for what the screen shows."""

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

from holdfast.client.server_launcher import ServerLocation
from holdfast.engine.ports import Model
from holdfast.tui.app import HoldfastApp
from holdfast.tui.widgets.composer import Composer
from server.helpers import EchoModel, Server, ServerDirectory, in_process_server, server_directory

__all__ = ["AppDriver", "drawn", "open_app", "running_server"]


_POLL_INTERVAL = 0.005
"""Seconds between two checks of a condition: the screen does not report its changes."""


class KeyboardClock:
    """The clock of the keyboard: it runs, is stopped, or is moved ahead."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._stopped_at: float | None = None

    def __call__(self) -> float:
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) + self._ahead

    def stop(self) -> None:
        """Let no time pass until `start`, except by `advance`."""
        self._stopped_at = time.monotonic()

    def start(self) -> None:
        """Let time pass again."""
        self._stopped_at = None

    def advance(self, seconds: float) -> None:
        """Let this much time pass at once."""
        self._ahead += seconds


class AppDriver:
    """The app with a user in front of it."""

    def __init__(self, app: HoldfastApp, pilot: Pilot[int], clock: KeyboardClock | None = None) -> None:
        self.app = app
        self.pilot = pilot
        self.clock = clock or KeyboardClock()

    @property
    def composer(self) -> Composer:
        return self.app.context.composer

    async def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; fail with a picture of the screen."""
        try:
            async with asyncio.timeout(20):
                while not condition():
                    assert self.app.is_running, f"the app ended before: {what}"
                    await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError:
            raise AssertionError(f"timed out waiting for: {what}\n{self.picture()}") from None

    async def wait_for_text(self, text: str) -> None:
        """Wait until the conversation contains a text."""
        await self.wait_until(lambda: text in self.conversation(), text)

    async def wait_for_picture(self, text: str) -> None:
        """Wait until the screen shows a text. The layout follows changes of the conversation and of panels later."""
        await self.wait_until(lambda: text in self.picture(), text)

    async def wait_for_panel(self, kind: type[object]) -> None:
        """Wait until a panel of this kind is shown and can receive keys."""
        await self.wait_until(
            lambda: isinstance(self.app.approvals.panel, kind) and bool(self.app.approvals.keyboard.request),
            kind.__name__,
        )
        await self.pilot.pause()

    def stop_clock(self) -> None:
        """Let no time pass for the keyboard, however busy the machine is: no request accepts keys by itself."""
        self.clock.stop()

    async def settle_request(self) -> None:
        """Let the time pass after which the request accepts keys."""
        self.clock.start()
        self.clock.advance(60)
        self.app.approvals.tick_keyboard()
        await self.wait_until(lambda: self.app.approvals.keyboard.is_settled, "an active request")

    async def wait_for_no_panel(self) -> None:
        """Wait until no request is shown."""
        await self.wait_until(lambda: self.app.approvals.panel is None, "no request is shown")

    async def wait_for_dialog(self, kind: type[object]) -> None:
        """Wait until a dialog of this kind is open and can receive keys."""
        await self.wait_until(lambda: isinstance(self.app.screen, kind) and self.app.screen.is_mounted, kind.__name__)
        await self.pilot.pause()

    async def wait_for_no_dialog(self) -> None:
        """Wait until the main screen is shown."""
        await self.wait_until(lambda: len(self.app.screen_stack) == 1, "the conversation again")

    def conversation(self) -> str:
        """Return the rendered lines of the conversation."""
        rows = self.app.context.transcript.rows.rows
        return "\n".join(strip.text.rstrip() for row in rows for strip in row.lines or ())

    def line(self, name: str) -> str:
        """Return the content of a text line of the main screen."""
        return str(self.app.context.line(name).render())

    async def submit(self, text: str, key: str = "enter") -> None:
        """Insert a text into the composer and press a key."""
        self.composer.insert(text)
        await self.pilot.press(key)

    async def wait_for_notice(self, text: str) -> None:
        """Wait until a notice contains a text."""
        await self.wait_until(lambda: any(text in note.message for note in self.app._notifications), text)

    def picture(self) -> str:
        """Return the whole screen as text, without the parts that differ between runs."""
        wide, high = self.app.size
        console = Console(
            width=wide, height=high, file=io.StringIO(), force_terminal=True, record=True, legacy_windows=False
        )
        screen = self.app.screen
        console.print(screen._compositor.render_update(full=True, screen_stack=self.app._background_screens))
        text = console.export_text(styles=False)
        text = text.replace(self.app.connection.directory, "/project".ljust(len(self.app.connection.directory)))
        text = text.replace(self.app.connection.client.client_id[:8], "12345678")
        text = re.sub(r"\b\d\d:\d\d\b", "12:34", text)
        text = re.sub(r"\b\d+ s\b", "0 s", text).replace("Thought for 0 s", "Thought")
        text = re.sub(r"[\u2800-\u28ff]", "⠋", text)
        # The length of the system prompt is not part of a screen.
        text = re.sub(r" {3,}(?=\S.*? [\d.]+k? tokens \()", "   ", re.sub(r"[\d.]+k? tokens \(", "800 tokens (", text))
        return "\n".join(line.rstrip() for line in text.split("\n"))


def drawn(screen: AppDriver) -> list[Segment]:
    """Return everything that is drawn on the terminal."""
    update = screen.app.screen._compositor.render_update(full=True, screen_stack=screen.app._background_screens)
    return [segment for segment in Console(width=200).render(cast(RenderableType, update)) if not segment.control]


@asynccontextmanager
async def open_app(
    server: Server,
    *,
    session: str = "",
    size: tuple[int, int] = (100, 30),
    project: str = "project",
    yolo: bool = False,
) -> AsyncIterator[AppDriver]:
    """Open the app in a project of a server, and wait until it is connected."""
    directory = ServerLocation(server.address, str(server.directory.data), can_be_started=False)
    clock = KeyboardClock()
    app = HoldfastApp(directory, server.directory.project(project), session=session, yolo=yolo, clock=clock)
    async with app.run_test(size=size) as pilot:
        screen = AppDriver(app, pilot, clock)
        await screen.wait_until(lambda: app.connection.state == "live", "the workspace is open")
        yield screen


@asynccontextmanager
async def running_server(model: Model | None = None) -> AsyncIterator[tuple[ServerDirectory, Server]]:
    """Run a server with this model, by default one that echoes prompts."""
    async with server_directory() as directory, in_process_server(directory, model or EchoModel()) as server:
        yield directory, server
