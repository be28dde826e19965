"""The queued prompts below the conversation."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from rich.text import Text
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Static

from holdfast.domain.ids import RunId
from holdfast.domain.runs import Run

__all__ = ["QueueAction", "QueuePanel"]

QueueAction = Literal["edit", "remove", "up", "down", "now", "later"]
_SIGNS = {"steer": "↳", "queue": "⋯"}
_MAX_LINES = 5


class QueuePanel(Static, can_focus=True):
    """Shows the queued runs in order. With the focus, keys act on the marked one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"queue--marked"}
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)", "Up"),
        ("down,j", "move(1)", "Down"),
        ("enter,e", "request('edit')", "Edit"),
        ("x,delete,backspace", "request('remove')", "Remove"),
        ("shift+up,K", "request('up')", "Earlier"),
        ("shift+down,J", "request('down')", "Later"),
        ("s", "request('now')", "Send now"),
        ("q", "request('later')", "Own turn"),
        ("escape", "leave", "Back"),
    ]

    class ActionRequested(Message):
        """The user requests an action on a queued run. `position` is its place in the queue, from 0."""

        def __init__(self, action: QueueAction, run: Run, position: int) -> None:
            super().__init__()
            self.action = action
            self.run = run
            self.position = position

    class Left(Message):
        """Return to the composer."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._runs: Sequence[Run] = ()
        self._marked: RunId | None = None
        self._own_client = ""
        self.display = False

    def show(self, runs: Sequence[Run], own_client: str) -> None:
        """Show these runs. `own_client` is this client's id; prompts of other clients are labelled."""
        if list(runs) == list(self._runs) and own_client == self._own_client:
            return
        self._runs, self._own_client = runs, own_client
        self.display = bool(runs)
        self._draw()

    def watch_has_focus(self, _has_focus: bool) -> None:
        """Redraw when the focus has changed."""
        super().watch_has_focus(_has_focus)
        self._draw()

    def _position(self) -> int:
        return next((at for at, run in enumerate(self._runs) if run.run_id == self._marked), 0)

    def _first(self) -> int:
        """Return the index of the first run that is shown."""
        return max(0, min(self._position() - _MAX_LINES // 2, len(self._runs) - _MAX_LINES))

    def _draw(self) -> None:
        if not self._runs:
            self.update("")
            return
        position, first = self._position(), self._first()
        lines = [self._line(run, is_marked=at == position) for at, run in enumerate(self._runs)]
        lines = lines[first : first + _MAX_LINES]
        if len(self._runs) > _MAX_LINES:
            lines.append(Text(f"  {len(self._runs)} prompts are queued"))
        self.update(Text("\n", no_wrap=True, overflow="ellipsis").join(lines))

    def _line(self, run: Run, *, is_marked: bool) -> Text:
        words = " ".join(run.prompt.split()) or "(attachments)"
        line = Text(f"{_SIGNS.get(run.delivery, '⋯')} {words}", no_wrap=True, overflow="ellipsis")
        if run.client_id and run.client_id != self._own_client:
            line.append("  from another client", style="italic")
        if is_marked and self.has_focus:
            line.pad_right(max(0, self.size.width - line.cell_len))
            line.stylize(self.get_component_rich_style("queue--marked"))
        return line

    def on_click(self, event: events.Click) -> None:
        """Mark the run that was clicked."""
        position = self._first() + event.y
        if event.y < _MAX_LINES and position < len(self._runs):
            self._marked = self._runs[position].run_id
            self._draw()

    def action_move(self, by: int) -> None:
        """Mark another run."""
        if self._runs:
            self._marked = self._runs[max(0, min(self._position() + by, len(self._runs) - 1))].run_id
            self._draw()

    def action_leave(self) -> None:
        """Return to the composer. This Escape does not count towards a cancel."""
        self.post_message(self.Left())

    def action_request(self, action: QueueAction) -> None:
        """Request an action on the marked run."""
        if self._runs:
            position = self._position()
            self._marked = self._runs[position].run_id
            self.post_message(self.ActionRequested(action, self._runs[position], position))
