"""The corpus of shell lines: `corpus.txt`, one line each, under headings, with what the defaults say of it.

`allow!` and `ask!` lines are written with Python's escapes, for newlines and characters nobody can see.
"""

from pathlib import Path

import msgspec

__all__ = ["LINES", "Expected"]


class Expected(msgspec.Struct, frozen=True):
    theme: str
    decision: str
    line: str


def _read() -> list[Expected]:
    found: list[Expected] = []
    theme = ""
    for raw in (Path(__file__).parent / "corpus.txt").read_text("utf-8").split("\n"):
        if raw.startswith("## "):
            theme = raw[3:]
        elif raw:
            decision, _, line = raw.partition(" ")
            if decision.endswith("!"):
                line = line.encode("latin-1", "backslashreplace").decode("unicode_escape")
            found.append(Expected(theme, decision.rstrip("!"), line))
    return found


LINES = _read()
