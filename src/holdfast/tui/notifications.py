"""Notifications for a user who looks at another window: through the terminal, the desktop, or the bell."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

from holdfast.tui.app_context import AppContext

__all__ = ["AwayNotifier", "desktop_command", "terminal_sequence"]

_OSC_777 = ("rxvt", "foot", "vte", "contour")
_OSC_9 = ("iTerm.app", "WezTerm", "ghostty", "WarpTerminal", "kitty", "vscode")
_OUTCOMES = {"completed": "Completed", "failed": "Failed", "interrupted": "Interrupted"}


class AwayNotifier:
    """Notifies the user while the terminal window does not have the focus."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self.is_away = False
        """True while another window has the focus."""

    def notify(self, text: str) -> None:
        """Notify the user, if the window does not have the focus."""
        if not self.is_away:
            return
        style = str(self._context.options.get("notifications") or "auto")
        command = desktop_command(text, os.environ, shutil.which) if style == "native" else None
        if command is not None:
            self._context.start_thread(lambda: self._show_on_desktop(command, text))
        elif sequence := terminal_sequence(style, text, os.environ):
            self._context.write_terminal(sequence)

    def report_ended_runs(self) -> None:
        """Notify the user of runs that have ended since the last call."""
        connection = self._context.connection
        ended, connection.ended_runs = connection.ended_runs, []
        for run_id in ended:
            run = connection.view.runs.get(run_id)
            if run is None or run.parent_run_id or run.folded_into or run.outcome in (None, "cancelled"):
                continue
            session = connection.view.sessions.get(run.session_id)
            self.notify(f"{_OUTCOMES.get(run.outcome, 'Ended')}: {session.title if session else run.prompt[:60]}")

    def _show_on_desktop(self, command: tuple[str, ...], text: str) -> None:
        """Run a notification program; use the terminal if it fails."""
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            sequence = terminal_sequence("native", text, os.environ)
            self._context.call_from_thread(self._context.write_terminal, sequence)


def terminal_sequence(style: str, text: str, environment: Mapping[str, str]) -> str:
    """Return the sequence to write to the terminal; empty if disabled. `auto` uses terminals that are known to support
    it.
    """
    if style == "disabled":
        return ""
    if style == "bell":
        return "\a"
    sequence = _notification(_strip_control_characters(text), environment, is_forced=style in ("osc", "native"))
    if sequence != "\a" and environment.get("TMUX"):
        # tmux forwards the sequence if allow-passthrough is set; it always supports the bell.
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\\a"
    return sequence


def desktop_command(
    text: str, environment: Mapping[str, str], find: Callable[[str], str | None]
) -> tuple[str, ...] | None:
    """Return the command of a local program that shows a notification, if there is one and the session is local."""
    words = _strip_control_characters(text)
    if environment.get("SSH_CONNECTION"):
        # On the remote machine the notification would not be seen; the terminal forwards its own sequence.
        return None
    if (program := find("terminal-notifier")) is not None:
        return (program, "-title", "Holdfast", "-message", words)
    if (program := find("osascript")) is not None:
        script = ("on run argv", 'display notification (item 1 of argv) with title "Holdfast"', "end run")
        return (program, *(word for line in script for word in ("-e", line)), words)
    has_desktop = any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS"))
    if has_desktop and (program := find("notify-send")) is not None:
        return (program, "--app-name=Holdfast", "--", "Holdfast", words)
    return None


def _strip_control_characters(text: str) -> str:
    """Replace characters that would end or split the sequence."""
    return "".join(character if character.isprintable() and character != ";" else " " for character in text)[:200]


def _notification(words: str, environment: Mapping[str, str], *, is_forced: bool) -> str:
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if any(name in term for name in _OSC_777) or environment.get("VTE_VERSION"):
        return f"\x1b]777;notify;Holdfast;{words}\x1b\\"
    if is_forced or program in _OSC_9 or "kitty" in term or "ghostty" in term or environment.get("WT_SESSION"):
        return f"\x1b]9;{words}\x1b\\"
    return "\a"
