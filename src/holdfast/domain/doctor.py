"""The findings of a health check of a workspace and its server, with remedies."""

from typing import Literal

import msgspec

__all__ = ["Finding", "Health", "Severity"]

Severity = Literal["ok", "note", "warning", "error"]
"""`error` prevents something from working, `warning` degrades it, `note` is information."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding. Neither text repeats a value that may be a key.

    `area` is the subject, in lower case, in the plural where there may be several. `what_to_do` is a remedy for the
    reader, empty if nothing has to be done. `line` counts from 1; 0 is the file as a whole.
    """

    area: str
    severity: Severity
    what: str
    what_to_do: str = ""
    file: str = ""
    line: int = 0


class Health(msgspec.Struct, frozen=True):
    """All findings, grouped by area, in the order in which they should be read."""

    findings: tuple[Finding, ...]
