"""Telling somebody who looks elsewhere: a note on the desktop through the terminal, or its bell."""

from collections.abc import Mapping

__all__ = ["alert"]

_OSC_777 = ("rxvt", "foot", "vte", "contour")
_OSC_9 = ("iTerm.app", "WezTerm", "ghostty", "WarpTerminal", "kitty", "vscode")


def alert(style: str, text: str, environment: Mapping[str, str]) -> str:
    """What to write to the terminal; empty if nothing is wanted. `auto` asks terminals that are known to show it."""
    if style == "disabled":
        return ""
    words = "".join(character if character.isprintable() and character != ";" else " " for character in text)[:200]
    if style == "bell":
        return "\a"
    sequence = _sequence(words, environment, is_forced=style in ("osc", "native"))
    if sequence != "\a" and environment.get("TMUX"):
        # tmux hands it on if allow-passthrough is set; the bell it always knows.
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\\a"
    return sequence


def _sequence(words: str, environment: Mapping[str, str], *, is_forced: bool) -> str:
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if any(name in term for name in _OSC_777) or environment.get("VTE_VERSION"):
        return f"\x1b]777;notify;Holdfast;{words}\x1b\\"
    if is_forced or program in _OSC_9 or "kitty" in term or "ghostty" in term or environment.get("WT_SESSION"):
        return f"\x1b]9;{words}\x1b\\"
    return "\a"
