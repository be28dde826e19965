"""Loading of one settings file: parse, validate, and collect line numbers and problems."""

import re
import tomllib
from typing import Any

import msgspec

from holdfast.atomic_files import FILES, FileUnreadable, Signature
from holdfast.config.line_numbers import MAX_DEPTH, KeyPath, TooDeep, json_duplicates, json_lines, toml_lines
from holdfast.config.locations import Form, SettingsSource
from holdfast.config.problems import FileProblem, format_key
from holdfast.config.validate import hides_denial, is_independent, validate_tree
from holdfast.domain.documents import Documents

__all__ = ["LoadedFile", "convert_mcp_json", "load", "parse"]


# `.mcp.json` is the file in which projects declare their MCP servers for any coding agent.

_TRANSPORTS = {"streamable-http": "http", "streamable_http": "http", "streamableHttp": "http", "local": "stdio"}
_FOREIGN_KEYS = frozenset(
    {"description", "alwaysAllow", "autoApprove", "trust", "icon", "gallery", "version", "$schema"}
)
"""Keys of other programs. They have no effect here and are not reported."""


def convert_mcp_json(tree: dict[str, Any], lines: dict[KeyPath, int]) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Convert the content of `.mcp.json` to settings. Line numbers are converted too."""
    servers = tree.get("mcpServers", {})
    if not isinstance(servers, dict):
        return {"mcp": servers}, _rename_paths(lines)
    return {"mcp": {name: _convert_server(server_entry) for name, server_entry in servers.items()}}, _rename_paths(
        lines
    )


def _convert_server(server_entry: object) -> object:
    if not isinstance(server_entry, dict):
        return server_entry
    server = {name: value for name, value in server_entry.items() if name not in _FOREIGN_KEYS}
    transport = server.get("type", "http" if "url" in server and "command" not in server else "stdio")
    server["type"] = _TRANSPORTS.get(transport, transport) if isinstance(transport, str) else transport
    return server


def _rename_paths(lines: dict[KeyPath, int]) -> dict[KeyPath, int]:
    return {("mcp", *path[1:]): line for path, line in lines.items() if path[:1] == ("mcpServers",)}


_TOML_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_JSON_POSITION = re.compile(r"\s*\(byte (\d+)\)$")


class LoadedFile(msgspec.Struct, frozen=True):
    """The content of a settings file. `data` is None if the file is missing, unreadable or not valid syntax."""

    seen: Signature = None
    data: bytes | None = None
    tree: dict[str, Any] = {}
    lines: dict[KeyPath, int] = {}
    problems: tuple[FileProblem, ...] = ()

    def __repr__(self) -> str:
        return f"LoadedFile({len(self.data or b'')} bytes, {len(self.problems)} problems)"

    @property
    def is_good(self) -> bool:
        """True if there is no error, apart from those that concern a single rule or hook."""
        return not any(problem.severity == "error" and not is_independent(problem.key) for problem in self.problems)


def load(source: SettingsSource, documents: Documents = FILES) -> LoadedFile:
    """Load a settings file. Never raises: errors become problems of the file."""
    # Taken before the file is read, so that a change in between is detected next time.
    before = documents.signature(source.path)
    try:
        data, seen = documents.read(source.path)
    except FileNotFoundError:
        if before is None:
            return LoadedFile()
        return LoadedFile(seen=before)
    except FileUnreadable as error:
        text = str(error).removeprefix(f"{source.path} ")
        return LoadedFile(seen=before, problems=(FileProblem("error", source.path, 0, "", text, source.form != "mcp"),))
    tree, lines, problem = parse(data, source.form, source.path)
    if problem is not None:
        # A file that cannot be parsed may contain a deny rule, unless the word does not occur in it.
        may_hide_deny = source.form != "mcp" and b"deny" in data.lower()
        return LoadedFile(seen=seen, problems=(msgspec.structs.replace(problem, hides_denial=may_hide_deny),))
    twice = _duplicate_problems(data, source) if source.form == "json" else ()
    if source.form == "mcp":
        tree, lines = convert_mcp_json(tree, lines)
    fitted = validate_tree(tree, source.path, lines)
    return LoadedFile(seen, data, fitted.tree, lines, (*twice, *fitted.problems))


def _duplicate_problems(data: bytes, source: SettingsSource) -> tuple[FileProblem, ...]:
    """Report duplicate keys: a JSON parser keeps only the last value."""
    text = "is set twice, and only the last value has an effect: join them."
    return tuple(
        FileProblem(
            "error" if hides_denial(path) else "warning", source.path, line, format_key(path), text, hides_denial(path)
        )
        for path, line in json_duplicates(data.decode("utf-8-sig"))
    )


def parse(data: bytes, form: Form, file: str) -> tuple[dict[str, Any], dict[KeyPath, int], FileProblem | None]:
    """Return the tree and the lines of its keys, or the first syntax error."""

    def failure(line: int, text: str) -> tuple[dict[str, Any], dict[KeyPath, int], FileProblem]:
        return {}, {}, FileProblem("error", file, line, "", text)

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return failure(data.count(b"\n", 0, error.start) + 1, "expected UTF-8, found other bytes.")
    try:
        if form == "toml":
            lines = toml_lines(text)
            return tomllib.loads(text), lines, None
        if not text.strip():
            return {}, {}, None
        lines = json_lines(text)
        return msgspec.json.decode(text, type=dict[str, Any]), lines, None
    except (TooDeep, RecursionError) as error:
        line = error.line if isinstance(error, TooDeep) else 0
        return failure(line, f"expected at most {MAX_DEPTH} levels, found more.")
    except msgspec.ValidationError:
        return failure(1, "expected an object, in braces.")
    except msgspec.DecodeError as error:
        return failure(*_json_error(str(error), text))
    except ValueError as error:
        return failure(*_toml_error(str(error), text))


def _toml_error(message: str, text: str) -> tuple[int, str]:
    found = _TOML_POSITION.search(message)
    what = _TOML_POSITION.sub("", message) if found else "a value that cannot be read"
    line = int(found[1]) if found and found[1] else (text.count("\n") + 1 if found else 0)
    return line, f"this is not TOML: {what[:1].lower()}{what[1:]}."


def _json_error(message: str, text: str) -> tuple[int, str]:
    found = _JSON_POSITION.search(message)
    what = _JSON_POSITION.sub("", message).removeprefix("JSON is malformed: ")
    if found is None:
        return text.count("\n") + 1, "expected JSON, found the end of the file."
    place = int(found[1])
    line = text.encode("utf-8", "surrogatepass")[:place].count(b"\n") + 1
    return line, f"this is not JSON: {what}."
