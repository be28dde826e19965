"""The welcome screen before the first prompt: where the app works, with which model, and ways to start."""

import os

from rich.text import Text
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from holdfast.client.errors import ClientError
from holdfast.tui.app_context import AppContext
from holdfast.tui.server_connection import ServerConnection

__all__ = ["START_ACTIONS", "WelcomeView", "is_scripted", "start_actions", "welcome_text"]

_ANCHOR = """\
      ○
    ──┼──
      │
  ╰╮  │  ╭╯
   ╰──┴──╯"""
_ANCHOR_HEIGHT = 34
_ACTIONS_HEIGHT = 20
"""Minimum heights of the terminal for the anchor and for the start actions."""

START_ACTIONS = (
    ("tour", "Take the tour", "no key, no network: everything but the model is real"),
    ("last", "Continue", "the session used last"),
    ("models", "Choose a model", "or set a key"),
    ("init", "Write {guide}", "the model describes the project for later sessions"),
    ("help", "Keys", "on one page"),
)
"""Ways to start other than typing: the action, its name, and a description. Settings name the guide."""


class WelcomeView:
    """Draws the welcome screen."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._providers = "searching …"
        self._drawn: tuple[str, ...] = ()

    async def find_providers(self) -> None:
        """Find the providers that are ready to use."""
        connection = self._context.connection
        try:
            providers = await connection.client.list_providers(connection.workspace)
        except ClientError:
            return
        usable = [item for item in providers if not item.get("lack") and item.get("id") != "demo"]
        names = [str(item.get("name") or item["id"]) for item in usable if item.get("models")]
        self._providers = ", ".join(names) or "no key and no local model: ctrl+l sets a key"
        self._context.request_frame()

    def draw(self) -> Text:
        """Draw the start actions and return the text above them."""
        self._draw_actions()
        accent = self._context.transcript.palette.accent
        return welcome_text(self._context.connection, self._providers, self._context.size.height, accent)

    def _draw_actions(self) -> None:
        """Fill the list of start actions, if it has changed: filling it again would reset the highlighted action."""
        options = self._context.main_screen.query_one("#start-actions", OptionList)
        options.display = self._context.size.height >= _ACTIONS_HEIGHT
        actions, accent = start_actions(self._context.connection), self._context.transcript.palette.accent
        drawn = (accent, *(title for _, title, _ in actions))
        if drawn == self._drawn:
            return
        self._drawn = drawn
        options.clear_options()
        width = max(len(title) for _, title, _ in actions)
        for action, title, description in actions:
            line = Text.assemble(("▸ ", accent), (f"{title:<{width}}   ", "bold"), (description, "dim"))
            options.add_option(Option(line, id=action))


def welcome_text(connection: ServerConnection, providers: str, height: int, accent: str = "") -> Text:
    """Return the welcome text: the directory, the model, and what to do."""
    config = (connection.view.workspace.config if connection.view.workspace else None) or {}
    large = config.get("models", {}).get("large", {})
    count = sum(1 for item in connection.view.sessions.values() if not item.parent_session_id)
    model = f"{large.get('provider', '')}/{large.get('model', '')}".strip("/") or "none yet: ctrl+l chooses one"
    if is_scripted(connection):
        model += "  (scripted answers, no model)"
    lines = [
        Text("Holdfast", style=f"bold {accent}".strip()),
        Text("A coding agent that holds on when you let go.", style="dim"),
        Text(""),
    ]
    if height >= _ANCHOR_HEIGHT:
        lines = [*(Text(line, style=accent) for line in _ANCHOR.split("\n")), Text(""), *lines]
    lines += [_fact("directory", connection.directory), _fact("model", model)]
    if providers:
        lines.append(_fact("providers", providers))
    if count:
        lines.append(_fact("sessions", f"{count}: ctrl+s opens one"))
    lines += [
        Text(""),
        Text("Write what you want done and press enter. You can close this window"),
        Text("while it works: the work continues, and holdfast shows it again."),
    ]
    return Text("\n").join(lines)


def is_scripted(connection: ServerConnection) -> bool:
    """Return True if the scripted model is selected."""
    config = (connection.view.workspace.config if connection.view.workspace else None) or {}
    return bool(config.get("models", {}).get("large", {}).get("provider") == "demo")


def start_actions(connection: ServerConnection) -> list[tuple[str, str, str]]:
    """Return the start actions that are available."""
    options = ((connection.view.workspace.config if connection.view.workspace else None) or {}).get("options") or {}
    guide = str(options.get("initialize_as") or "AGENTS.md")
    has_guide = os.path.exists(os.path.join(connection.directory, guide))
    has_sessions = any(not item.parent_session_id for item in connection.view.sessions.values())
    scripted = is_scripted(connection)
    available = {"tour": scripted, "last": has_sessions, "init": not has_guide and not scripted}
    return [
        (name, title.format(guide=guide), description)
        for name, title, description in START_ACTIONS
        if available.get(name, True)
    ]


def _fact(name: str, value: str) -> Text:
    return Text.assemble((f"{name:<11}", "dim"), value, no_wrap=True, overflow="ellipsis")
