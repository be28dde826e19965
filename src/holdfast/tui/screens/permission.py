"""A tool asks. One sees exactly what it would do, and says yes, no, or how far the yes goes."""

from collections.abc import Mapping
from difflib import unified_diff
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from holdfast.tui.look import DARK

__all__ = ["PermissionScreen", "shown_exactly"]


def shown_exactly(text: str) -> Text:
    """Control characters are made visible: what one reads is what would be run."""
    shown = Text()
    for character in text:
        if character == "\n" or (character.isprintable() and character not in "\u200b\u202e\u2066"):
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode(), style="reverse")
    return shown


_WISHES = {
    "execute": "run a command",
    "write": "change a file",
    "read": "read a file outside of the workspace",
    "list": "list a directory outside of the workspace",
    "fetch": "read a page on the web",
    "download": "download a file",
}


class PermissionScreen(ModalScreen[dict[str, Any] | None]):
    """Answers the body of the grant; None if somebody else was quicker."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("a", "answer('allow')", "Once"),
        ("s", "answer('allow_session')", "This session"),
        ("w", "answer('allow_always')", "Always"),
        ("d,escape", "answer('deny')", "No"),
        ("r", "reason", "No, because"),
    ]

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__()
        self._request = dict(request)
        self.ask_id = str(request.get("id", ""))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            wants = _WISHES.get(str(self._request.get("action")), str(self._request.get("action", "act")))
            yield Label(f"{self._request.get('tool_name', 'A tool')} wants to {wants}", classes="dialog-title")
            yield Static(self._what(), id="what")
            why = str(self._request.get("why") or "")
            yield Label(why or f"in {self._request.get('path', '')}", classes="dialog-hint")
            yield Input(placeholder="Why not? The model reads this and goes on.")
            yield Label("a once · s this session · w always · d no, stop · r no, with a reason", classes="dialog-hint")

    def _what(self) -> Text:
        params = self._request.get("params") or {}
        if not isinstance(params, dict):
            return Text(str(self._request.get("description", "")))
        if isinstance(params.get("command"), str):
            return Text("$ ", style="bold") + shown_exactly(params["command"])
        if isinstance(params.get("new_content"), str):
            return self._change(str(params.get("old_content") or ""), params["new_content"])
        lines = [f"{name}: {value}" for name, value in params.items() if value not in ("", None, 0, False)]
        return shown_exactly("\n".join(lines) or str(self._request.get("description", "")))

    def _change(self, old: str, new: str) -> Text:
        text = Text(f"{(self._request.get('params') or {}).get('file_path', '')}\n", style="bold")
        for line in unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=3):
            if not line.startswith(("+++", "---")):
                style = {"+": DARK.added, "-": DARK.removed, "@": DARK.accent}.get(line[:1], "")
                text.append_text(Text(f"{line}\n", style=style))
        return text

    def action_answer(self, action: str) -> None:
        if not self.has_class("reason"):
            self.dismiss({"permission": self._request, "action": action})
        elif action == "deny":
            self.remove_class("reason")

    def action_reason(self) -> None:
        self.add_class("reason")
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def _with_reason(self, event: Input.Submitted) -> None:
        self.dismiss({"permission": self._request, "action": "deny", "reason": event.value.strip()})
