"""The corpus of shell lines: `corpus.txt`, one per line, under headings, with the decision of the default rules.

`allow!` and `ask!` lines use Python's escapes, for newlines and invisible characters.
"""

from pathlib import Path

import msgspec

__all__ = ["LINES", "Expected", "read_tables"]


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


def read_tables(name: str) -> dict[str, tuple[str, ...]]:
    """Read shell lines under headings. A line after `! ` uses Python's escapes."""
    found: dict[str, tuple[str, ...]] = {}
    heading = ""
    for raw in (Path(__file__).parent / name).read_text("utf-8").splitlines():
        if raw.startswith("## "):
            heading = raw[3:]
            found[heading] = ()
        else:
            line = raw[2:].encode("ascii").decode("unicode_escape") if raw.startswith("! ") else raw
            found[heading] += (line,)
    return found


LINES = _read()
