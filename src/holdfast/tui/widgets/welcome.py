"""The welcome screen before the first prompt."""

import os

from rich.text import Text

from holdfast.tui.server_connection import ServerConnection

__all__ = ["DOORS", "doors", "is_scripted", "welcome"]

_ANCHOR = """\
      ○
    ──┼──
      │
  ╰╮  │  ╭╯
   ╰──┴──╯"""

DOORS = (
    ("tour", "Take the tour", "no key, no network: everything but the model is real"),
    ("last", "Go on", "with the session used last"),
    ("models", "Choose a model", "or set a key"),
    ("init", "Write {guide}", "the model describes the project for whoever comes next"),
    ("help", "Keys", "on one page"),
)
"""Ways to start other than typing: the action, its name, and a description. Settings name the guide."""


def welcome(link: ServerConnection, found: str, height: int, accent: str = "") -> Text:
    """Return the welcome text: the directory, the model, and what to do."""
    config = (link.view.workspace.config if link.view.workspace else None) or {}
    large = config.get("models", {}).get("large", {})
    count = sum(1 for item in link.view.sessions.values() if not item.parent_session_id)
    model = f"{large.get('provider', '')}/{large.get('model', '')}".strip("/") or "none yet: ctrl+l chooses one"
    if is_scripted(link):
        model += "  (scripted: nobody is thinking)"
    lines = [
        Text("Holdfast", style=f"bold {accent}".strip()),
        Text("A coding agent that holds on when you let go.", style="dim"),
        Text(""),
    ]
    if height >= 34:
        lines = [*(Text(line, style=accent) for line in _ANCHOR.split("\n")), Text(""), *lines]
    lines += [_fact("directory", link.directory), _fact("model", model)]
    if found:
        lines.append(_fact("found", found))
    if count:
        lines.append(_fact("sessions", f"{count}: ctrl+s opens one"))
    lines += [
        Text(""),
        Text("Write what you want done and press enter. You may close this window"),
        Text("while it works: it goes on, and holdfast brings you back to it."),
    ]
    return Text("\n").join(lines)


def is_scripted(link: ServerConnection) -> bool:
    """Return True if the scripted model is selected."""
    config = (link.view.workspace.config if link.view.workspace else None) or {}
    return bool(config.get("models", {}).get("large", {}).get("provider") == "demo")


def doors(link: ServerConnection) -> list[tuple[str, str, str]]:
    """Return the start actions that are available."""
    options = ((link.view.workspace.config if link.view.workspace else None) or {}).get("options") or {}
    guide = str(options.get("initialize_as") or "AGENTS.md")
    is_there = os.path.exists(os.path.join(link.directory, guide))
    has_sessions = any(not item.parent_session_id for item in link.view.sessions.values())
    opens = {"tour": is_scripted(link), "last": has_sessions, "init": not is_there and not is_scripted(link)}
    return [(name, title.format(guide=guide), about) for name, title, about in DOORS if opens.get(name, True)]


def _fact(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<11}", "dim"), value, no_wrap=True, overflow="ellipsis")
