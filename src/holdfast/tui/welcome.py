"""What one sees before the first prompt."""

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.tui.link import Link

__all__ = ["welcome"]

_ANCHOR = """\
      ○
    ──┼──
      │
  ╰╮  │  ╭╯
   ╰──┴──╯"""


def welcome(link: Link) -> RenderableType:
    """In one screen: where one is, who answers, what to do."""
    config = (link.view.workspace.config if link.view.workspace else None) or {}
    large = config.get("models", {}).get("large", {})
    count = sum(1 for item in link.view.sessions.values() if not item.parent_session_id)
    lines: list[RenderableType] = [
        Text(_ANCHOR, style="bold"),
        Text(""),
        Text("Holdfast", style="bold"),
        Text("A coding agent that holds on when you let go.", style="dim"),
        Text(""),
        _fact("directory", link.directory),
        _fact("model", f"{large.get('provider', '')}/{large.get('model', '')}".strip("/") or "none yet"),
        _fact("sessions", str(count) if count else "none yet"),
        Text(""),
        Text("Write what you want done and press enter. You may close this window"),
        Text("while it works: it goes on, and holdfast brings you back to it."),
    ]
    if large.get("provider") == "demo":
        lines += [
            Text(""),
            Text("No model is set up: a scripted tour answers. Try", style="dim"),
            Text("  words=200 pause=30        tool=ls        think words=50", style="dim"),
            Text("or set one up: holdfast login PROVIDER, holdfast models.", style="dim"),
        ]
    return Group(*lines)


def _fact(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<11}", "dim"), value, no_wrap=True, overflow="ellipsis")
