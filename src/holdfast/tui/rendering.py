"""Redraws the app: at most every 50 ms, and only changed parts."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from textual.css.query import NoMatches
from textual.timer import Timer
from textual.widgets import OptionList, Static

from holdfast.domain.ids import MessageId
from holdfast.domain.runs import Run
from holdfast.tui.base_app import Stage
from holdfast.tui.block_render import activity_of, elapsed, thousands, usage_of, written
from holdfast.tui.blocks import blocks_of
from holdfast.tui.keys import hints
from holdfast.tui.widgets.queue_panel import QueuePanel
from holdfast.tui.widgets.search_bar import SearchBar
from holdfast.tui.widgets.welcome import welcome

__all__ = ["SECOND_ESCAPE", "Drawing"]

FRAME = 0.05
SLOWEST = 0.2
SECOND_ESCAPE = 2.0
NARROW = 100
"""Below this width the top line shows less."""
_SIZED = frozenset({"top-right", "welcome-text"})
"""Lines whose position depends on their content."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_QUEUE_KEYS = (
    ("enter", "edit"),
    ("x", "remove"),
    ("s", "send now"),
    ("q", "own turn"),
    ("shift+↑↓", "move"),
    ("esc", "back"),
)


class Drawing(Stage):
    """Schedules frames and draws them."""

    _is_due = False
    _drawn_at = 0.0
    _ticks = 0
    _pause = FRAME
    _used = 0.0
    _ticker: Timer | None = None
    _written: dict[str, RenderableType]

    def begin_drawing(self) -> None:
        """Start drawing."""
        self._written = {}
        self._ticker = self.set_interval(0.1, self._tick, pause=True)
        self.note_change()

    def note_change(self) -> None:
        """Schedule a frame: at once after a pause, otherwise when the current interval is over."""
        if self._is_due or not self.is_running:
            return
        self._is_due = True
        # A Textual timer whose time is over before it is set never fires, and nothing would be drawn again.
        pause = max(0.0, self._drawn_at + self._pause - time.monotonic())
        asyncio.get_running_loop().call_later(pause, self.call_next, self._frame)

    def _frame(self) -> None:
        self._is_due = False
        try:
            self._draw()
        except NoMatches:
            # The last frame may be due while the screen is being removed.
            return

    def _draw(self) -> None:
        if not self.is_shown:
            return
        self._drawn_at = time.monotonic()
        runs = self.link.runs()
        with self.batch_update():
            self._draw_transcript()
            self._draw_top()
            self._draw_queue()
            self._draw_activity(runs)
            self._draw_shell()
            self._write("hints", self._hints(runs))
        # The full cost of a frame is known only afterwards. At most a fifth of the time is spent on drawing, so a very
        # long growing paragraph is drawn less often.
        used, self._used = time.thread_time() - self._used, time.thread_time()
        self._pause = min(max(FRAME, 5 * used), SLOWEST) if runs else FRAME
        self.after_frame()
        if self._ticker is not None:
            self._ticker.resume() if runs or self.link.shells else self._ticker.pause()

    def after_frame(self) -> None:
        """Update everything else that depends on the view; called after each frame."""

    def _tick(self) -> None:
        """Draw the spinner and the elapsed time."""
        self._ticks += 1
        self.note_change()

    def _draw_transcript(self) -> None:
        link, transcript = self.link, self.transcript
        is_empty = link.session is None
        is_covered = self.base.has_class("whole-request")
        self.base.query_one("#welcome").display = is_empty and not is_covered
        transcript.display = not is_empty and not is_covered
        if is_empty:
            self._draw_welcome()
        if link.is_new:
            link.is_new = False
            transcript.clear()
            link.index.dirty.clear()
            for message in link.messages():
                self._put(message.id)
        elif link.index.dirty:
            for changed in tuple(link.index.dirty):
                self._put(changed)
            link.index.dirty.clear()
        else:
            return
        transcript.show()

    def _draw_welcome(self) -> None:
        found, accent = self.found_models(), self.transcript.look.accent
        self._write("welcome-text", welcome(self.link, found, self.size.height, accent))
        self.base.query_one("#welcome-doors", OptionList).display = self.size.height >= 20

    def found_models(self) -> str:
        """Return the providers that are ready, as text."""
        return ""

    def _put(self, id: MessageId) -> None:
        message = self.link.message(id)
        if message is None:
            self.transcript.drop(id)
        else:
            self.transcript.put(id, list(blocks_of(message, self.link.index.scene)))

    def _draw_top(self) -> None:
        view = self.link.view
        session = view.sessions.get(self.link.session) if self.link.session else None
        name = Path(self.link.directory).name or self.link.directory
        left = Text.assemble(("holdfast ", "bold"), (name, ""), no_wrap=True, overflow="ellipsis")
        if session is not None:
            left.append(f"  {session.title}")
        self._write("top-left", left)
        look = self.transcript.look
        boldness = self._boldness()
        if self.link.state == "broken":
            words = " · ".join(word for word in (boldness, "reconnecting …") if word)
            self._write("top-right", Text(words, style=f"bold {look.warning}", no_wrap=True))
            return
        is_narrow = self.size.width < NARROW
        large = self.config.get("models", {}).get("large", {})
        effort = str(large.get("reasoning_effort") or ("thinks" if large.get("think") else ""))
        model = " ".join(word for word in (str(large.get("model", "")), effort) if word)
        # First, because text that does not fit is cut at the end.
        pieces = [(boldness, f"bold {look.warning}")]
        pieces += [(f"{self.link.others + 1} here" if self.link.others else "", ""), (model, "")]
        if session is not None:
            pieces.append((usage_of(session, _window(self.config), is_short=is_narrow), ""))
        pieces += [(words, look.warning if is_bad else "") for words, is_bad in self._servers(is_narrow=is_narrow)]
        told = [Text(words, style=style) for words, style in pieces if words]
        self._write("top-right", Text(" · ", no_wrap=True).join(told))

    def _servers(self, *, is_narrow: bool) -> Iterator[tuple[str, bool]]:
        """Yield the server counts; on a narrow screen only those with problems."""
        for tally in self.link.servers.tallies():
            if tally.troubled or not is_narrow:
                count = f"{tally.ready}/{tally.total}" if tally.ready < tally.total else str(tally.total)
                yield f"{tally.kind} {count}", bool(tally.troubled)

    def _boldness(self) -> str:
        if self.link.view.workspace is not None and self.link.view.workspace.yolo:
            return "acts without asking"
        return "acts without asking for you" if self.link.yolo else ""

    def _draw_activity(self, runs: list[Run]) -> None:
        line: RenderableType = ""
        if runs:
            now = int(time.time() * 1000)
            since = elapsed(now - (runs[0].started_at or runs[0].accepted_at))
            spinner = self._spinner()
            last = self.link.latest()
            words = activity_of(runs, last, self.link.notice)
            if self.link.state == "broken":
                words = "Waiting for the server"
            tokens = written(last)
            so_far = f" · ~{thousands(tokens)} tokens" if tokens else ""
            waits = f" · {len(runs) - 1} waiting" if len(runs) > 1 else ""
            # The elapsed time stays visible, however long the activity is.
            tail = f" · {since}{so_far}{waits}"
            room = max(10, self.size.width - 8 - len(f"{spinner} {tail}"))
            words = words if len(words) <= room else f"{words[: room - 1].rstrip()}…"
            line = Text(f"{spinner} {words}{tail}", no_wrap=True, overflow="ellipsis")
        elif self.link.notice is not None and self.link.notice.type == "re_authenticate":
            line = Text(f"! {self.link.notice.error} ctrl+l sets a key.", no_wrap=True, overflow="ellipsis")
        elif self.link.state == "broken":
            line = Text(f"The connection is gone; it comes back by itself. {self.link.trouble}", no_wrap=True)
        self._write("activity", line)

    def _spinner(self) -> str:
        return _SPINNER[self._ticks % len(_SPINNER)]

    def _draw_queue(self) -> None:
        queue = self.base.query_one(QueuePanel)
        had_focus = queue.has_focus
        queue.show(self.link.waiting(), self.link.client.client_id if self.link.is_open else "")
        if had_focus and not queue.display:
            self.base.set_focus(self.editor)

    def _draw_shell(self) -> None:
        """Draw the shell commands that were started here."""
        shells = self.link.shells
        self.base.query_one("#shell").display = bool(shells)
        if shells:
            more = f"  and {len(shells) - 1} more" if len(shells) > 1 else ""
            words = f"{self._spinner()} $ {shells[-1]}{more}"
            self._write("shell", Text(words, no_wrap=True, overflow="ellipsis"))

    def _hints(self, runs: list[Run]) -> Text:
        """Return the keys that are useful in the current state."""
        if time.monotonic() - self.escaped_at < SECOND_ESCAPE and (runs or self.link.shells):
            return hints(("esc", "again to cancel"))
        if self.editor.completes:
            return hints(("↑↓", "choose"), ("enter, tab", "take it"), ("esc", "close"))
        if self.editor.text.startswith("!"):
            return hints(("enter", "runs it in the shell, here and now"), ("", "the model sees what it prints"))
        if self.editor.has_focus and self.keyboard.is_active:
            return hints(("", "letters begin a prompt"), ("esc esc", "cancel"), ("ctrl+p", "commands"))
        back: tuple[tuple[str, str], ...] = () if self.transcript.follows else (("ctrl+end", "to the newest"),)
        if isinstance(self.focused, QueuePanel):
            return hints(*_QUEUE_KEYS)
        if self.base.query_one(SearchBar).has_focus_within:
            return hints(("enter, ↑", "before"), ("↓", "after"), ("esc", "close"), ("", "then n N go on"))
        if self.transcript.has_focus:
            moves = (("j k", "move"), ("space", "unfold"), ("y", "copy"), ("ctrl+f", "find"), ("tab", "write"))
            return hints(*(back or (("J K", "prompts"),)), *moves)
        if not self.link.session and not self.editor.has_focus:
            return hints(("↑↓", "choose"), ("enter", "open"), ("tab", "write"))
        if runs:
            keys = (("enter", "steer"), ("alt+enter", "queue"), ("esc esc", "cancel"))
            queue = (("ctrl+t", "edit the queue"),) if len(runs) > 1 else (("ctrl+p", "commands"),)
            return hints(*back, *keys, *queue)
        back += (("esc esc", "stop it"),) if self.link.shells else ()
        tab = ("tab", "read") if self.link.session else ("tab", "choose")
        lists = (("ctrl+p", "commands"), *(() if back else (("ctrl+s", "sessions"),)), ("ctrl+g", "help"))
        return hints(*back, ("enter", "send"), tab, *lists)

    def on_descendant_focus(self) -> None:
        """Redraw when the focus has moved."""
        self.note_change()

    def _write(self, name: str, content: RenderableType) -> None:
        """Update a line unless its content is unchanged."""
        if self._written.get(name) != content:
            self._written[name] = content
            self.base.query_one(f"#{name}", Static).update(content, layout=name in _SIZED)


def _window(config: dict[str, Any]) -> int:
    """Return the context window of the large model, if the configuration contains it."""
    large = config.get("models", {}).get("large", {})
    provider = config.get("providers", {}).get(large.get("provider"), {})
    for model in provider.get("models", []):
        if model.get("id") == large.get("model"):
            return int(model.get("context_window") or 0)
    return 0
