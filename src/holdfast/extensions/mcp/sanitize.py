"""Sanitizes the lists that MCP servers return.

The library rejects a whole list if one entry is invalid. Here the invalid entry, or the invalid part of it, is removed,
and the other entries remain usable.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from holdfast.extensions.mcp.mcp_types import LISTS, ListName

__all__ = ["fault_in", "mended", "shaped"]


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


# Input schemas of MCP tools, adapted for model providers. Pure, except for a library that is imported on first use.

_LARGEST = 64 * 1024
_DEEPEST = 64
_UNWELCOME = ("$schema", "$id", "anyOf", "oneOf", "allOf")


def shaped(given: object) -> dict[str, Any]:
    """Return an object schema with properties, without alternatives at the top level, and with `items` for each array.
    A schema that is too large is replaced by an empty one.
    """
    schema: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    for name in _UNWELCOME:
        schema.pop(name, None)
    schema["type"] = "object"
    if not isinstance(schema.get("properties"), dict):
        schema["properties"] = {}
    schema = _filled(schema, _DEEPEST)
    return schema if len(json.dumps(schema, ensure_ascii=False)) <= _LARGEST else {"type": "object", "properties": {}}


def _filled(value: Any, depth: int) -> Any:  # noqa: ANN401 - any JSON
    """Add `items` to arrays without it, because some providers reject such arrays."""
    if depth == 0:
        return {}
    if isinstance(value, list):
        return [_filled(item, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    filled = {name: _filled(item, depth - 1) for name, item in value.items()}
    if filled.get("type") == "array" and "items" not in filled and "prefixItems" not in filled:
        filled["items"] = {}
    return filled


def fault_in(schema: Mapping[str, Any]) -> str:
    """Return the error in a schema, or an empty string if it is valid. The first call takes some milliseconds."""
    text = json.dumps(schema)
    return _fault_in(text) if len(text) <= _LARGEST else "it is too large"


@lru_cache(maxsize=256)
def _fault_in(text: str) -> str:
    """Cached, because the same lists are validated repeatedly."""
    # jsonschema is a dependency of the `mcp` package.
    library = import_module("jsonschema")
    try:
        library.Draft202012Validator.check_schema(json.loads(text))
    except library.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        return f"it is no JSON Schema at {where or 'its top'}: {error.message[:200]}"
    except RecursionError:
        return "it is too deep"
    return ""
