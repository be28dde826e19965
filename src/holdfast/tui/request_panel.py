"""Panel above the composer for a request that waits for the user: an approval or a batch of questions.

The panel is not a dialog: the composer keeps the keyboard, and `client/answer_focus.py` decides which keys the panel
receives. It is drawn in three states: inactive (dimmed, keys do not reach it), active, and focused.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from rich.text import Text
from textual import events
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Label, Static

from holdfast.client.answer_focus import Kind
from holdfast.tui.hints import hints

__all__ = ["Choice", "PanelState", "RequestPanel"]

PanelState = Literal["writing", "away", "waiting", "active", "focused"]
"""`writing`: the composer has text. `away`: another widget has the focus. `waiting`: the request has not
settled yet.
"""

_INACTIVE: dict[PanelState, tuple[tuple[str, str], ...]] = {
    "writing": (("", "finish or send your text first"), ("tab", "to answer")),
    "away": (("", "go back to the composer to answer"), ("tab", "twice from the conversation")),
    "waiting": (("", "active in a moment"), ("tab", "to answer at once")),
}


class Choice(Static):
    """An answer that can be selected."""

    class Clicked(Message):
        """The user clicked on a choice."""

        def __init__(self, choice: "Choice") -> None:
            super().__init__()
            self.choice = choice

    def __init__(self, label: Text | str, value: str) -> None:
        super().__init__(label, classes="choice", markup=False)
        self.label = label
        self.value = value

    def mark(self, *, is_chosen: bool, sign: str = "") -> None:
        """Mark the choice. `sign` is drawn before the label, because colours alone are not visible to all users."""
        self.set_class(is_chosen, "chosen")
        self.update(Text.assemble("▸ " if is_chosen else "  ", sign, self.label))

    def on_click(self) -> None:
        """Report the click."""
        self.post_message(self.Clicked(self))


class RequestPanel(Vertical, can_focus=True):
    """Base class of the panels. `act` receives arrows, Enter and digits; with the focus, `press` receives every other
    key.
    """

    KIND: ClassVar[Kind] = "approval"

    class Answered(Message):
        """The user has answered; `body` is sent to the server."""

        def __init__(self, panel: "RequestPanel", body: dict[str, Any]) -> None:
            super().__init__()
            self.panel = panel
            self.body = body

    class Resized(Message):
        """The panel uses the whole screen now, or no longer."""

    def __init__(self, request_id: str) -> None:
        super().__init__(classes="request inactive")
        self.request_id = request_id
        self.state: PanelState = "waiting"
        self.is_answered = False
        self.may_focus: Callable[[], bool] = lambda: True
        """Returns True if a click may move the focus here."""

    def on_mount(self) -> None:
        """Draw the panel."""
        self.redraw()
        self.fit()

    def on_resize(self) -> None:
        """Adapt to a new size."""
        self.fit()

    def focus_on_click(self) -> bool:
        """Return True if a click moves the focus here."""
        return self.may_focus()

    def show_state(self, state: PanelState) -> bool:
        """Set the state. Returns True if it has changed."""
        if state == self.state:
            return False
        self.state = state
        self.redraw()
        return True

    def redraw(self) -> None:
        """Draw the choices and the keys for the current state."""
        if not self.query(".panel-hint"):
            return
        is_active = self.state in ("active", "focused")
        self.set_class(not is_active, "inactive")
        self.set_class(self.state == "focused", "focused")
        self.draw_choices()
        self.query_one(".panel-hint", Label).update(hints(*(_INACTIVE.get(self.state) or self.keys())))

    def room(self) -> int:
        """Return the lines the panel may use: all but the bars, the composer and a little of the conversation."""
        composer = next((widget.outer_size.height for widget in self.screen.query("#editor")), 3)
        others = 2 if self.has_class("whole") else 6
        return max(6, self.app.size.height - max(3, composer) - others)

    def answer(self, body: dict[str, Any]) -> None:
        """Send the answer, once."""
        if not self.is_answered:
            self.is_answered = True
            self.post_message(self.Answered(self, body))

    async def _on_key(self, event: events.Key) -> None:
        if self.app.focused is not self:
            # A field inside the panel has the focus.
            return
        event.stop()
        event.prevent_default()
        if event.key in ("up", "down", "left", "right", "enter") or event.key in "123456789":
            self.act(event.key)
        else:
            self.press(event.key)

    def open_field(self, text: str = "") -> None:
        """Show the text field, and move the focus there."""
        self.add_class("written")
        field = self.query_one(Input)
        field.value = text
        self.redraw()
        self.fit()
        field.focus()

    def close_field(self) -> bool:
        """Hide the field again. Returns True if it was open."""
        was_open = self.has_class("written")
        self.remove_class("written")
        self.redraw()
        self.fit()
        return was_open

    def draw_choices(self) -> None:
        """Mark the selected choice."""

    def fit(self) -> None:
        """Give the scrolling part the lines that are left."""

    def keys(self) -> tuple[tuple[str, str], ...]:
        """Return the keys that act in the current state."""
        return ()

    def act(self, key: str) -> None:
        """Move among the choices, or select one."""

    def press(self, key: str) -> None:
        """Handle a key that acts only with the focus."""

    def clicked(self, choice: Choice) -> None:
        """Handle a click on a choice while the panel was active."""

    def forget_digits(self) -> None:
        """Undo the marks of digits that turned out to be text."""
