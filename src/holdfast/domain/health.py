"""What a look at a workspace and its server found, said so that somebody can mend it."""

from typing import Literal

import msgspec

__all__ = ["Finding", "Health", "Severity"]

Severity = Literal["ok", "note", "warning", "error"]
"""`error` keeps something from working, `warning` makes it worse than it could be, `note` is good to know."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is so. Neither text repeats a value that may be a key.

    `area` is what it belongs to, in small letters, in the plural where there may be several. `what_to_do` is a sentence
    for who reads it, empty where nothing has to be done. `line` counts from 1; 0 is the file as a whole.
    """

    area: str
    severity: Severity
    what: str
    what_to_do: str = ""
    file: str = ""
    line: int = 0


class Health(msgspec.Struct, frozen=True):
    """All that was found, area by area, in the order in which somebody should read it."""

    findings: tuple[Finding, ...]
