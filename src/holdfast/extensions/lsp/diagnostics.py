"""Diagnostics of language servers: stored by file, counted, and formatted for models. Pure.

A server publishes diagnostics (push) or returns them on request (pull). The two kinds are stored separately, because
neither replaces the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.extensions.lsp.lsp_types import Diagnostic

__all__ = ["DiagnosticStore", "FileDiagnostic", "format_counts", "format_diagnostics", "to_file_diagnostics"]

_MAX_FILES = 2_000
_MAX_PER_FILE = 500
_MAX_SHOWN = 10
_MAX_MESSAGE = 500
_SEVERITIES = {1: "error", 2: "warning", 3: "information", 4: "hint"}
_PLURALS = (("errors", 1), ("warnings", 2), ("others", 3))


class DiagnosticStore:
    """Diagnostics of one server, with limits on files and on entries per file."""

    def __init__(self) -> None:
        self._pushed: dict[str, tuple[Diagnostic, ...]] = {}
        self._pulled: dict[str, tuple[Diagnostic, ...]] = {}
        self.count = 0

    def replace(self, kind: Literal["pushed", "pulled"], uri: str, diagnostics: Sequence[Diagnostic]) -> None:
        """Replace the diagnostics of one kind for a file."""
        store = self._pushed if kind == "pushed" else self._pulled
        self.count -= len(store.pop(uri, ()))
        if diagnostics and len(store) < _MAX_FILES:
            store[uri] = tuple(diagnostics[:_MAX_PER_FILE])
            self.count += len(store[uri])

    def remove(self, uri: str) -> None:
        """Remove the diagnostics of a deleted file."""
        self.replace("pushed", uri, ())
        self.replace("pulled", uri, ())

    def clear(self) -> None:
        """Remove all diagnostics."""
        self._pushed.clear()
        self._pulled.clear()
        self.count = 0

    def get(self, uri: str) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of a file, without duplicates."""
        return tuple(dict.fromkeys((*self._pushed.get(uri, ()), *self._pulled.get(uri, ()))))

    def all(self) -> dict[str, tuple[Diagnostic, ...]]:
        """Return the diagnostics of all files."""
        return {uri: self.get(uri) for uri in (*self._pushed, *(self._pulled.keys() - self._pushed.keys()))}


class FileDiagnostic(msgspec.Struct, frozen=True):
    """One diagnostic as shown to models: the display path of the file, line and column from 1."""

    file: str
    line: int
    column: int
    severity: int
    message: str
    source: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}"
        return f"{_SEVERITIES[self.severity]} {place} {self.message} [{self.source}]"


def to_file_diagnostics(file: str, server: str, found: Iterable[tuple[Diagnostic, int]]) -> list[FileDiagnostic]:
    """Convert diagnostics of one file and server. Each is paired with its column in code points from 0."""
    converted: list[FileDiagnostic] = []
    for item, column in found:
        message = " ".join(item.message.split())
        message = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…"
        source = " ".join(dict.fromkeys(str(word) for word in (item.source or server, item.code) if word is not None))
        severity = item.severity if item.severity in _SEVERITIES else 1
        converted.append(FileDiagnostic(file, item.range.start.line + 1, column + 1, severity or 1, message, source))
    return converted


def format_counts(diagnostics: Sequence[FileDiagnostic]) -> str:
    """Return counts such as `2 errors, 1 warning`, or an empty string."""
    numbers = [(word, sum(_severity_class(item) == kind for item in diagnostics)) for word, kind in _PLURALS]
    return ", ".join(f"{number} {word if number != 1 else word[:-1]}" for word, number in numbers if number)


def format_diagnostics(blocks: Mapping[str, Sequence[FileDiagnostic]]) -> str:
    """Format each block in its tag, the most severe first and at most ten, followed by the counts."""
    lines: list[str] = []
    for tag, diagnostics in blocks.items():
        if diagnostics:
            ordered = sorted(diagnostics, key=lambda item: (item.severity, item.file, item.line, item.column))
            more = len(ordered) - _MAX_SHOWN
            rest = [f"({more} more)"] if more > 0 else []
            lines += [f"<{tag}>", *map(str, ordered[:_MAX_SHOWN]), *rest, f"</{tag}>"]
    counts = [f"{tag.partition('_')[0]}: {format_counts(findings)}" for tag, findings in blocks.items() if findings]
    return "\n".join([*lines, *([f"({'; '.join(counts)})"] if counts else [])])


def _severity_class(finding: FileDiagnostic) -> int:
    return min(finding.severity, 3)
