"""Notifications for a user who looks at another window: through the terminal, the desktop, or the bell."""

from collections.abc import Callable, Mapping

__all__ = ["alert", "desktop_command"]

_OSC_777 = ("rxvt", "foot", "vte", "contour")
_OSC_9 = ("iTerm.app", "WezTerm", "ghostty", "WarpTerminal", "kitty", "vscode")


def alert(style: str, text: str, environment: Mapping[str, str]) -> str:
    """Return the sequence to write to the terminal; empty if disabled. `auto` uses terminals that are known to support
    it.
    """
    if style == "disabled":
        return ""
    words = _words(text)
    if style == "bell":
        return "\a"
    sequence = _sequence(words, environment, is_forced=style in ("osc", "native"))
    if sequence != "\a" and environment.get("TMUX"):
        # tmux forwards the sequence if allow-passthrough is set; it always supports the bell.
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\\a"
    return sequence


def desktop_command(
    text: str, environment: Mapping[str, str], find: Callable[[str], str | None]
) -> tuple[str, ...] | None:
    """Return the command of a local program that shows a notification, if there is one and the session is local."""
    words = _words(text)
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


def _words(text: str) -> str:
    return "".join(character if character.isprintable() and character != ";" else " " for character in text)[:200]


def _sequence(words: str, environment: Mapping[str, str], *, is_forced: bool) -> str:
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if any(name in term for name in _OSC_777) or environment.get("VTE_VERSION"):
        return f"\x1b]777;notify;Holdfast;{words}\x1b\\"
    if is_forced or program in _OSC_9 or "kitty" in term or "ghostty" in term or environment.get("WT_SESSION"):
        return f"\x1b]9;{words}\x1b\\"
    return "\a"
