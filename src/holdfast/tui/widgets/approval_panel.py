"""Panel above the composer for a request that waits for the user: an approval or a batch of questions.

The panel is not a dialog: the composer keeps the keyboard, and `client/key_focus.py` decides which keys the panel
receives. It is drawn in three states: inactive (dimmed, keys do not reach it), active, and focused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from rich.console import Group, RenderableType
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Label, Static

from holdfast.client.key_focus import Kind
from holdfast.domain.line_diff import diff_lines, parse_unified_diff
from holdfast.tui.diff_render import SPLIT_WIDTH, DiffView
from holdfast.tui.key_hints import key_hints
from holdfast.tui.terminal_text import escaped_text
from holdfast.tui.themes import Palette

__all__ = ["AnswerChoice", "ApprovalPanel", "PanelState", "RequestPanel"]


PanelState = Literal["writing", "away", "waiting", "active", "focused"]
"""`writing`: the composer has text. `away`: another widget has the focus. `waiting`: the request has not
settled yet.
"""

_INACTIVE: dict[PanelState, tuple[tuple[str, str], ...]] = {
    "writing": (("", "finish or send your text first"), ("tab", "to answer")),
    "away": (("", "go back to the composer to answer"), ("tab", "twice from the conversation")),
    "waiting": (("", "active in a moment"), ("tab", "to answer at once")),
}


class AnswerChoice(Static):
    """An answer that can be selected."""

    class Clicked(Message):
        """The user clicked on a choice."""

        def __init__(self, choice: "AnswerChoice") -> None:
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

    def __init__(self, request_id: str, may_focus: Callable[["RequestPanel"], bool]) -> None:
        """Create the panel. `may_focus` returns True if a click may move the focus to the panel."""
        super().__init__(classes="request inactive")
        self.request_id = request_id
        self.state: PanelState = "waiting"
        self.is_answered = False
        self._may_focus = may_focus

    def on_mount(self) -> None:
        """Draw the panel."""
        self.redraw()
        self.fit()

    def on_resize(self) -> None:
        """Adapt to a new size."""
        self.fit()

    def focus_on_click(self) -> bool:
        """Return True if a click moves the focus here."""
        return self._may_focus(self)

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
        self.query_one(".panel-hint", Label).update(key_hints(*(_INACTIVE.get(self.state) or self.keys())))

    def room(self) -> int:
        """Return the lines the panel may use: all but the bars, the composer and a little of the conversation."""
        composer = next((widget.outer_size.height for widget in self.screen.query("#composer")), 3)
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

    def clicked(self, choice: AnswerChoice) -> None:
        """Handle a click on a choice while the panel was active."""

    def forget_digits(self) -> None:
        """Undo the marks of digits that turned out to be text."""


_MAX_NOTE_LINES = 5
_BORDER_WIDTH = 8
"""Columns that notes cannot use: margins, frame, padding."""
_ACTIONS = {
    "execute": "run a command",
    "write": "change a file",
    "read": "read a file outside of the workspace",
    "list": "list a directory outside of the workspace",
    "fetch": "read a page on the web",
    "download": "download a file",
}
_ANSWERS = (
    ("allow", "Once"),
    ("allow_session", "This session"),
    ("allow_always", "Always"),
    ("deny", "No"),
)
_LETTERS = {"a": "allow", "s": "allow_session", "d": "deny"}
"""Available with the focus only. A permanent rule has no letter: it requires the arrows and Enter."""
_SCROLLS = {"j": 1, "k": -1, "space": 12, "b": -12}


class ApprovalPanel(RequestPanel):
    """Approval of a tool call: shows exactly what the call would do, and offers the answers.

    The answer is the body of the grant.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        palette: Palette,
        *,
        may_focus: Callable[[RequestPanel], bool],
        more: int = 0,
        session: str = "",
    ) -> None:
        """Create the panel. `more` is the number of other approvals that wait, `session` the title of the requesting
        session, if another one is shown.
        """
        super().__init__(str(request.get("id", "")), may_focus)
        self._session = session
        self._request = dict(request)
        self._palette = palette
        self._more = more
        self._split: bool | None = None
        self._place = 0

    def compose(self) -> ComposeResult:
        """Compose the panel."""
        request = self._request
        wanted_action = _ACTIONS.get(str(request.get("action")), str(request.get("action", "act")))
        more = f"   (and {self._more} more)" if self._more else ""
        title = f"{request.get('tool_name', 'A tool')} wants to {wanted_action}{more}"
        yield Label(title, classes="panel-title", markup=False)
        with VerticalScroll(id="what", can_focus=False):
            yield Static(self._request_text(), id="what-text")
        with VerticalScroll(id="notes", can_focus=False):
            yield Static(Text("\n").join(self._notes()), classes="panel-note")
        with Horizontal(id="answers"):
            for action, word in _ANSWERS:
                if action != "allow_always" or self._rules:
                    yield AnswerChoice(word, action)
        yield Input(placeholder="The reason, for the model. The run continues.", compact=True)
        yield Label("", classes="panel-hint")

    @property
    def _scroll(self) -> VerticalScroll:
        return self.query_one("#what", VerticalScroll)

    def keys(self) -> tuple[tuple[str, str], ...]:
        """Keys that act in the current state."""
        if self.has_class("written"):
            return ("enter", "no, with this reason"), ("esc", "back")
        if self.state == "active":
            return ("←→", "choose"), ("enter", "answer"), ("tab", "letters, reason, whole screen")
        turn = (("t", "split"),) if self._is_change else ()
        letters = (("a", "once"), ("s", "session"), ("d", "no"), ("r", "no, because"))
        return *letters, *turn, ("f", "whole"), ("esc", "back")

    def draw_choices(self) -> None:
        """Mark the selected answer."""
        for place, choice in enumerate(self.query(AnswerChoice)):
            choice.mark(is_chosen=place == self._place and self.state in ("active", "focused"))

    def fit(self) -> None:
        """Limit the height of the details, so that the answers stay visible."""
        if not self.query(".panel-note"):
            return
        size = self.app.size
        notes = self.query_one(".panel-note", Static)
        high = min(_MAX_NOTE_LINES, notes.get_content_height(size, size, max(10, size.width - _BORDER_WIDTH)))
        self.query_one("#notes").styles.max_height = high
        # Frame, title, answers and keys.
        self._scroll.styles.max_height = max(2, self.room() - high - 5)

    @property
    def _rules(self) -> Sequence[str]:
        rules = self._request.get("rules")
        return [str(rule) for rule in rules] if isinstance(rules, list | tuple) else []

    def _notes(self) -> list[Text]:
        request = self._request
        why = str(request.get("why") or "")
        notes = [Text(f"For the session “{self._session}”, which is not shown.")] if self._session else []
        notes += [Text(why)] if why else []
        command = (request.get("params") or {}).get("command")
        if request.get("path") and command:
            notes.append(Text("In ") + escaped_text(str(request["path"])))
        if self._rules:
            notes.append(Text("Always saves: ") + escaped_text("\n".join(self._rules)))
        return notes

    @property
    def _is_change(self) -> bool:
        params = self._request.get("params")
        return isinstance(params, dict) and any(isinstance(params.get(name), str) for name in ("new_content", "diff"))

    def _request_text(self) -> RenderableType:
        params = self._request.get("params") or {}
        if not isinstance(params, dict):
            return escaped_text(str(self._request.get("description", "")))
        if isinstance(params.get("command"), str):
            return Text("$ ", style="bold") + escaped_text(params["command"])
        if self._is_change:
            return self._change(params)
        lines = [f"{name}: {value}" for name, value in params.items() if value not in ("", None, 0, False)]
        return escaped_text("\n".join(lines) or str(self._request.get("description", "")))

    def _change(self, params: Mapping[str, Any]) -> RenderableType:
        if isinstance(params.get("new_content"), str):
            lines = diff_lines(str(params.get("old_content") or ""), params["new_content"])
        else:
            lines = parse_unified_diff(params["diff"])
        name = escaped_text(str(params.get("file_path", "")))
        name.stylize("bold")
        path = str(params.get("file_path", ""))
        # Lines are not cut: text beyond the edge of the screen would be executed, too.
        return Group(name, DiffView(lines, self._palette, split=self._split, name=path, wraps=True))

    def act(self, key: str) -> None:
        """Move among the answers, or send one."""
        choices = list(self.query(AnswerChoice))
        match key:
            case "left" | "up":
                self._place = max(0, self._place - 1)
            case "right" | "down":
                self._place = min(len(choices) - 1, self._place + 1)
            case "enter":
                self._answer(choices[self._place].value)
            case _:
                return
        self.draw_choices()

    def clicked(self, choice: AnswerChoice) -> None:
        """Send the answer that was clicked."""
        self._answer(choice.value)

    def press(self, key: str) -> None:
        """Handle a key that acts only with the focus."""
        if action := _LETTERS.get(key):
            self._answer(action)
        elif by := _SCROLLS.get(key):
            self.scroll_details(by)
        elif key == "r":
            self.open_field()
        elif key == "t":
            self._turn()
        elif key == "f":
            self.toggle_class("whole")
            self.screen.set_class(self.has_class("whole"), "whole-request")
            self.fit()
            self.post_message(self.Resized())

    def scroll_details(self, by: int) -> None:
        """Scroll the details."""
        self._scroll.scroll_relative(y=by, animate=False)

    def _answer(self, action: str) -> None:
        self.answer({"permission": self._request, "action": action})

    def _turn(self) -> None:
        is_split = self._scroll.size.width >= SPLIT_WIDTH if self._split is None else self._split
        self._split = not is_split
        self.query_one("#what-text", Static).update(self._request_text())

    @on(Input.Submitted)
    def _with_reason(self, event: Input.Submitted) -> None:
        event.stop()
        self.answer({"permission": self._request, "action": "deny", "reason": event.value.strip()})
