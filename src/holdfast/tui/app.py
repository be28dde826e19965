"""The terminal app: receives keys and messages from Textual and passes them to the controllers.

`HoldfastApp` contains no logic of its own beyond start-up, focus and navigation. Its constructor creates the
controllers; each receives the `AppContext` and the controllers it uses, in the order of construction, so there are no
cycles. Textual finds actions (`action_…`), message handlers (`@on`) and bindings on the app class, therefore they are
here; each calls one method of a controller.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.filter import Monochrome
from textual.widgets import OptionList, Static, TextArea

from holdfast.client.errors import ClientError
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.ids import SessionId
from holdfast.tui.app_context import AppContext
from holdfast.tui.approvals import ApprovalController
from holdfast.tui.key_hints import register_key_sequences
from holdfast.tui.notifications import AwayNotifier
from holdfast.tui.pickers import ExtensionPicker, ModelPicker, SessionPicker, WorkspacePicker
from holdfast.tui.prompt_actions import SECOND_PRESS_TIME, AttachmentBar, CompletionController, PromptController
from holdfast.tui.redraw import FrameScheduler, Renderer
from holdfast.tui.screens.help import HelpScreen
from holdfast.tui.server_connection import ServerConnection
from holdfast.tui.slash_commands import SlashCommands
from holdfast.tui.terminal_text import SanitizeFilter
from holdfast.tui.themes import THEMES, NoColorFilter, default_theme
from holdfast.tui.welcome import WelcomeView
from holdfast.tui.widgets.approval_panel import AnswerChoice, ApprovalPanel, RequestPanel
from holdfast.tui.widgets.composer import Completer, Composer
from holdfast.tui.widgets.queue_panel import QueuePanel
from holdfast.tui.widgets.search_bar import SearchBar
from holdfast.tui.widgets.transcript import Transcript

__all__ = ["HoldfastApp"]

_SERVER_ACTIONS = frozenset({"commands", "effort", "sessions", "new_session", "models", "yolo", "escape", "recall"})
"""Actions that need an open connection."""
_GLOBAL_ACTIONS = frozenset({"leave", "suspend_process"})
"""Actions that are also available while a dialog is open."""


class HoldfastApp(App[int], inherit_bindings=False):
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
        Binding("f2", "effort", "Reasoning effort", priority=True),
        Binding("ctrl+y", "yolo", "Auto-approve", priority=True),
        Binding("ctrl+t", "queue_focus", "Queue", priority=True),
        Binding("ctrl+f", "find", "Find", priority=True),
        Binding("ctrl+o", "editor", "Editor", priority=True),
        Binding("ctrl+r", "recall", "Earlier prompts", priority=True),
        Binding("ctrl+z", "suspend_process", "Suspend", priority=True),
        Binding("tab", "switch", "Focus", priority=True),
        Binding("pageup", "page(-1)", "Page up", priority=True),
        Binding("pagedown", "page(1)", "Page down", priority=True),
        Binding("ctrl+end", "follow", "Follow", priority=True),
        Binding("escape", "escape", "Cancel"),
        Binding("ctrl+c", "leave", "Leave", priority=True),
    ]

    def __init__(
        self,
        location: ServerLocation,
        directory: str,
        *,
        session: str = "",
        yolo: bool = False,
        connection_type: type[ServerConnection] = ServerConnection,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the app. `session` is an id, `last` or empty. Tests replace the connection, and the `clock` that
        decides when requests accept keys.
        """
        super().__init__()
        # Textual's own filter keeps greys, and applies for an empty NO_COLOR too.
        self.no_color = bool(os.environ.get("NO_COLOR"))
        others = [item for item in self._filters if not isinstance(item, Monochrome)]
        self._filters = [*others, *([NoColorFilter()] if self.no_color else []), SanitizeFilter()]
        self._initial_session = session
        self._leave_requested_at = -SECOND_PRESS_TIME
        self._problems: tuple[str, ...] = ()
        """Errors in the settings that were shown."""
        frames = FrameScheduler(self, self._draw_frame)
        self.connection = connection_type(location, directory, on_change=frames.request, yolo=yolo)
        self.context = context = AppContext(self, self.connection, frames.request)
        self.notifier = AwayNotifier(context)
        self.approvals = ApprovalController(context, self.notifier, clock)
        self._commands = SlashCommands(context)
        self._attachments = AttachmentBar(context)
        self._prompts = PromptController(context, self._commands, self._attachments)
        self._completions = CompletionController(context, self._commands)
        self._sessions = SessionPicker(context)
        self._models = ModelPicker(context)
        self._workspace = WorkspacePicker(context)
        self._extensions = ExtensionPicker(context)
        self._welcome = WelcomeView(context)
        self._frames = frames
        self._renderer = Renderer(context, frames, self._welcome, self._prompts, self.approvals)

    def compose(self) -> ComposeResult:
        """Compose the main screen."""
        with Horizontal(id="top"):
            yield Static(id="top-left")
            yield Static(id="top-right")
        with Vertical(id="welcome"):
            yield Static(id="welcome-text")
            yield OptionList(id="start-actions")
        yield Transcript(id="transcript")
        yield SearchBar(id="search")
        yield Static(id="shell")
        yield Static(id="activity")
        yield QueuePanel(id="queue")
        yield Completer(id="completer")
        yield Static(id="attachments")
        yield Composer(id="composer")
        yield Static(id="hints")

    # Start and end.

    def on_mount(self) -> None:
        """Set up the theme and the widgets, and connect."""
        register_key_sequences()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = default_theme(os.environ)
        for name in ("#search", "#completer", "#attachments", "#shell"):
            self.query_one(name).display = False
        self.context.composer.focus()
        # Enter ended the command line that resumed the app, and the key may still be held.
        self.app_resume_signal.subscribe(self, lambda _: self.approvals.record_key("enter"))
        self._frames.start()
        _wake_for_resizes()
        self.context.start(self._connect)

    async def on_unmount(self) -> None:
        """Close the connection."""
        await self.connection.close()

    async def _connect(self) -> None:
        """Connect, open the requested session, and load everything that is not part of the snapshot."""
        try:
            await self.connection.open()
            if self._initial_session:
                await self._open_session(self._initial_session)
        except ClientError as error:
            self.exit(4, message=str(error))
            return
        self.context.transcript.directory = self.connection.directory
        self._apply_configured_theme()
        self._frames.request()
        await self._prompts.load_history()
        await self._welcome.find_providers()
        await self._report_untrusted_settings()

    async def _open_session(self, session: str) -> None:
        """Open a session by its id, or the one used last. Raises `ClientError`."""
        if session == "last":
            top = [item for item in self.connection.view.sessions.values() if not item.parent_session_id]
            latest = max(top, key=lambda item: item.updated_at, default=None)
            session = latest.id if latest else ""
        if not session:
            return
        await self.connection.open_session(SessionId(session))
        if session not in self.connection.view.sessions:
            self.exit(2, message=f"There is no session {session} here; holdfast sessions lists them.")

    async def _report_untrusted_settings(self) -> None:
        """Notify of project settings that have no effect until the project is trusted."""
        try:
            trust = await self.connection.client.get_trust(self.connection.workspace)
        except ClientError:
            return
        if trust.withheld and not trust.trusted:
            text = "This project has settings that are not used until you trust it. Review them: holdfast trust"
            self.context.notify(text, severity="warning", timeout=15)

    def action_leave(self) -> None:
        """Leave, after keys that were typed earlier: the call takes the same path, from the composer to the screen and
        the app.
        """
        self.context.composer.call_later(self.context.main_screen.call_later, self.call_later, self._request_exit)

    def _request_exit(self) -> None:
        """Leave at once, or on the second call if the composer has text that was not sent."""
        now = time.monotonic()
        composer = self.context.composer
        has_unsent = bool(composer.text.strip()) or composer.has_attachments
        if has_unsent and now - self._leave_requested_at > SECOND_PRESS_TIME:
            self._leave_requested_at = now
            text = "Your text has not been sent. ctrl+c again leaves."
            self.context.notify(text, severity="warning", timeout=SECOND_PRESS_TIME)
        else:
            self.exit(0)

    # Drawing.

    def _draw_frame(self) -> bool:
        """Draw everything that depends on the view. Returns True while something is in progress."""
        if not self.context.is_mounted:
            return False
        with self.batch_update():
            is_busy = self._renderer.draw()
        self.approvals.draw_requests()
        self._prompts.report_cancelled(self.connection.ended_runs)
        self.notifier.report_ended_runs()
        self._report_problems()
        while self.connection.warnings:
            self.context.notify(self.connection.warnings.pop(0), severity="warning", timeout=15)
        while self.connection.notes:
            self.context.notify(self.connection.notes.pop(0), timeout=8)
        return is_busy

    def _report_problems(self) -> None:
        """Notify of errors in the settings, each once."""
        workspace = self.connection.view.workspace
        problems = () if workspace is None else workspace.problems
        for problem in problems:
            if problem not in self._problems:
                self.context.notify(f"Error in the settings: {problem}", severity="error", timeout=30)
        self._problems = problems

    def watch_theme(self) -> None:
        """Apply a changed theme to the conversation."""
        for transcript in self.query(Transcript):
            transcript.set_palette(self.context.palette)

    def _apply_configured_theme(self) -> None:
        tui = self.context.options.get("tui")
        name = str(tui.get("theme", "")) if isinstance(tui, dict) else ""
        if name in self.available_themes and name != self.theme:
            self.theme = name

    # Keys and focus.

    async def on_event(self, event: events.Event) -> None:
        """Route keys before Textual does; an event that was forwarded has been routed already."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded and self.approvals.route_key(event):
            return
        await super().on_event(event)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the conversation's keys while a dialog is open."""
        if action in _MAIN_SCREEN_ACTIONS:
            return not self.context.has_dialog and (self.connection.is_open or action not in _SERVER_ACTIONS)
        return True

    def on_key(self, event: events.Key) -> None:
        """Forward letters typed on the welcome screen to the composer."""
        if self.focused is not None and self.focused.id == "start-actions" and event.character and event.is_printable:
            self.context.composer.focus()
            self.context.composer.insert(event.character)

    def on_descendant_focus(self) -> None:
        """Redraw when the focus has moved: the hints depend on it."""
        self._frames.request()

    def on_app_focus(self) -> None:
        """Record that the window has the focus. The key that moved it there may still be held."""
        self.notifier.is_away = False
        self.approvals.record_key("other")

    def on_app_blur(self) -> None:
        """Record that the window has lost the focus."""
        self.notifier.is_away = True

    def action_switch(self) -> None:
        """Move the focus between the composer and the conversation, or accept a completion."""
        screen, composer, transcript = self.context.main_screen, self.context.composer, self.context.transcript
        if composer.completes and composer.has_focus:
            self.context.completer.pick()
        elif not composer.has_focus:
            # At once, so that text typed next goes to the composer.
            screen.set_focus(composer)
            transcript.find("")
        elif transcript.display:
            screen.set_focus(transcript)
        else:
            options = screen.query_one("#start-actions", OptionList)
            options.highlighted = options.highlighted or 0
            options.focus()

    def action_page(self, by: int) -> None:
        """Scroll the conversation, or an approval that has the focus, by a page."""
        panel, transcript = self.approvals.panel, self.context.transcript
        if isinstance(panel, ApprovalPanel) and self.approvals.keyboard.is_focused:
            panel.scroll_details(by * 12)
        else:
            transcript.scroll_relative(y=by * max(1, transcript.size.height - 2), animate=False)

    def action_follow(self) -> None:
        """Scroll to the end."""
        self.context.transcript.action_bottom()

    def action_fold_all(self) -> None:
        """Fold or unfold everything."""
        self.context.transcript.action_fold_all()

    # Prompts.

    @on(Composer.Sent)
    async def _submit(self, event: Composer.Sent) -> None:
        await self._prompts.submit(event.text, queues=event.queues)

    def action_escape(self) -> None:
        """Cancel on the second Escape; otherwise return to the composer."""
        self._prompts.escape()

    def action_take_back(self) -> None:
        """Restore prompts that another client has cancelled."""
        self._prompts.restore_cancelled()

    def action_queue_focus(self) -> None:
        """Move the focus to the queue."""
        self._prompts.focus_queue()

    @on(QueuePanel.Left)
    def _leave_queue(self) -> None:
        self.context.composer.focus()

    @on(QueuePanel.ActionRequested)
    def _change_queue(self, event: QueuePanel.ActionRequested) -> None:
        self.context.start(self._prompts.change_queue, event)

    def action_editor(self) -> None:
        """Edit the text in the user's own editor."""
        self._prompts.edit_externally()

    def action_recall(self) -> None:
        """Choose a prompt of any session from the history."""
        self.context.start(self._prompts.recall)

    @on(Composer.Pasted)
    def _attach_paste(self, event: Composer.Pasted) -> None:
        self._attachments.add_paste(event.text, is_path=event.is_path)

    @on(Composer.ImageRequested)
    def _paste_image(self) -> None:
        self.context.start(self._attachments.paste_image)

    @on(Composer.Emptied)
    def _remove_attachment(self) -> None:
        self._attachments.remove_last()

    @on(TextArea.Changed)
    def _text_changed(self) -> None:
        self.approvals.sync_keyboard()

    # Completions.

    @on(Composer.Completing)
    def _complete(self, event: Composer.Completing) -> None:
        self._completions.complete(event.kind, event.letters)

    @on(Composer.CompletionKey)
    def _press_completion_key(self, event: Composer.CompletionKey) -> None:
        self._completions.press(event.key)

    @on(Completer.Picked)
    async def _accept_completion(self, event: Completer.Picked) -> None:
        await self._completions.accept(event.value)

    # Approvals and questions.

    @on(RequestPanel.Answered)
    def _answer(self, event: RequestPanel.Answered) -> None:
        self.approvals.answer(event.panel, event.body)

    @on(RequestPanel.Resized)
    def _panel_resized(self) -> None:
        self._frames.request()

    @on(AnswerChoice.Clicked)
    def _answer_clicked(self, event: AnswerChoice.Clicked) -> None:
        self.approvals.click(event.choice)

    # Lists and dialogs.

    def action_commands(self) -> None:
        """Show all commands."""
        self.context.start(self._commands.choose)

    def action_new_session(self) -> None:
        """Start a new session."""
        self.context.start(self._sessions.create_session)

    def action_sessions(self) -> None:
        """Show the sessions."""
        self.context.start(self._sessions.choose_session)

    def action_runs(self) -> None:
        """Show the runs."""
        self.context.start(self._sessions.choose_run)

    def action_summarize(self) -> None:
        """Summarize the session."""
        self.context.start(self._sessions.summarize)

    def action_init(self) -> None:
        """Let the model write a description of the project."""
        self.context.start(self._sessions.describe_project)

    def action_models(self) -> None:
        """Show the models."""
        self.context.start(self._models.choose_model)

    def action_effort(self) -> None:
        """Choose the reasoning effort of the large model."""
        self.context.start(self._models.choose_effort)

    def action_jobs(self) -> None:
        """Show the background jobs."""
        self.context.start(self._workspace.choose_job)

    def action_changes(self) -> None:
        """Show the files that the session has changed."""
        self.context.start(self._workspace.choose_change)

    def action_yolo(self) -> None:
        """Switch auto-approval."""
        self.context.start(self._workspace.toggle_auto_approve)

    def action_extensions(self) -> None:
        """Show the extensions."""
        self.context.start(self._extensions.choose_extension)

    def action_themes(self) -> None:
        """Choose a theme."""
        self.context.start(self._choose_theme)

    async def _choose_theme(self) -> None:
        name = await self._workspace.choose_theme(self.available_themes, self.theme)
        if name is not None:
            self.theme = name
            await self._workspace.store_theme(name)

    def action_help(self) -> None:
        """Show the keys."""
        name = self.connection.client.client_id[:8] if self.connection.is_open else ""
        self.push_screen(HelpScreen(self.context.transcript.palette.accent, name))

    @on(OptionList.OptionSelected, "#start-actions")
    async def _start_action(self, event: OptionList.OptionSelected) -> None:
        self.context.composer.focus()
        match event.option.id:
            case "tour":
                self.context.submit("tour")
            case "last":
                await self.context.send(self._open_session("last"))
            case action:
                await self.run_action(str(action))

    # The conversation.

    @on(Transcript.Moved)
    def _transcript_moved(self) -> None:
        self._frames.request()

    @on(Transcript.Copied)
    def _copy(self, event: Transcript.Copied) -> None:
        self.copy_to_clipboard(event.text)
        lines = event.text.count("\n") + 1
        self.context.notify(f"Copied {lines} line{'s' * (lines > 1)}.")

    def action_find(self) -> None:
        """Open the search line."""
        if self.context.transcript.display:
            self.context.search_bar.open()

    @on(SearchBar.Changed)
    def _search(self, event: SearchBar.Changed) -> None:
        self.context.search_bar.show_position(*self.context.transcript.find(event.words))

    @on(SearchBar.Moved)
    def _move_search(self, event: SearchBar.Moved) -> None:
        self.context.search_bar.show_position(*self.context.transcript.find_next(event.by))

    @on(SearchBar.Closed)
    def _close_search(self) -> None:
        self.context.transcript.focus()


_MAIN_SCREEN_ACTIONS = (
    frozenset(binding.action.partition("(")[0] for binding in HoldfastApp.BINDINGS if isinstance(binding, Binding))
    - _GLOBAL_ACTIONS
)
"""Actions of the app's own keys that are not available while a dialog is open."""


def _wake_for_resizes() -> None:
    """Let asyncio deliver the resize signal.

    Textual's own handler runs only when the loop wakes, and a signal that arrives just before the loop sleeps does not
    wake it: an idle app would keep its old size.
    """
    handler = signal.getsignal(signal.SIGWINCH)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, handler, signal.SIGWINCH, None)
