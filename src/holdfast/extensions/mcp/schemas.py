"""Input schemas of MCP tools, adapted for model providers. Pure, except for a library that is imported on first use.

A provider that does not understand one schema rejects the whole request, with all tools of all servers. Therefore each
schema is converted to a form that all providers accept. An invalid schema is dropped; the tool keeps its description.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

__all__ = ["fault_in", "shaped"]

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
