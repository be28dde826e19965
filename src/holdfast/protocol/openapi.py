"""The OpenAPI 3.1 document, generated from the route table and the types, also as an HTML page.

The page loads nothing: no script, no image, and its style is inline.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.protocol.error_status import Problem
from holdfast.protocol.routes import ROUTES, Query, Route

__all__ = ["document", "page", "policy"]


_PARAMETER = re.compile(r"\{(\w+)\}")
_JSON = "application/json"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h2{font:600 1rem ui-monospace,monospace;margin:0;display:inline}"
    "details{border-top:1px solid #8884;padding:.6rem 0}summary{cursor:pointer}"
    "pre{overflow:auto;background:#8881;padding:.6rem;font-size:.85rem}"
    "td,th{text-align:left;padding:.1rem 1rem .1rem 0;font-weight:normal}"
    ":root{color-scheme:light dark}"
)


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document of all routes."""
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


@cache
def policy() -> str:
    """Return the content security policy of the page: only its own style, identified by its hash."""
    digest = b64encode(sha256(_STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def page() -> str:
    """Return the HTML page."""
    whole = document()
    routes = [
        _operation_html(path, method, operation)
        for path, methods in whole["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f"<details id='{_escape_html(name)}'><summary><h2>{_escape_html(name)}</h2></summary>{_json(schema)}</details>"
        for name, schema in sorted(whole["components"]["schemas"].items())
    ]
    title = f"{whole['info']['title']} {whole['info']['version']}"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{_escape_html(title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{_escape_html(title)}</h1>"
        f"<p>The same as <a href='../openapi.json'>openapi.json</a>.</p>{''.join(routes)}"
        f"<h1>Types</h1>{''.join(schemas)}</body></html>\n"
    )


def _operation_html(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [
        f"<tr><td>{_escape_html(item['name'])}</td><td>{_escape_html(item['in'])}</td>"
        f"<td>{_escape_html(item['schema']['type'])}</td><td>{'required' if item['required'] else ''}</td></tr>"
        for item in operation["parameters"]
    ]
    asked = operation.get("requestBody")
    parts = [f"<table>{''.join(rows)}</table>" if rows else ""]
    parts.append(f"<p>Takes</p>{_content(asked)}" if asked else "")
    parts += [
        f"<p>{_escape_html(status)} {_escape_html(answer['description'])}</p>{_content(answer)}"
        for status, answer in operation["responses"].items()
    ]
    return (
        f"<details><summary><h2>{_escape_html(method.upper())} {_escape_html(path)}</h2> "
        f"{_escape_html(operation['summary'])}</summary>{''.join(parts)}</details>"
    )


def _content(holder: dict[str, Any]) -> str:
    return "".join(
        f"<p>{_escape_html(kind)}</p>{_json(item['schema'])}" for kind, item in holder.get("content", {}).items()
    )


def _json(value: object) -> str:
    return f"<pre>{_escape_html(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())}</pre>"


def _escape_html(text: str) -> str:
    for plain, named in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(plain, named)
    return text
