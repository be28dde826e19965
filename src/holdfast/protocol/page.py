"""The OpenAPI document as an HTML page. It loads nothing: no script, no image, and its style is inline."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.protocol.openapi import document

__all__ = ["page", "policy"]

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "h2{font:600 1rem ui-monospace,monospace;margin:0;display:inline}"
    "details{border-top:1px solid #8884;padding:.6rem 0}summary{cursor:pointer}"
    "pre{overflow:auto;background:#8881;padding:.6rem;font-size:.85rem}"
    "td,th{text-align:left;padding:.1rem 1rem .1rem 0;font-weight:normal}"
    ":root{color-scheme:light dark}"
)


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
        _operation(path, method, operation)
        for path, methods in whole["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f"<details id='{_escaped(name)}'><summary><h2>{_escaped(name)}</h2></summary>{_json(schema)}</details>"
        for name, schema in sorted(whole["components"]["schemas"].items())
    ]
    title = f"{whole['info']['title']} {whole['info']['version']}"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{_escaped(title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{_escaped(title)}</h1>"
        f"<p>The same as <a href='../openapi.json'>openapi.json</a>.</p>{''.join(routes)}"
        f"<h1>Types</h1>{''.join(schemas)}</body></html>\n"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [
        f"<tr><td>{_escaped(item['name'])}</td><td>{_escaped(item['in'])}</td>"
        f"<td>{_escaped(item['schema']['type'])}</td><td>{'required' if item['required'] else ''}</td></tr>"
        for item in operation["parameters"]
    ]
    asked = operation.get("requestBody")
    parts = [f"<table>{''.join(rows)}</table>" if rows else ""]
    parts.append(f"<p>Takes</p>{_content(asked)}" if asked else "")
    parts += [
        f"<p>{_escaped(status)} {_escaped(answer['description'])}</p>{_content(answer)}"
        for status, answer in operation["responses"].items()
    ]
    return (
        f"<details><summary><h2>{_escaped(method.upper())} {_escaped(path)}</h2> "
        f"{_escaped(operation['summary'])}</summary>{''.join(parts)}</details>"
    )


def _content(holder: dict[str, Any]) -> str:
    return "".join(
        f"<p>{_escaped(kind)}</p>{_json(item['schema'])}" for kind, item in holder.get("content", {}).items()
    )


def _json(value: object) -> str:
    return f"<pre>{_escaped(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())}</pre>"


def _escaped(text: str) -> str:
    for plain, named in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(plain, named)
    return text
