"""Base class of the app: the link, the widgets, and requests to the server."""

import os
from collections.abc import Awaitable
from typing import Any, TypeVar

from textual.app import App
from textual.filter import Monochrome
from textual.screen import Screen

from holdfast.client.answer_focus import Focus
from holdfast.client.errors import ClientError
from holdfast.client.locate import ServerLocation
from holdfast.tui.palette import PLAIN, NoColorFilter, Palette, look_of
from holdfast.tui.server_connection import ServerConnection
from holdfast.tui.terminal_text import SanitizeFilter
from holdfast.tui.widgets.composer import Composer
from holdfast.tui.widgets.transcript import Transcript

__all__ = ["Stage"]

T = TypeVar("T")


class Stage(App[int]):
    """One workspace, one session at a time. The parts of the app are subclasses that depend only on this class."""

    def __init__(self, where: ServerLocation, directory: str, *, session: str = "", yolo: bool = False) -> None:
        super().__init__()
        # Textual's own filter keeps greys, and applies for an empty NO_COLOR too.
        self.no_color = bool(os.environ.get("NO_COLOR"))
        others = [item for item in self._filters if not isinstance(item, Monochrome)]
        self._filters = [*others, *([NoColorFilter()] if self.no_color else []), SanitizeFilter()]
        self.link = ServerConnection(where, directory, on_change=self.note_change, yolo=yolo)
        self.wanted = session
        self.escaped_at = 0.0
        self.keyboard = Focus()
        """Decides whether keys belong to the composer or to an open request."""
        self.is_away = False
        """True while another window has the focus."""

    @property
    def base(self) -> Screen[object]:
        """The main screen, also while a dialog is open."""
        return self.screen_stack[0]

    @property
    def is_shown(self) -> bool:
        """True between mounting and removal of the main screen."""
        return bool(self.screen_stack) and bool(self.base.query(Composer))

    @property
    def editor(self) -> Composer:
        """The prompt editor."""
        return self.base.query_one(Composer)

    @property
    def transcript(self) -> Transcript:
        """The conversation."""
        return self.base.query_one(Transcript)

    @property
    def look(self) -> Palette:
        """The styles of the current theme."""
        if self.no_color:
            return PLAIN
        theme = self.current_theme
        return look_of(theme.to_color_system().generate(), is_dark=theme.dark)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the workspace."""
        workspace = self.link.view.workspace
        return (workspace.config if workspace else None) or {}

    @property
    def options(self) -> dict[str, Any]:
        """The options of the configuration."""
        found = self.config.get("options")
        return found if isinstance(found, dict) else {}

    def note_change(self) -> None:
        """Schedule a frame."""

    async def say(self, call: Awaitable[object]) -> bool:
        """Send a request; an error is shown. Returns True on success."""
        try:
            await call
        except ClientError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return False
        return True

    async def ask(self, call: Awaitable[T]) -> T | None:
        """Send a request and return its result; None after an error, which is shown."""
        try:
            return await call
        except ClientError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return None
