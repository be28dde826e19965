"""Sanitizes the lists that MCP servers return. Pure.

The library rejects a whole list if one entry is invalid. Here the invalid entry, or the invalid part of it, is removed,
and the other entries remain usable.
"""

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.extensions.mcp.shapes import LISTS, ListName

__all__ = ["mended"]

_Entry = dict[str, Any]


def mended(result: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever a server answers
    """Sanitize the list in a result in place, if there is one. Returns a complaint for each omission."""
    complaints: list[str] = []
    for what in LISTS:
        if isinstance(result, dict) and isinstance(entries := result.get(what), list):
            result[what] = list(_sound(what, entries, complaints.append))
    return tuple(complaints)


def _sound(what: ListName, entries: list[Any], complain: Callable[[str], None]) -> Iterator[_Entry]:
    for number, entry in enumerate(entries, 1):
        name = entry.get("uri" if what == "resources" else "name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            complain(f"number {number} of its {what} has no name, and is left out")
        elif what == "tools":
            if _is_a_task(entry):
                complain(f"{name} can only be run as a task, which is not done here, and is left out")
            else:
                yield _tool(entry, complain)
        elif what == "prompts":
            yield {**_texts(entry, "name", "title", "description"), "arguments": list(_arguments(entry))}
        else:
            # The protocol requires a name beside the URI; some servers omit it.
            yield {"name": name, **_texts(entry, "uri", "name", "title", "description", "mimeType")}


def _is_a_task(entry: _Entry) -> bool:
    """Return whether the tool accepts only task-augmented calls, which are not supported: plain calls would fail."""
    execution = entry.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def _tool(entry: _Entry, complain: Callable[[str], None]) -> _Entry:
    tool: _Entry = _texts(entry, "name", "title", "description")
    schema = entry.get("inputSchema")
    if not _is_of_an_object(schema):
        complain(f"it does not say what {entry['name']} takes")
        schema = {"type": "object"}
    hints = entry.get("annotations")
    only_reads = isinstance(hints, dict) and hints.get("readOnlyHint") is True
    return {**tool, "inputSchema": schema} | ({"annotations": {"readOnlyHint": True}} if only_reads else {})


def _is_of_an_object(schema: Any) -> bool:  # noqa: ANN401 - whatever a server answers
    if not isinstance(schema, dict):
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return (
        schema.get("type") == "object"
        and isinstance(schema.get("$schema", ""), str)
        and isinstance(properties, dict)
        and all(isinstance(inside, dict | bool) for inside in properties.values())
        and isinstance(required, list)
        and all(isinstance(name, str) for name in required)
    )


def _arguments(entry: _Entry) -> Iterator[_Entry]:
    given = entry.get("arguments")
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            yield {**_texts(item, "name", "title", "description"), "required": item.get("required") is True}


def _texts(entry: _Entry, *names: str) -> _Entry:
    return {name: entry[name] for name in names if isinstance(entry.get(name), str)}
