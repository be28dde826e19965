"""A tool asks. One sees exactly what it would do, and says yes, no, or how far the yes goes."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Label, Static

from holdfast.tui.differences import SPLIT_FROM, Differences
from holdfast.tui.diffs import diff_of, parsed
from holdfast.tui.hints import hints
from holdfast.tui.look import DARK, Look
from holdfast.tui.screens.dialog import Dialog

__all__ = ["PermissionScreen", "shown_exactly"]

_HIDDEN = frozenset(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, 0xAD)))


def shown_exactly(text: str) -> Text:
    """Control characters and invisible ones are made visible: what one reads is what would be run."""
    shown = Text()
    for character in text:
        if character == "\n" or (character.isprintable() and character not in _HIDDEN):
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode(), style="reverse")
    return shown


_MOST_NOTES = 5
_BESIDE = 8
"""Columns that are no room for notes: margins, frame, padding."""
_WISHES = {
    "execute": "run a command",
    "write": "change a file",
    "read": "read a file outside of the workspace",
    "list": "list a directory outside of the workspace",
    "fetch": "read a page on the web",
    "download": "download a file",
}
_ANSWERS = (
    ("allow", "a", "Once"),
    ("allow_session", "s", "This session"),
    ("allow_always", "w", "Always"),
    ("deny", "d", "No"),
)


class PermissionScreen(Dialog[dict[str, Any] | None]):
    """Answers the body of the grant; None if somebody else was quicker.

    `deaf` seconds after it opened keys are not answers yet: who was writing did not mean them.
    """

    GROWS = "#what"
    REST = 9
    BINDINGS: ClassVar[list[BindingType]] = [
        ("a", "answer('allow')", "Once"),
        ("s", "answer('allow_session')", "This session"),
        ("w", "answer('allow_always')", "Always"),
        ("d", "answer('deny')", "No"),
        ("escape", "back", "No"),
        ("r", "reason", "No, because"),
        ("t", "turn", "One column or two"),
        ("f", "whole", "Whole screen"),
        ("j,down", "scroll(1)", "Down"),
        ("k,up", "scroll(-1)", "Up"),
        ("pagedown,space", "scroll(12)", "Page down"),
        ("pageup,b", "scroll(-12)", "Page up"),
    ]

    def __init__(
        self, request: Mapping[str, Any], look: Look = DARK, *, more: int = 0, deaf: float = 0.0, session: str = ""
    ) -> None:
        """`session` is the title of the one that asks, if another is shown."""
        super().__init__()
        self._session = session
        self._request = dict(request)
        self._look = look
        self._more = more
        self._hears_from = time.monotonic() + deaf
        self._split: bool | None = None
        self.ask_id = str(request.get("id", ""))

    def compose(self) -> ComposeResult:
        request = self._request
        with Vertical(classes="dialog warning"):
            wants = _WISHES.get(str(request.get("action")), str(request.get("action", "act")))
            more = f"   (and {self._more} more)" if self._more else ""
            title = f"{request.get('tool_name', 'A tool')} wants to {wants}{more}"
            yield Label(title, classes="dialog-title", markup=False)
            with VerticalScroll(id="what"):
                yield Static(self._what(), id="what-text")
            with VerticalScroll(id="notes", can_focus=False):
                yield Static(Text("\n").join(self._notes()), classes="dialog-note")
            with Horizontal(id="answers"):
                for action, key, word in _ANSWERS:
                    if action != "allow_always" or self._rules:
                        label = Content.assemble((key, "bold $accent"), f"  {word}")
                        yield Button(label, name=action, compact=True)
            yield Input(placeholder="Why not? The model reads this and goes on.", compact=True)
            yield Label(self._keys(), classes="dialog-hint")

    def on_mount(self) -> None:
        self._scroll.focus()

    @property
    def _scroll(self) -> VerticalScroll:
        return self.query_one("#what", VerticalScroll)

    def _keys(self) -> Text:
        if self.has_class("reason"):
            return hints(("enter", "no, with this reason"), ("esc", "back"))
        turn = (("t", "one column or two"),) if self._is_change else ()
        return hints(("r", "no, with a reason"), *turn, ("f", "whole screen"), ("esc", "no"))

    def _fit(self) -> None:
        """However much there is to say: the answers stay in sight."""
        size = self.app.size
        notes = self.query_one(".dialog-note", Static)
        high = min(_MOST_NOTES, notes.get_content_height(size, size, max(10, size.width - _BESIDE)))
        self.query_one("#notes").styles.max_height = high
        room = size.height if self.query_one(".dialog").has_class("whole") else size.height * 9 // 10
        self._scroll.styles.max_height = max(3, room - self.REST - high)

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
        # Whole lines: what stands behind the edge of the screen would be done, too.
        return Group(name, Differences(lines, self._look, split=self._split, name=path, wraps=True))

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.action_answer(event.button.name or "deny")

    def action_answer(self, action: str) -> None:
        if self.has_class("reason") or time.monotonic() < self._hears_from:
            return
        if action == "allow_always" and not self._rules:
            self.notify("No rule could allow this for always: allow it once, or for this session.")
            return
        self.dismiss({"permission": self._request, "action": action})

    def action_back(self) -> None:
        if self.has_class("reason"):
            self.remove_class("reason")
            self.query_one(".dialog-hint", Label).update(self._keys())
            self._scroll.focus()
        else:
            self.action_answer("deny")

    def action_reason(self) -> None:
        self.add_class("reason")
        self.query_one(".dialog-hint", Label).update(self._keys())
        self.query_one(Input).focus()

    def action_turn(self) -> None:
        is_split = self._scroll.size.width >= SPLIT_FROM if self._split is None else self._split
        self._split = not is_split
        self.query_one("#what-text", Static).update(self._what())

    def action_whole(self) -> None:
        self.query_one(".dialog").toggle_class("whole")
        self._fit()

    def action_scroll(self, by: int) -> None:
        self._scroll.scroll_relative(y=by, animate=False)

    @on(Input.Submitted)
    def _with_reason(self, event: Input.Submitted) -> None:
        self.dismiss({"permission": self._request, "action": "deny", "reason": event.value.strip()})
