"""The terminal app: shows the link's view and forwards the user's actions."""

import asyncio
import os
import signal
import threading
import time
from typing import ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from holdfast.client.errors import ClientError
from holdfast.domain.ids import SessionId
from holdfast.tui.approvals import Asking
from holdfast.tui.keys import learn_keys
from holdfast.tui.palette import THEMES, first_theme
from holdfast.tui.pickers import Choosing, Extensions
from holdfast.tui.prompt_actions import Prompting
from holdfast.tui.rendering import SECOND_ESCAPE, Drawing
from holdfast.tui.screens.help import HelpScreen
from holdfast.tui.widgets.approval_panel import ApprovalPanel
from holdfast.tui.widgets.composer import Completer, Composer
from holdfast.tui.widgets.queue_panel import QueuePanel
from holdfast.tui.widgets.search_bar import SearchBar
from holdfast.tui.widgets.transcript import Transcript
from holdfast.tui.widgets.welcome import doors

__all__ = ["HoldfastApp"]

_ASKS_SERVER = frozenset({"commands", "effort", "sessions", "new_session", "models", "yolo", "escape", "recall"})
_ALWAYS = frozenset({"leave", "suspend_process"})
"""Actions that are also available while a dialog is open."""


class HoldfastApp(Drawing, Asking, Prompting, Choosing, Extensions, inherit_bindings=False):
    """The application: one workspace, one session at a time."""

    CSS_PATH = "holdfast.tcss"
    TITLE = "Holdfast"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+p", "commands", "Commands", priority=True),
        Binding("ctrl+s", "sessions", "Sessions", priority=True),
        Binding("ctrl+n", "new_session", "New session", priority=True),
        Binding("ctrl+l", "models", "Models", priority=True),
        Binding("ctrl+g,f1", "help", "Help", priority=True),
        Binding("f2", "effort", "Thinking", priority=True),
        Binding("ctrl+y", "yolo", "Ask or not", priority=True),
        Binding("ctrl+t", "queue_focus", "Queue", priority=True),
        Binding("ctrl+f", "find", "Find", priority=True),
        Binding("ctrl+o", "editor", "Editor", priority=True),
        Binding("ctrl+r", "recall", "Sent before", priority=True),
        Binding("ctrl+z", "suspend_process", "Suspend", priority=True),
        Binding("tab", "switch", "Focus", priority=True),
        Binding("pageup", "page(-1)", "Page up", priority=True),
        Binding("pagedown", "page(1)", "Page down", priority=True),
        Binding("ctrl+end", "follow", "Follow", priority=True),
        Binding("escape", "escape", "Cancel"),
        Binding("ctrl+c", "leave", "Leave", priority=True),
    ]

    _found = "looking …"
    _left_at = -SECOND_ESCAPE
    _doors: tuple[str, ...] = ()
    _problems: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        """Compose the main screen."""
        with Horizontal(id="top"):
            yield Static(id="top-left")
            yield Static(id="top-right")
        with Vertical(id="welcome"):
            yield Static(id="welcome-text")
            yield OptionList(id="welcome-doors")
        yield Transcript(id="transcript")
        yield SearchBar(id="finder")
        yield Static(id="shell")
        yield Static(id="activity")
        yield QueuePanel(id="queue")
        yield Completer(id="completer")
        yield Static(id="attachments")
        yield Composer(id="editor")
        yield Static(id="hints")

    def on_mount(self) -> None:
        """Set up the theme and the widgets, and connect."""
        learn_keys()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = first_theme(os.environ)
        for name in ("#finder", "#completer", "#attachments", "#shell"):
            self.query_one(name).display = False
        self.editor.focus()
        self.app_resume_signal.subscribe(self, lambda _: self.note_resume())
        self.begin_drawing()
        _wake_for_resizes()
        self._open()

    def watch_theme(self) -> None:
        """Apply a changed theme to the conversation."""
        for transcript in self.query(Transcript):
            transcript.set_look(self.look)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the conversation's keys while a dialog is open."""
        if action in _OURS:
            return len(self.screen_stack) == 1 and (self.link.is_open or action not in _ASKS_SERVER)
        return True

    @work
    async def _open(self) -> None:
        try:
            await self.link.open()
            if self.wanted:
                await self._show(self.wanted)
        except ClientError as error:
            self.exit(4, message=str(error))
            return
        self.transcript.directory = self.link.directory
        self._take_theme()
        self.note_change()
        await self.remember_prompts()
        await self._look_for_models()
        await self._look_for_trust()

    def _show_problems(self) -> None:
        """Notify of errors in the settings, each once."""
        workspace = self.link.view.workspace
        problems = () if workspace is None else workspace.problems
        for problem in problems if problems != self._problems else ():
            if problem not in self._problems:
                text = f"Error in the settings: {problem}"
                self.notify(text, severity="error", timeout=30, markup=False)
        self._problems = problems

    def _take_theme(self) -> None:
        tui = self.options.get("tui")
        name = str(tui.get("theme", "")) if isinstance(tui, dict) else ""
        if name in self.available_themes and name != self.theme:
            self.theme = name

    async def _look_for_models(self) -> None:
        """Find providers that are ready, for the welcome screen."""
        try:
            providers = await self.link.client.list_providers(self.link.workspace)
        except ClientError:
            return
        usable = [item for item in providers if not item.get("lack") and item.get("id") != "demo"]
        names = [str(item.get("name") or item["id"]) for item in usable if item.get("models")]
        self._found = ", ".join(names) or "no key, no model on this machine: ctrl+l takes a key"
        self.note_change()

    async def _look_for_trust(self) -> None:
        """Notify of project settings that have no effect until the project is trusted."""
        try:
            trust = await self.link.client.get_trust(self.link.workspace)
        except ClientError:
            return
        if trust.withheld and not trust.trusted:
            text = "This project brings settings that are not used until you trust it. Look at them: holdfast trust"
            self.notify(text, severity="warning", timeout=15)

    def found_models(self) -> str:
        """Return the providers that are ready, and redraw the start actions."""
        self._draw_doors()
        return self._found

    def _draw_doors(self) -> None:
        found, accent = doors(self.link), self.transcript.look.accent
        names = (accent, *(title for _, title, _ in found))
        if names != self._doors:
            self._doors = names
            options = self.base.query_one("#welcome-doors", OptionList)
            options.clear_options()
            wide = max(len(title) for _, title, _ in found)
            for action, title, about in found:
                line = Text.assemble(("▸ ", accent), (f"{title:<{wide}}   ", "bold"), (about, "dim"))
                options.add_option(Option(line, id=action))

    async def _show(self, session: str) -> None:
        if session == "last":
            top = [item for item in self.link.view.sessions.values() if not item.parent_session_id]
            latest = max(top, key=lambda item: item.updated_at, default=None)
            session = latest.id if latest else ""
        if not session:
            return
        await self.link.choose(SessionId(session))
        if session not in self.link.view.sessions:
            self.exit(2, message=f"There is no session {session} here: holdfast sessions lists them.")

    async def on_unmount(self) -> None:
        """Close the connection."""
        await self.link.close()

    def after_frame(self) -> None:
        """Update everything else that depends on the view."""
        self.draw_asks()
        self.note_cancelled(self.link.ended)
        self.tell_ends()
        self._show_problems()
        while self.link.told:
            self.notify(self.link.told.pop(0), severity="warning", timeout=15, markup=False)

    # Navigation.

    @on(OptionList.OptionSelected, "#welcome-doors")
    async def _door(self, event: OptionList.OptionSelected) -> None:
        self.editor.focus()
        match event.option.id:
            case "tour":
                self.post_message(Composer.Sent("tour", queues=False))
            case "last":
                await self.say(self._show("last"))
            case action:
                await self.run_action(str(action))

    def action_switch(self) -> None:
        """Move the focus between the editor and the conversation, or accept a completion."""
        if self.editor.completes and self.editor.has_focus:
            self.base.query_one(Completer).pick()
        elif not self.editor.has_focus:
            # At once, so that text typed next goes to the editor.
            self.base.set_focus(self.editor)
            self.transcript.find("")
        elif self.transcript.display:
            self.base.set_focus(self.transcript)
        else:
            options = self.base.query_one("#welcome-doors", OptionList)
            options.highlighted = options.highlighted or 0
            options.focus()

    def action_page(self, by: int) -> None:
        """Scroll by a page."""
        if isinstance(self.panel, ApprovalPanel) and self.keyboard.is_focused:
            self.panel.scroll_what(by * 12)
            return
        transcript = self.transcript
        transcript.scroll_relative(y=by * max(1, transcript.size.height - 2), animate=False)

    def action_follow(self) -> None:
        """Scroll to the end."""
        self.transcript.action_bottom()

    def action_fold_all(self) -> None:
        """Fold or unfold everything."""
        self.transcript.action_fold_all()

    def action_help(self) -> None:
        """Show the keys."""
        name = self.link.client.client_id[:8] if self.link.is_open else ""
        self.push_screen(HelpScreen(self.transcript.look.accent, name))

    def action_leave(self) -> None:
        """Leave, after keys that were typed earlier: the call takes the same path, from the editor to the screen and
        the app.
        """
        self.editor.call_later(self.base.call_later, self.call_later, self._leave)

    def _leave(self) -> None:
        """Leave at once, or on the second call if the editor has text that was not sent."""
        now = time.monotonic()
        if (self.editor.text.strip() or self.editor.has_attachments) and now - self._left_at > SECOND_ESCAPE:
            self._left_at = now
            self.notify("What you wrote is not sent. ctrl+c again leaves.", severity="warning", timeout=SECOND_ESCAPE)
        else:
            self.exit(0)

    def action_find(self) -> None:
        """Open the search line."""
        if self.transcript.display:
            self.base.query_one(SearchBar).open()

    @on(SearchBar.Sought)
    def _sought(self, event: SearchBar.Sought) -> None:
        self.base.query_one(SearchBar).tell(*self.transcript.find(event.words))

    @on(SearchBar.Gone)
    def _gone(self, event: SearchBar.Gone) -> None:
        self.base.query_one(SearchBar).tell(*self.transcript.find_next(event.by))

    @on(SearchBar.Closed)
    def _found_enough(self) -> None:
        self.transcript.focus()

    @on(Transcript.Moved)
    def _moved(self) -> None:
        self.note_change()

    @on(Transcript.Copied)
    def _copied(self, event: Transcript.Copied) -> None:
        self.copy_to_clipboard(event.text)
        lines = event.text.count("\n") + 1
        self.notify(f"Copied {lines} line{'s' * (lines > 1)}.")

    def on_key(self, event: events.Key) -> None:
        """Forward letters typed on the welcome screen to the editor."""
        if self.focused is not None and self.focused.id == "welcome-doors" and event.character and event.is_printable:
            self.editor.focus()
            self.editor.insert(event.character)

    @on(Composer.Chose)
    def _chose(self, event: Composer.Chose) -> None:
        """Forward keys to the completer while it is shown."""
        completer = self.base.query_one(Completer)
        match event.key:
            case "up":
                completer.action_cursor_up()
            case "down":
                completer.action_cursor_down()
            case "escape":
                completer.offer(())
                self.editor.completes = False
            case _:
                completer.pick()


_OURS = (
    frozenset(binding.action.partition("(")[0] for binding in HoldfastApp.BINDINGS if isinstance(binding, Binding))
    - _ALWAYS
)


def _wake_for_resizes() -> None:
    """Let asyncio deliver the resize signal.

    Textual's own handler runs only when the loop wakes, and a signal that arrives just before the loop sleeps does not
    wake it: an idle app would keep its old size.
    """
    told = signal.getsignal(signal.SIGWINCH)
    if callable(told) and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, told, signal.SIGWINCH, None)
