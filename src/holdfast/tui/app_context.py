"""The interface between the terminal app and its controllers.

`HoldfastApp` receives keys and messages from Textual and passes each to the controller in charge. Controllers do not
know the app class: they receive an `AppContext`, which offers the widgets of the main screen, dialogs, notices and
background work. So the dependencies have one direction: app → controllers → context → connection and widgets.
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from textual.app import App
from textual.geometry import Size
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import WorkType

from holdfast.client.errors import ClientError
from holdfast.tui.server_connection import ServerConnection
from holdfast.tui.themes import PLAIN, Palette, derive_palette
from holdfast.tui.widgets.composer import Completer, Composer
from holdfast.tui.widgets.queue_panel import QueuePanel
from holdfast.tui.widgets.search_bar import SearchBar
from holdfast.tui.widgets.transcript import Transcript

__all__ = ["AppContext", "Severity"]

Severity: TypeAlias = Literal["information", "warning", "error"]
T = TypeVar("T")


class AppContext:
    """The app as its controllers see it.

    Textual mounts the widgets after the app has been constructed, and removes them before it ends. Widgets are
    therefore looked up at each use instead of being stored; code that may run before or after that time checks
    `is_mounted` first.
    """

    def __init__(self, app: App[int], connection: ServerConnection, request_frame: Callable[[], None]) -> None:
        self._app = app
        self.connection = connection
        self.request_frame = request_frame
        """Schedules a redraw; to be called after every change of state that is visible."""

    # The screen and its widgets.

    @property
    def main_screen(self) -> Screen[object]:
        """The main screen, also while a dialog is open."""
        return self._app.screen_stack[0]

    @property
    def is_mounted(self) -> bool:
        """True while the widgets of the main screen exist."""
        return bool(self._app.screen_stack) and bool(self.main_screen.query(Composer))

    @property
    def has_dialog(self) -> bool:
        """True while a dialog covers the main screen."""
        return len(self._app.screen_stack) > 1

    @property
    def size(self) -> Size:
        """The size of the terminal in cells."""
        return self._app.size

    @property
    def focused(self) -> Widget | None:
        """The widget with the focus on the current screen."""
        return self._app.focused

    @property
    def composer(self) -> Composer:
        """The prompt editor."""
        return self.main_screen.query_one(Composer)

    @property
    def completer(self) -> Completer:
        """The list of completions above the composer."""
        return self.main_screen.query_one(Completer)

    @property
    def transcript(self) -> Transcript:
        """The conversation."""
        return self.main_screen.query_one(Transcript)

    @property
    def queue(self) -> QueuePanel:
        """The queued prompts."""
        return self.main_screen.query_one(QueuePanel)

    @property
    def search_bar(self) -> SearchBar:
        """The search line."""
        return self.main_screen.query_one(SearchBar)

    def line(self, name: str) -> Static:
        """Return one of the text lines of the main screen."""
        return self.main_screen.query_one(f"#{name}", Static)

    @property
    def palette(self) -> Palette:
        """The styles of the current theme."""
        if self._app.no_color:
            return PLAIN
        theme = self._app.current_theme
        return derive_palette(theme.to_color_system().generate(), is_dark=theme.dark)

    # The configuration of the workspace.

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the workspace."""
        workspace = self.connection.view.workspace
        return (workspace.config if workspace else None) or {}

    @property
    def options(self) -> dict[str, Any]:
        """The options of the configuration."""
        found = self.config.get("options")
        return found if isinstance(found, dict) else {}

    # Notices, dialogs and actions.

    def notify(
        self, text: str, *, title: str = "", severity: Severity = "information", timeout: float | None = None
    ) -> None:
        """Show a notice at the edge of the screen. The text is not interpreted as markup."""
        self._app.notify(text, title=title, severity=severity, timeout=timeout, markup=False)

    async def show_dialog(self, dialog: Screen[T]) -> T | None:
        """Show a dialog and return its result. Only background work may wait for a dialog: see `start`."""
        return await self._app.push_screen_wait(dialog)

    async def run_action(self, name: str) -> None:
        """Run an action of the app, as its key would."""
        await self._app.run_action(name)

    def submit(self, text: str) -> None:
        """Send a text as if the user had typed it and pressed Enter."""
        self._app.post_message(Composer.Sent(text, queues=False))

    def suspend(self) -> AbstractContextManager[None]:
        """Leave the terminal to another program. Raises `SuspendNotSupported`."""
        return self._app.suspend()

    # Requests to the server.

    async def send(self, request: Awaitable[object]) -> bool:
        """Send a request and show its error. Returns True on success."""
        try:
            await request
        except ClientError as error:
            self.notify(str(error), severity="error", timeout=10)
            return False
        return True

    async def fetch(self, request: Awaitable[T]) -> T | None:
        """Send a request and return its result; None after an error, which is shown."""
        try:
            return await request
        except ClientError as error:
            self.notify(str(error), severity="error", timeout=10)
            return None

    # Background work and timers.

    def start(
        self,
        work: Callable[..., Coroutine[None, None, None]],
        *arguments: object,
        group: str = "default",
        is_exclusive: bool = False,
    ) -> None:
        """Run a coroutine function in the background; `is_exclusive` cancels earlier work of the same group."""
        # Not a coroutine: work that is cancelled before it starts would leave one that was never awaited.
        call: WorkType[None] = partial(work, *arguments)
        self._app.run_worker(call, group=group, exclusive=is_exclusive)

    def start_thread(self, work: Callable[[], None]) -> None:
        """Run a function in a thread. From there, only `call_from_thread` may be used."""
        self._app.run_worker(work, thread=True)

    def call_from_thread(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run a callback on the app's event loop, and wait for it."""
        self._app.call_from_thread(callback, *arguments)

    def cancel_group(self, group: str) -> None:
        """Cancel the background work of a group."""
        self._app.workers.cancel_group(self._app, group)

    def set_timer(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back once after this time."""
        return self._app.set_timer(seconds, callback)

    def call_after_keys(self, callback: Callable[[], None]) -> None:
        """Call back after the keys that were pressed earlier: on the path they take, through the composer and the app.

        A key is processed in two steps. The app forwards it to the composer, and messages that the composer posts in
        return are processed by the app later, so a callback that only waits for one of the two would overtake them.
        """
        self.composer.call_later(self._app.call_later, callback)

    def write_terminal(self, sequence: str) -> None:
        """Write a control sequence to the terminal."""
        driver = self._app._driver
        if driver is not None:
            driver.write(sequence)
            driver.flush()
