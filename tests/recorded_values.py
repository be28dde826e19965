"""Recorded values: whole results of many calls, compared with a file beside the test.

A mistake in any field, header, order or text shows as a difference, without an assertion for each of them. After an
intended change remove the file and run the test: it writes the file anew and fails once, so that the difference to the
old one is read before it is committed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["assert_recorded", "brief", "plain"]


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Convert to plain JSON values; a struct gets the name of its type, because several have the same fields."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return {type(value).__name__: brief(fields)}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else repr(value)


def brief(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out the fields that are empty."""
    return {name: value for name, value in fields.items() if value not in ("", None, [], {}) and value is not False}


def assert_recorded(file: Path, found: Sequence[object], names: dict[str, str]) -> None:
    """Compare records with those of the file. `names` replaces texts that differ from run to run."""
    text = _lines(plain(found))
    for changing, name in names.items():
        text = text.replace(changing, name)
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n")
        raise AssertionError(f"{file.name} was written: read it, and commit it if it is right")
    assert json.loads(text) == json.loads(file.read_text())


def _lines(records: Sequence[dict[str, Any]]) -> str:
    """Return the records as JSON with one line for each field, so that differences are short."""
    shown = []
    for record in records:
        fields = [f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in record.items()]
        shown.append("{" + ",\n  ".join(fields) + "}")
    return "[" + ",\n ".join(shown) + "]"
