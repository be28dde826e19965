"""Redraws the main screen: at most every 50 ms, and only the parts that changed.

Events of the server arrive far more often than a terminal can usefully be drawn: a model streams hundreds of small
pieces of text per second. Nothing is drawn when an event arrives. A change requests a frame from the `FrameScheduler`;
further requests until that frame are free. After an idle time the frame is drawn at once, so that typing has no delay.

A frame costs what has changed: the transcript renders only messages that are marked as changed and only lines that are
visible (see `widgets/transcript.py`), and the other lines are updated only if their content differs. If frames are
expensive nevertheless, as for a very long paragraph that grows, the interval adapts: drawing takes at most a fifth of
the time, but the interval never exceeds 0.2 s.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from textual.app import App
from textual.css.query import NoMatches
from textual.timer import Timer

from holdfast.domain.ids import MessageId
from holdfast.domain.runs import Run
from holdfast.tui.app_context import AppContext
from holdfast.tui.approvals import ApprovalController
from holdfast.tui.block_render import describe_activity, estimate_tokens, format_count, format_duration, format_usage
from holdfast.tui.blocks import blocks_of
from holdfast.tui.key_hints import key_hints
from holdfast.tui.prompt_actions import PromptController
from holdfast.tui.welcome import WelcomeView
from holdfast.tui.widgets.queue_panel import QueuePanel

__all__ = ["FrameScheduler", "Renderer"]

_MIN_INTERVAL = 0.05
_MAX_INTERVAL = 0.2
_NARROW = 100
"""Below this width the top line shows less."""
_SIZED = frozenset({"top-right", "welcome-text"})
"""Lines whose position depends on their content."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_QUEUE_HINTS = (
    ("enter", "edit"),
    ("x", "remove"),
    ("s", "send now"),
    ("q", "own turn"),
    ("shift+↑↓", "move"),
    ("esc", "back"),
)


class FrameScheduler:
    """Decides when the next frame is drawn. `draw` draws it and returns True while something is in progress."""

    def __init__(self, app: App[int], draw: Callable[[], bool]) -> None:
        self._app = app
        self._draw = draw
        self._is_due = False
        self._drawn_at = 0.0
        self._interval = _MIN_INTERVAL
        self._cpu_time = 0.0
        self._ticker: Timer | None = None
        self.ticks = 0
        """Number of spinner steps."""

    def start(self) -> None:
        """Start drawing; called when the app is mounted, because timers need its event loop."""
        self._ticker = self._app.set_interval(0.1, self._tick, pause=True)
        self.request()

    def request(self) -> None:
        """Schedule a frame: at once after a pause, otherwise when the current interval is over."""
        if self._is_due or not self._app.is_running:
            return
        self._is_due = True
        # Not a Textual timer: one whose time is over before it is set never fires, and nothing would be drawn again.
        pause = max(0.0, self._drawn_at + self._interval - time.monotonic())
        asyncio.get_running_loop().call_later(pause, self._app.call_next, self._frame)

    def _frame(self) -> None:
        self._is_due = False
        self._drawn_at = time.monotonic()
        try:
            is_busy = self._draw()
        except NoMatches:
            # The last frame may be due while the screen is being removed.
            return
        # Textual lays out and writes after `draw` has returned, so the full cost of a frame is known with the next one.
        used, self._cpu_time = time.thread_time() - self._cpu_time, time.thread_time()
        self._interval = min(max(_MIN_INTERVAL, 5 * used), _MAX_INTERVAL) if is_busy else _MIN_INTERVAL
        if self._ticker is not None:
            self._ticker.resume() if is_busy else self._ticker.pause()

    def _tick(self) -> None:
        """Draw the spinner and the elapsed time."""
        self.ticks += 1
        self.request()


class Renderer:
    """Draws the view of the connection into the widgets of the main screen."""

    def __init__(
        self,
        context: AppContext,
        frames: FrameScheduler,
        welcome: WelcomeView,
        prompts: PromptController,
        approvals: ApprovalController,
    ) -> None:
        self._context = context
        self._connection = context.connection
        self._frames = frames
        self._welcome = welcome
        self._prompts = prompts
        self._approvals = approvals
        self._lines: dict[str, RenderableType] = {}
        """The content of each line as it was last drawn."""

    def draw(self) -> bool:
        """Draw the changes since the last call. Returns True while a run or a shell command is in progress."""
        runs = self._connection.runs()
        self._draw_transcript()
        self._draw_top()
        self._draw_queue()
        self._draw_activity(runs)
        self._draw_shell()
        self._write("hints", self._hints(runs))
        return bool(runs or self._connection.shell_commands)

    # The conversation.

    def _draw_transcript(self) -> None:
        connection, transcript = self._connection, self._context.transcript
        screen = self._context.main_screen
        is_empty = connection.session is None
        is_covered = screen.has_class("whole-request")
        screen.query_one("#welcome").display = is_empty and not is_covered
        transcript.display = not is_empty and not is_covered
        if is_empty:
            self._write("welcome-text", self._welcome.draw())
        if connection.needs_full_redraw:
            connection.needs_full_redraw = False
            transcript.clear()
            connection.index.changed.clear()
            for message in connection.messages():
                self._draw_message(message.id)
        elif connection.index.changed:
            for changed in tuple(connection.index.changed):
                self._draw_message(changed)
            connection.index.changed.clear()
        else:
            return
        transcript.draw_changes()

    def _draw_message(self, id: MessageId) -> None:
        message = self._connection.message(id)
        if message is None:
            self._context.transcript.remove_message(id)
        else:
            self._context.transcript.set_blocks(id, list(blocks_of(message, self._connection.index.context)))

    # The lines around it.

    def _draw_top(self) -> None:
        connection = self._connection
        session = connection.view.sessions.get(connection.session) if connection.session else None
        name = Path(connection.directory).name or connection.directory
        left = Text.assemble(("holdfast ", "bold"), (name, ""), no_wrap=True, overflow="ellipsis")
        if session is not None:
            left.append(f"  {session.title}")
        self._write("top-left", left)
        palette = self._context.transcript.palette
        approval = self._approval_mode()
        if connection.state == "broken":
            activity = "looking for a server …" if connection.has_alternatives else "reconnecting …"
            words = " · ".join(word for word in (approval, activity) if word)
            self._write("top-right", Text(words, style=f"bold {palette.warning}", no_wrap=True))
            return
        is_narrow = self._context.size.width < _NARROW
        config = self._context.config
        large = config.get("models", {}).get("large", {})
        effort = str(large.get("reasoning_effort") or ("reasoning" if large.get("think") else ""))
        model = " ".join(word for word in (str(large.get("model", "")), effort) if word)
        # The most important part first, because text that does not fit is cut at the end.
        pieces = [(approval, f"bold {palette.warning}")]
        pieces += [(f"{connection.other_clients + 1} clients" if connection.other_clients else "", ""), (model, "")]
        if session is not None:
            pieces.append((format_usage(session, _context_window(config), is_short=is_narrow), ""))
        servers = self._server_counts(is_narrow=is_narrow)
        pieces += [(words, palette.warning if has_problems else "") for words, has_problems in servers]
        pieces.append((f"at {connection.node}" if connection.node else "", ""))
        texts = [Text(words, style=style) for words, style in pieces if words]
        self._write("top-right", Text(" · ", no_wrap=True).join(texts))

    def _server_counts(self, *, is_narrow: bool) -> Iterator[tuple[str, bool]]:
        """Yield the server counts; on a narrow screen only those with problems."""
        for counts in self._connection.servers.counts():
            if counts.failed or not is_narrow:
                number = f"{counts.ready}/{counts.total}" if counts.ready < counts.total else str(counts.total)
                yield f"{counts.kind} {number}", bool(counts.failed)

    def _approval_mode(self) -> str:
        """Return a warning if tool calls are approved automatically."""
        workspace = self._connection.view.workspace
        if workspace is not None and workspace.yolo:
            return "acts without asking"
        return "your prompts act without asking" if self._connection.yolo else ""

    def _draw_activity(self, runs: list[Run]) -> None:
        connection = self._connection
        line: RenderableType = ""
        if runs:
            line = self._activity(runs)
        elif connection.notice is not None and connection.notice.type == "re_authenticate":
            line = Text(f"! {connection.notice.error} ctrl+l sets a key.", no_wrap=True, overflow="ellipsis")
        elif connection.state == "broken":
            line = Text(f"The connection is lost and will be restored. {connection.error}", no_wrap=True)
        self._write("activity", line)

    def _activity(self, runs: list[Run]) -> Text:
        connection = self._connection
        duration = format_duration(int(time.time() * 1000) - (runs[0].started_at or runs[0].accepted_at))
        last = connection.latest()
        words = describe_activity(runs, last, connection.notice)
        if connection.state == "broken":
            words = "Waiting for the server"
        tokens = estimate_tokens(last)
        so_far = f" · ~{format_count(tokens)} tokens" if tokens else ""
        queued = f" · {len(runs) - 1} queued" if len(runs) > 1 else ""
        # The elapsed time stays visible, however long the activity is.
        tail = f" · {duration}{so_far}{queued}"
        spinner = self._spinner()
        room = max(10, self._context.size.width - 8 - len(f"{spinner} {tail}"))
        words = words if len(words) <= room else f"{words[: room - 1].rstrip()}…"
        return Text(f"{spinner} {words}{tail}", no_wrap=True, overflow="ellipsis")

    def _spinner(self) -> str:
        return _SPINNER[self._frames.ticks % len(_SPINNER)]

    def _draw_queue(self) -> None:
        queue, connection = self._context.queue, self._connection
        had_focus = queue.has_focus
        queue.show(connection.waiting(), connection.client.client_id if connection.is_open else "")
        if had_focus and not queue.display:
            self._context.main_screen.set_focus(self._context.composer)

    def _draw_shell(self) -> None:
        """Draw the shell commands that were started here."""
        commands = self._connection.shell_commands
        self._context.line("shell").display = bool(commands)
        if commands:
            more = f"  and {len(commands) - 1} more" if len(commands) > 1 else ""
            words = f"{self._spinner()} $ {commands[-1]}{more}"
            self._write("shell", Text(words, no_wrap=True, overflow="ellipsis"))

    def _hints(self, runs: list[Run]) -> Text:
        """Return the keys that are useful in the current state."""
        context, connection = self._context, self._connection
        composer, transcript = context.composer, context.transcript
        if self._prompts.is_cancel_pending and (runs or connection.shell_commands):
            return key_hints(("esc", "again to cancel"))
        if composer.completes:
            return key_hints(("↑↓", "choose"), ("enter, tab", "accept"), ("esc", "close"))
        if composer.text.startswith("!"):
            return key_hints(("enter", "runs it in the shell"), ("", "the model sees the output"))
        if composer.has_focus and self._approvals.keyboard.is_active:
            return key_hints(("", "letters begin a prompt"), ("esc esc", "cancel"), ("ctrl+p", "commands"))
        back: tuple[tuple[str, str], ...] = () if transcript.follows else (("ctrl+end", "to the newest"),)
        if isinstance(context.focused, QueuePanel):
            return key_hints(*_QUEUE_HINTS)
        if context.search_bar.has_focus_within:
            return key_hints(("enter, ↑", "previous"), ("↓", "next"), ("esc", "close"), ("", "then n N continue"))
        if transcript.has_focus:
            moves = (("j k", "move"), ("space", "unfold"), ("y", "copy"), ("ctrl+f", "find"), ("tab", "write"))
            return key_hints(*(back or (("J K", "prompts"),)), *moves)
        if not connection.session and not composer.has_focus:
            return key_hints(("↑↓", "choose"), ("enter", "open"), ("tab", "write"))
        if runs:
            keys = (("enter", "steer"), ("alt+enter", "queue"), ("esc esc", "cancel"))
            queue = (("ctrl+t", "edit the queue"),) if len(runs) > 1 else (("ctrl+p", "commands"),)
            return key_hints(*back, *keys, *queue)
        back += (("esc esc", "stop it"),) if connection.shell_commands else ()
        tab = ("tab", "read") if connection.session else ("tab", "choose")
        lists = (("ctrl+p", "commands"), *(() if back else (("ctrl+s", "sessions"),)), ("ctrl+g", "help"))
        return key_hints(*back, ("enter", "send"), tab, *lists)

    def _write(self, name: str, content: RenderableType) -> None:
        """Update a line unless its content is unchanged."""
        if self._lines.get(name) != content:
            self._lines[name] = content
            self._context.line(name).update(content, layout=name in _SIZED)


def _context_window(config: dict[str, Any]) -> int:
    """Return the context window of the large model, if the configuration contains it."""
    large = config.get("models", {}).get("large", {})
    provider = config.get("providers", {}).get(large.get("provider"), {})
    for model in provider.get("models", []):
        if model.get("id") == large.get("model"):
            return int(model.get("context_window") or 0)
    return 0
