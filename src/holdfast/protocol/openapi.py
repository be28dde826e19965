"""The OpenAPI 3.1 document, made from the table of routes and the types themselves."""

import re
from functools import cache
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.protocol.problems import Problem
from holdfast.protocol.routes import ROUTES, Query, Route

__all__ = ["document"]

_PARAMETER = re.compile(r"\{(\w+)\}")
_JSON = "application/json"


@cache
def document() -> dict[str, Any]:
    types = [kind for route in ROUTES for kind in (route.request, route.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(repr, [*types, Problem]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.full_path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__, "description": "A coding agent that holds on."},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *map(_query_parameter, route.query)],
        "responses": _responses(route, by_type),
    }
    if route.request is not None:
        operation["requestBody"] = {
            "required": not route.request_is_optional,
            "content": {_JSON: {"schema": by_type[repr(route.request)]}},
        }
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameter(query: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": query.kind}
    if query.kind == "integer":
        schema["minimum"] = 0
    return {"name": query.name, "in": "query", "required": query.is_required, "schema": schema}


def _responses(route: Route, by_type: dict[str, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done."}
    if route.streams:
        done["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    elif route.is_page or route.media:
        done["content"] = {route.media or "text/html": {"schema": {"type": "string"}}}
    elif route.answer is not None:
        done["content"] = {_JSON: {"schema": by_type[repr(route.answer)]}}
    refused = {"description": "Refused.", "content": {_JSON: {"schema": by_type[repr(Problem)]}}}
    errors = {*route.errors, *((400, 413) if route.request is not None else ()), *((400,) if route.query else ())}
    return {str(route.status): done} | {str(status): refused for status in sorted(errors)}
