"""What a tool takes, as models are told it. Pure, but for a library that is loaded when the first list is looked at.

One schema that a provider does not understand has it refuse the whole request, with all tools of all servers. So each
is brought into a form that every provider takes, and one that is no schema at all is left out: its tool still has its
description.
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
    """An object with properties, no choice of several at its top, lists that say of what. What is too large to be sent
    is left out.
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
    """Some providers refuse a list that does not say what it is a list of."""
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
    """What is wrong with it; empty if it is a JSON Schema. Takes some milliseconds, the first time."""
    text = json.dumps(schema)
    return _fault_in(text) if len(text) <= _LARGEST else "it is too large"


@lru_cache(maxsize=256)
def _fault_in(text: str) -> str:
    """The same lists are read again and again."""
    # The library that speaks with servers brings it along.
    library = import_module("jsonschema")
    try:
        library.Draft202012Validator.check_schema(json.loads(text))
    except library.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        return f"it is no JSON Schema at {where or 'its top'}: {error.message[:200]}"
    except RecursionError:
        return "it is too deep"
    return ""
