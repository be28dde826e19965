"""The terminal app. It shows what the link's view holds and passes on what a person wants; it decides nothing else."""

import time
from collections.abc import Awaitable
from pathlib import Path
from typing import ClassVar

import msgspec
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Static

from holdfast.client.errors import ClientError
from holdfast.client.locate import Where
from holdfast.domain.asks import QuestionRequest
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import ConfigModel, ModelChoice
from holdfast.tui.blocks import blocks_of
from holdfast.tui.editor import Editor
from holdfast.tui.link import Link
from holdfast.tui.look import DARK, LIGHT
from holdfast.tui.screens.help import HelpScreen
from holdfast.tui.screens.permission import PermissionScreen
from holdfast.tui.screens.picker import Choice, Picker
from holdfast.tui.screens.question import QuestionScreen
from holdfast.tui.status import activity_of, elapsed, usage_of
from holdfast.tui.themes import THEMES
from holdfast.tui.transcript import Transcript
from holdfast.tui.welcome import welcome

__all__ = ["HoldfastApp"]

_FRAME = 0.05
_SECOND_ESCAPE = 2.0
_SIGNS = {"steer": "↳", "queue": "…"}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class HoldfastApp(App[int]):
    """One workspace, one session at a time."""

    CSS_PATH = "holdfast.tcss"
    TITLE = "Holdfast"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+p", "commands", "Commands", priority=True),
        Binding("ctrl+s", "sessions", "Sessions", priority=True),
        Binding("ctrl+n", "new_session", "New session", priority=True),
        Binding("ctrl+l", "models", "Models", priority=True),
        Binding("ctrl+g", "help", "Help", priority=True),
        Binding("ctrl+y", "yolo", "Ask or not", priority=True),
        Binding("tab", "switch", "Focus", priority=True),
        Binding("escape", "escape", "Cancel"),
        Binding("ctrl+c", "leave", "Leave", priority=True),
    ]

    def __init__(self, where: Where, directory: str, *, session: str = "", yolo: bool = False) -> None:
        super().__init__()
        self.link = Link(where, directory, on_change=self._note_change, yolo=yolo)
        self._wanted = session
        self._has_changed = True
        self._escaped_at = 0.0
        self._asking: str | None = None
        self._ticks = 0
        self._written: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield Static(id="top-left")
            yield Static(id="top-right")
        with Vertical(id="welcome"):
            yield Static(id="welcome-text")
        yield Transcript(id="transcript")
        yield Static(id="queue")
        yield Static(id="activity")
        yield Editor(id="editor")
        yield Static(id="hints")

    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        self._editor.focus()
        self.set_interval(_FRAME, self._frame)
        self._open()

    def watch_theme(self) -> None:
        for transcript in self.query(Transcript):
            transcript.set_look(DARK if self.current_theme.dark else LIGHT)

    @work
    async def _open(self) -> None:
        try:
            await self.link.open()
            if self._wanted:
                await self._show(self._wanted)
        except ClientError as error:
            self.exit(4, message=str(error))
            return
        self._transcript.directory = self.link.directory
        self._has_changed = True

    async def _show(self, session: str) -> None:
        if session == "last":
            latest = max(self.link.view.sessions.values(), key=lambda item: item.updated_at, default=None)
            session = latest.id if latest else ""
        if session:
            await self.link.choose(SessionId(session))

    async def on_unmount(self) -> None:
        await self.link.close()

    # Drawing.

    @property
    def _base(self) -> Screen[object]:
        """The conversation, also while a dialog stands before it."""
        return self.screen_stack[0]

    @property
    def _editor(self) -> Editor:
        return self._base.query_one(Editor)

    @property
    def _transcript(self) -> Transcript:
        return self._base.query_one(Transcript)

    def _note_change(self) -> None:
        self._has_changed = True

    def _frame(self) -> None:
        """At most so often; nothing is drawn when nothing happened."""
        if not self.screen_stack or not self._base.query(Editor):
            # The last frame may come when the screen is taken down already.
            return
        self._ticks += 1
        runs = self.link.runs()
        if self._has_changed:
            self._has_changed = False
            self._draw_transcript()
            self._draw_top()
            self._draw_queue(runs)
            self._draw_asks()
        if runs or self._ticks % 10 == 0:
            self._draw_activity(runs)

    def _draw_transcript(self) -> None:
        link, transcript = self.link, self._transcript
        is_empty = link.session is None
        self._base.query_one("#welcome").display = is_empty
        transcript.display = not is_empty
        if is_empty:
            self._base.query_one("#welcome-text", Static).update(welcome(link))
        if link.is_new:
            link.is_new = False
            transcript.clear()
            link.dirty.clear()
            for message in link.messages():
                self._put(message.id)
        elif link.dirty:
            for changed in tuple(link.dirty):
                self._put(changed)
            link.dirty.clear()
        else:
            return
        transcript.show()

    def _put(self, id: MessageId) -> None:
        message = self.link.message(id)
        transcript = self._transcript
        if message is None:
            transcript.drop(id)
        else:
            transcript.put(id, list(blocks_of(message, self.link.results, self.link.view.outputs)))

    def _draw_top(self) -> None:
        view = self.link.view
        session = view.sessions.get(self.link.session) if self.link.session else None
        name = Path(self.link.directory).name or self.link.directory
        left = Text.assemble(("holdfast ", "bold"), (name, ""), no_wrap=True, overflow="ellipsis")
        if session is not None:
            left.append(f"  {session.title}", style="dim")
        right = Text(no_wrap=True)
        config = (view.workspace.config if view.workspace else None) or {}
        large = config.get("models", {}).get("large", {})
        pieces = [str(large.get("model", ""))]
        if session is not None and (used := usage_of(session, _window(config))):
            pieces.append(used)
        if view.workspace is not None and view.workspace.yolo:
            pieces.append("[yolo]")
        right.append(" · ".join(piece for piece in pieces if piece))
        if self.link.state == "broken":
            right = Text(f"reconnecting … {self.link.trouble}"[:60], style="bold")
        self._base.query_one("#top-left", Static).update(left)
        self._base.query_one("#top-right", Static).update(right)

    def _draw_queue(self, runs: list[Run]) -> None:
        queue = self._base.query_one("#queue", Static)
        waiting = [run for run in runs[1:] if run.state in ("waiting", "accepted")]
        queue.display = bool(waiting)
        lines = [
            Text(
                f"{_SIGNS.get(run.delivery, '…')} {' '.join(run.prompt.split())}",
                no_wrap=True,
                overflow="ellipsis",
            )
            for run in waiting[:5]
        ]
        if len(waiting) > 5:
            lines.append(Text(f"… and {len(waiting) - 5} more"))
        queue.update(Text("\n").join(lines))

    def _draw_activity(self, runs: list[Run]) -> None:
        line, hints = "", "enter send · ctrl+j new line · ctrl+p commands · ctrl+g help"
        if runs:
            since = elapsed(int(time.time() * 1000) - (runs[0].started_at or runs[0].accepted_at))
            spinner = _SPINNER[self._ticks // 2 % len(_SPINNER)]
            line = f"{spinner} {activity_of(runs, self.link.latest())} · {since}"
            armed = time.monotonic() - self._escaped_at < _SECOND_ESCAPE
            hints = "esc again to cancel" if armed else "enter steer · esc esc cancel · ctrl+p commands"
        self._write("activity", line)
        self._write("hints", hints)

    def _write(self, name: str, text: str) -> None:
        """A line that says the same as before is not drawn again."""
        if self._written.get(name) != text:
            self._written[name] = text
            self._base.query_one(f"#{name}", Static).update(text)

    def _draw_asks(self) -> None:
        """Show the first open ask; one that was answered elsewhere closes here."""
        view = self.link.view
        shown = self.screen
        if isinstance(shown, PermissionScreen | QuestionScreen):
            if shown.ask_id not in view.permissions and shown.ask_id not in view.questions:
                shown.dismiss(None)
                self.notify("That was answered elsewhere, or its run has ended.")
        elif len(self.screen_stack) == 1:
            if view.permissions:
                self._ask_permission(next(iter(view.permissions)))
            elif view.questions:
                self._ask_questions(next(iter(view.questions)))

    @work(exclusive=True, group="asks")
    async def _ask_permission(self, ask: str) -> None:
        answer = await self.push_screen_wait(PermissionScreen(self.link.view.permissions[ask]))
        if answer is not None:
            await self._say(self.link.client.grant(self.link.workspace, answer))

    @work(exclusive=True, group="asks")
    async def _ask_questions(self, ask: str) -> None:
        request = msgspec.convert(self.link.view.questions[ask], QuestionRequest)
        answer = await self.push_screen_wait(QuestionScreen(request))
        if answer is not None and answer.pop("cancelled", False):
            await self._say(self.link.client.cancel_question(self.link.workspace))
        elif answer is not None:
            await self._say(self.link.client.answer_question(self.link.workspace, msgspec.to_builtins(answer)))

    async def _say(self, call: Awaitable[object]) -> bool:
        """Ask the server for something; what it refuses is shown. Whether it went well."""
        try:
            await call
        except ClientError as error:
            self.notify(str(error), severity="error", timeout=10)
            return False
        return True

    # What a person wants.

    @on(Editor.Sent)
    def _sent(self, event: Editor.Sent) -> None:
        self._prompt(event.text)

    @work
    async def _prompt(self, text: str) -> None:
        try:
            await self.link.prompt(text)
        except ClientError as error:
            self._editor.take(text)
            self.notify(str(error), title="Not sent", severity="error", timeout=10)

    def action_escape(self) -> None:
        if not self.link.runs():
            self._editor.focus()
            return
        now = time.monotonic()
        if now - self._escaped_at < _SECOND_ESCAPE:
            self._escaped_at = 0.0
            self._cancel()
        else:
            self._escaped_at = now

    @work
    async def _cancel(self) -> None:
        waiting = [run for run in self.link.runs()[1:] if run.state == "waiting"]
        if await self._say(self.link.cancel()) and waiting:
            self._editor.take("\n\n".join(run.prompt for run in waiting))

    @on(Transcript.Copied)
    def _copied(self, event: Transcript.Copied) -> None:
        self.copy_to_clipboard(event.text)
        self.notify("Copied.")

    def action_switch(self) -> None:
        editor, transcript = self._editor, self._transcript
        (transcript if editor.has_focus else editor).focus()

    @work
    async def action_new_session(self) -> None:
        await self.link.choose(None)
        self._editor.focus()

    @work
    async def action_sessions(self) -> None:
        sessions = sorted(self.link.view.sessions.values(), key=lambda item: -item.updated_at)
        choices = [
            Choice(item.id, item.title, usage_of(item, 0), "●" if item.is_busy else "")
            for item in sessions
            if not item.parent_session_id
        ]
        chosen = await self.push_screen_wait(Picker("Sessions", choices))
        if chosen:
            await self.link.choose(SessionId(chosen))

    @work
    async def action_commands(self) -> None:
        chosen = await self.push_screen_wait(Picker("Commands", _COMMANDS))
        if chosen:
            await self.run_action(chosen)

    @work
    async def action_models(self) -> None:
        await self._choose_model()

    async def _choose_model(self) -> None:
        providers = await self.link.client.list_providers(self.link.workspace)
        choices = [
            Choice(f"{provider['id']}/{model['id']}", str(model.get("name") or model["id"]), str(provider["name"]))
            for provider in providers
            for model in provider.get("models", [])
        ]
        chosen = await self.push_screen_wait(Picker("Choose the large model", choices))
        if chosen:
            provider, _, model = chosen.partition("/")
            await self.link.client.config_model(self.link.workspace, ConfigModel("large", ModelChoice(model, provider)))

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    @work
    async def action_yolo(self) -> None:
        skip = not (await self.link.client.get_skip(self.link.workspace)).skip
        await self.link.client.set_skip(self.link.workspace, skip=skip)
        if skip:
            self.notify("Tools act without asking now.", severity="warning")
        else:
            self.notify("Tools ask again.")

    @work
    async def action_summarize(self) -> None:
        if self.link.session is not None:
            await self._say(self.link.client.summarize(self.link.workspace, self.link.session))

    def action_next_theme(self) -> None:
        names = [theme.name for theme in THEMES]
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]

    def action_leave(self) -> None:
        self.exit(0)


_COMMANDS = (
    Choice("new_session", "New session", "ctrl+n"),
    Choice("sessions", "Sessions", "ctrl+s"),
    Choice("models", "Choose a model", "ctrl+l"),
    Choice("summarize", "Summarise this session"),
    Choice("yolo", "Let tools act without asking, or not", "ctrl+y"),
    Choice("next_theme", "Next theme"),
    Choice("help", "Help", "ctrl+g"),
    Choice("leave", "Leave", "ctrl+c; runs go on"),
)


def _window(config: dict[str, object]) -> int:
    """The context window of the large model, 0 if nobody says."""
    models, providers = config.get("models"), config.get("providers")
    if not isinstance(models, dict) or not isinstance(providers, dict):
        return 0
    large = models.get("large") or {}
    for model in (providers.get(large.get("provider")) or {}).get("models", []):
        if model.get("id") == large.get("model"):
            return int(model.get("context_window") or 0)
    return 0
