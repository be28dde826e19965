"""Conversion of tool calls to the protocol: kinds, titles, locations and diffs. Pure.

All values are JSON in the spelling of the protocol.
"""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.messages import ToolCall, ToolResult
from holdfast.domain.sessions import Todo

__all__ = [
    "Json",
    "call_locations",
    "call_title",
    "file_diffs",
    "parse_object",
    "plan_update",
    "result_update",
    "text_block",
    "tool_kind",
]

Json: TypeAlias = dict[str, Any]

_KINDS = {
    "view": "read",
    "ls": "read",
    "logs": "read",
    "job_output": "read",
    "write": "edit",
    "edit": "edit",
    "multiedit": "edit",
    "lsp_rename": "edit",
    "glob": "search",
    "grep": "search",
    "bash": "execute",
    "job_kill": "execute",
    "fetch": "fetch",
    "download": "fetch",
    "agentic_fetch": "fetch",
    "web_fetch": "fetch",
    "agent": "think",
    "todos": "think",
}
_MAIN_ARGUMENTS = ("command", "file_path", "pattern", "url", "path", "prompt", "query", "symbol", "shell_id")
_MAX_TITLE = 120
_MAX_TEXT = 32_000


def tool_kind(tool: str) -> str:
    """Return the protocol's tool kind, which determines the icon in editors."""
    return _KINDS.get(tool, "search" if tool.startswith("lsp_") else "other")


def parse_object(text: str) -> Json:
    """Parse a JSON object. Incomplete input, as in a call that is still streamed, returns an empty one."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def call_title(tool: str, arguments: Mapping[str, Any], directory: str) -> str:
    """Return a one-line title with the tool and its main argument."""
    for key in _MAIN_ARGUMENTS:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            first, _, rest = value.strip().partition("\n")
            shown = first.removeprefix(directory.rstrip("/") + "/") if directory else first
            if len(shown) > _MAX_TITLE or rest.strip():
                shown = shown[:_MAX_TITLE] + " …"
            return shown if tool == "bash" else f"{tool} {shown}"
    return tool


def call_locations(arguments: Mapping[str, Any], directory: str) -> list[Json]:
    """Return the location of a call, for editors that follow along."""
    path = arguments.get("file_path") or arguments.get("path")
    if not isinstance(path, str) or not path or path.startswith("~"):
        return []
    place: Json = {"path": posixpath.normpath(posixpath.join(directory, path))}
    line = arguments.get("offset")
    if isinstance(line, int) and not isinstance(line, bool) and line > 0:
        place["line"] = line
    return [place]


def file_diffs(arguments: Mapping[str, Any], metadata: Mapping[str, Any], directory: str) -> list[Json]:
    """Return the diffs of a file change, from the result or the arguments of a tool."""
    locations = call_locations(arguments or metadata, directory)
    if not locations:
        return []
    path = locations[0]["path"]
    old, new = metadata.get("old_content"), metadata.get("new_content")
    if isinstance(new, str):
        return [_diff(path, old if isinstance(old, str) and old else None, new)]
    if isinstance(content := arguments.get("content"), str):
        return [_diff(path, None, content)]
    pieces = arguments["edits"] if isinstance(arguments.get("edits"), list) else [arguments]
    return [
        _diff(path, str(piece.get("old_string") or "") or None, piece["new_string"])
        for piece in pieces
        if isinstance(piece, dict) and isinstance(piece.get("new_string"), str)
    ]


def _diff(path: str, old: str | None, new: str) -> Json:
    return {"type": "diff", "path": path, "newText": new} | ({} if old is None else {"oldText": old})


def text_block(text: str) -> Json:
    """Return a text content block."""
    return {"type": "content", "content": {"type": "text", "text": text}}


def result_update(call: ToolCall, result: ToolResult, directory: str) -> Json:
    """Return the final update of a call, with its diffs or its output."""
    arguments = parse_object(call.input)
    metadata = parse_object(result.metadata)
    content = (
        []
        if result.is_error
        else file_diffs(arguments, metadata, directory)
        if tool_kind(result.name) == "edit"
        else []
    )
    if result.data and result.mime_type.startswith("image/"):
        content.append(
            {"type": "content", "content": {"type": "image", "data": result.data, "mimeType": result.mime_type}}
        )
    if result.content and not any(item["type"] == "diff" for item in content):
        content.append(text_block(_shorten(_output_text(result, metadata))))
    update: Json = {"status": "failed" if result.is_error else "completed"}
    return update | {"content": content, "rawOutput": {"content": _shorten(result.content)}}


def _output_text(result: ToolResult, metadata: Mapping[str, Any]) -> str:
    output = metadata.get("output")
    text = output if result.name == "bash" and isinstance(output, str) and output else result.content
    return f"```\n{text}\n```" if tool_kind(result.name) in ("execute", "search", "read") else text


def _shorten(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    half = _MAX_TEXT // 2
    return f"{text[:half]}\n\n… {len(text) - 2 * half} characters are left out …\n\n{text[-half:]}"


def plan_update(todos: Sequence[Todo]) -> Json:
    """Return the plan update for a list of todos."""
    entries = [{"content": todo.content, "priority": "medium", "status": todo.status} for todo in todos]
    return {"sessionUpdate": "plan", "entries": entries}
