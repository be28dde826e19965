"""Approval of a tool call: shows exactly what the call would do, and offers the answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Label, Static

from holdfast.tui.differences import SPLIT_FROM, Differences
from holdfast.tui.diffs import diff_of, parsed
from holdfast.tui.exact_text import shown_exactly
from holdfast.tui.look import DARK, Look
from holdfast.tui.request_panel import Choice, RequestPanel

__all__ = ["ApprovalPanel"]

_MOST_NOTES = 5
_BESIDE = 8
"""Columns that notes cannot use: margins, frame, padding."""
_WISHES = {
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
    """An approval. The answer is the body of the grant."""

    def __init__(self, request: Mapping[str, Any], look: Look = DARK, *, more: int = 0, session: str = "") -> None:
        """Create the panel. `session` is the title of the requesting session, if another one is shown."""
        super().__init__(str(request.get("id", "")))
        self._session = session
        self._request = dict(request)
        self._look = look
        self._more = more
        self._split: bool | None = None
        self._place = 0

    def compose(self) -> ComposeResult:
        """Compose the panel."""
        request = self._request
        wants = _WISHES.get(str(request.get("action")), str(request.get("action", "act")))
        more = f"   (and {self._more} more)" if self._more else ""
        title = f"{request.get('tool_name', 'A tool')} wants to {wants}{more}"
        yield Label(title, classes="panel-title", markup=False)
        with VerticalScroll(id="what", can_focus=False):
            yield Static(self._what(), id="what-text")
        with VerticalScroll(id="notes", can_focus=False):
            yield Static(Text("\n").join(self._notes()), classes="panel-note")
        with Horizontal(id="answers"):
            for action, word in _ANSWERS:
                if action != "allow_always" or self._rules:
                    yield Choice(word, action)
        yield Input(placeholder="Why not? The model reads this and goes on.", compact=True)
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
        for place, choice in enumerate(self.query(Choice)):
            choice.mark(is_chosen=place == self._place and self.state in ("active", "focused"))

    def fit(self) -> None:
        """Limit the height of the details, so that the answers stay visible."""
        if not self.query(".panel-note"):
            return
        size = self.app.size
        notes = self.query_one(".panel-note", Static)
        high = min(_MOST_NOTES, notes.get_content_height(size, size, max(10, size.width - _BESIDE)))
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
        notes = [Text(f"It works in “{self._session}”, which you do not look at now.")] if self._session else []
        notes += [Text(why)] if why else []
        command = (request.get("params") or {}).get("command")
        if request.get("path") and command:
            notes.append(Text("In ") + shown_exactly(str(request["path"])))
        if self._rules:
            notes.append(Text("Always saves: ") + shown_exactly("\n".join(self._rules)))
        return notes

    @property
    def _is_change(self) -> bool:
        params = self._request.get("params")
        return isinstance(params, dict) and any(isinstance(params.get(name), str) for name in ("new_content", "diff"))

    def _what(self) -> RenderableType:
        params = self._request.get("params") or {}
        if not isinstance(params, dict):
            return shown_exactly(str(self._request.get("description", "")))
        if isinstance(params.get("command"), str):
            return Text("$ ", style="bold") + shown_exactly(params["command"])
        if self._is_change:
            return self._change(params)
        lines = [f"{name}: {value}" for name, value in params.items() if value not in ("", None, 0, False)]
        return shown_exactly("\n".join(lines) or str(self._request.get("description", "")))

    def _change(self, params: Mapping[str, Any]) -> RenderableType:
        if isinstance(params.get("new_content"), str):
            lines = diff_of(str(params.get("old_content") or ""), params["new_content"])
        else:
            lines = parsed(params["diff"])
        name = shown_exactly(str(params.get("file_path", "")))
        name.stylize("bold")
        path = str(params.get("file_path", ""))
        # Lines are not cut: text beyond the edge of the screen would be executed, too.
        return Group(name, Differences(lines, self._look, split=self._split, name=path, wraps=True))

    def act(self, key: str) -> None:
        """Move among the answers, or send one."""
        choices = list(self.query(Choice))
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

    def clicked(self, choice: Choice) -> None:
        """Send the answer that was clicked."""
        self._answer(choice.value)

    def press(self, key: str) -> None:
        """Handle a key that acts only with the focus."""
        if action := _LETTERS.get(key):
            self._answer(action)
        elif by := _SCROLLS.get(key):
            self.scroll_what(by)
        elif key == "r":
            self.open_field()
        elif key == "t":
            self._turn()
        elif key == "f":
            self.toggle_class("whole")
            self.screen.set_class(self.has_class("whole"), "whole-request")
            self.fit()
            self.post_message(self.Resized())

    def scroll_what(self, by: int) -> None:
        """Scroll the details."""
        self._scroll.scroll_relative(y=by, animate=False)

    def _answer(self, action: str) -> None:
        self.answer({"permission": self._request, "action": action})

    def _turn(self) -> None:
        is_split = self._scroll.size.width >= SPLIT_FROM if self._split is None else self._split
        self._split = not is_split
        self.query_one("#what-text", Static).update(self._what())

    @on(Input.Submitted)
    def _with_reason(self, event: Input.Submitted) -> None:
        event.stop()
        self.answer({"permission": self._request, "action": "deny", "reason": event.value.strip()})
