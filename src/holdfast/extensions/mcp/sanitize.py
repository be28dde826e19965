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

__all__ = ["provider_schema", "sanitize_lists", "schema_error"]


_Entry = dict[str, Any]


def sanitize_lists(result: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever a server answers
    """Sanitize the list in a result in place, if there is one. Returns a complaint for each omission."""
    omissions: list[str] = []
    for list_name in LISTS:
        if isinstance(result, dict) and isinstance(entries := result.get(list_name), list):
            result[list_name] = list(_valid_entries(list_name, entries, omissions.append))
    return tuple(omissions)


def _valid_entries(list_name: ListName, entries: list[Any], report: Callable[[str], None]) -> Iterator[_Entry]:
    for number, entry in enumerate(entries, 1):
        name = entry.get("uri" if list_name == "resources" else "name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            report(f"number {number} of its {list_name} has no name, and is left out")
        elif list_name == "tools":
            if _requires_task(entry):
                report(f"{name} can only be run as a task, which is not supported, and is left out")
            else:
                yield _tool(entry, report)
        elif list_name == "prompts":
            yield {**_texts(entry, "name", "title", "description"), "arguments": list(_arguments(entry))}
        else:
            # The protocol requires a name beside the URI; some servers omit it.
            yield {"name": name, **_texts(entry, "uri", "name", "title", "description", "mimeType")}


def _requires_task(entry: _Entry) -> bool:
    """Return whether the tool accepts only task-augmented calls, which are not supported: plain calls would fail."""
    execution = entry.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def _tool(entry: _Entry, report: Callable[[str], None]) -> _Entry:
    tool: _Entry = _texts(entry, "name", "title", "description")
    schema = entry.get("inputSchema")
    if not _is_object_schema(schema):
        report(f"{entry['name']} has no input schema")
        schema = {"type": "object"}
    hints = entry.get("annotations")
    is_read_only = isinstance(hints, dict) and hints.get("readOnlyHint") is True
    return {**tool, "inputSchema": schema} | ({"annotations": {"readOnlyHint": True}} if is_read_only else {})


def _is_object_schema(schema: Any) -> bool:  # noqa: ANN401 - whatever a server answers
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


# Input schemas. The validator is imported on first use, because it is slow to import.

_MAX_SCHEMA = 64 * 1024
_MAX_DEPTH = 64
_REMOVED_KEYS = ("$schema", "$id", "anyOf", "oneOf", "allOf")


def provider_schema(declared: object) -> dict[str, Any]:
    """Return an object schema with properties, without alternatives at the top level, and with `items` for each array.
    A schema that is too large is replaced by an empty one.
    """
    schema: dict[str, Any] = dict(declared) if isinstance(declared, Mapping) else {}
    for name in _REMOVED_KEYS:
        schema.pop(name, None)
    schema["type"] = "object"
    if not isinstance(schema.get("properties"), dict):
        schema["properties"] = {}
    schema = _add_items(schema, _MAX_DEPTH)
    return (
        schema if len(json.dumps(schema, ensure_ascii=False)) <= _MAX_SCHEMA else {"type": "object", "properties": {}}
    )


def _add_items(value: Any, depth: int) -> Any:  # noqa: ANN401 - any JSON
    """Add `items` to arrays without it, because some providers reject such arrays."""
    if depth == 0:
        return {}
    if isinstance(value, list):
        return [_add_items(item, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    filled = {name: _add_items(item, depth - 1) for name, item in value.items()}
    if filled.get("type") == "array" and "items" not in filled and "prefixItems" not in filled:
        filled["items"] = {}
    return filled


def schema_error(schema: Mapping[str, Any]) -> str:
    """Return the error in a schema, or an empty string if it is valid. The first call takes some milliseconds."""
    text = json.dumps(schema)
    return _schema_error(text) if len(text) <= _MAX_SCHEMA else "it is too large"


@lru_cache(maxsize=256)
def _schema_error(text: str) -> str:
    """Cached, because the same lists are validated repeatedly."""
    # jsonschema is a dependency of the `mcp` package.
    library = import_module("jsonschema")
    try:
        library.Draft202012Validator.check_schema(json.loads(text))
    except library.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        return f"it is not JSON Schema at {where or 'its top'}: {error.message[:200]}"
    except RecursionError:
        return "it is too deep"
    return ""
