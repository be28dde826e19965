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

__all__ = ["QueuePanel", "QueueWish"]

QueueWish = Literal["edit", "remove", "up", "down", "now", "later"]
_SIGNS = {"steer": "↳", "queue": "⋯"}
_MOST = 5


class QueuePanel(Static, can_focus=True):
    """Shows the waiting runs in order. With the focus, keys act on the marked one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"queue--marked"}
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)", "Up"),
        ("down,j", "move(1)", "Down"),
        ("enter,e", "wish('edit')", "Edit"),
        ("x,delete,backspace", "wish('remove')", "Remove"),
        ("shift+up,K", "wish('up')", "Earlier"),
        ("shift+down,J", "wish('down')", "Later"),
        ("s", "wish('now')", "Send now"),
        ("q", "wish('later')", "Own turn"),
        ("escape", "leave", "Back"),
    ]

    class Wished(Message):
        """An action on a waiting run. `place` is its position, from 0."""

        def __init__(self, wish: QueueWish, run: Run, place: int) -> None:
            super().__init__()
            self.wish = wish
            self.run = run
            self.place = place

    class Left(Message):
        """Return to the editor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._runs: Sequence[Run] = ()
        self._marked: RunId | None = None
        self._mine = ""
        self.display = False

    def show(self, runs: Sequence[Run], mine: str) -> None:
        """Show these runs. `mine` is this client's id; prompts of other clients are labelled."""
        if list(runs) == list(self._runs) and mine == self._mine:
            return
        self._runs, self._mine = runs, mine
        self.display = bool(runs)
        self._draw()

    def watch_has_focus(self, _has_focus: bool) -> None:
        """Redraw when the focus has changed."""
        super().watch_has_focus(_has_focus)
        self._draw()

    def _place(self) -> int:
        return next((at for at, run in enumerate(self._runs) if run.run_id == self._marked), 0)

    def _first(self) -> int:
        """Return the index of the first run that is shown."""
        return max(0, min(self._place() - _MOST // 2, len(self._runs) - _MOST))

    def _draw(self) -> None:
        if not self._runs:
            self.update("")
            return
        place, first = self._place(), self._first()
        lines = [self._line(run, is_marked=at == place) for at, run in enumerate(self._runs)][first : first + _MOST]
        if len(self._runs) > _MOST:
            lines.append(Text(f"  {len(self._runs)} prompts wait"))
        self.update(Text("\n", no_wrap=True, overflow="ellipsis").join(lines))

    def _line(self, run: Run, *, is_marked: bool) -> Text:
        words = " ".join(run.prompt.split()) or "(attachments)"
        line = Text(f"{_SIGNS.get(run.delivery, '⋯')} {words}", no_wrap=True, overflow="ellipsis")
        if run.client_id and run.client_id != self._mine:
            line.append("  from elsewhere", style="italic")
        if is_marked and self.has_focus:
            line.pad_right(max(0, self.size.width - line.cell_len))
            line.stylize(self.get_component_rich_style("queue--marked"))
        return line

    def on_click(self, event: events.Click) -> None:
        """Mark the run that was clicked."""
        place = self._first() + event.y
        if event.y < _MOST and place < len(self._runs):
            self._marked = self._runs[place].run_id
            self._draw()

    def action_move(self, by: int) -> None:
        """Mark another run."""
        if self._runs:
            self._marked = self._runs[max(0, min(self._place() + by, len(self._runs) - 1))].run_id
            self._draw()

    def action_leave(self) -> None:
        """Return to the editor. This Escape does not count towards a cancel."""
        self.post_message(self.Left())

    def action_wish(self, wish: QueueWish) -> None:
        """Request an action on the marked run."""
        if self._runs:
            place = self._place()
            self._marked = self._runs[place].run_id
            self.post_message(self.Wished(wish, self._runs[place], place))
