"""Base class of the built-in tools: name, description file, typed arguments."""

import inspect
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.model_requests import ToolSpec
from holdfast.domain.tools import ToolContext, ToolOutcome

__all__ = ["BaseTool", "metadata"]

A = TypeVar("A", bound=msgspec.Struct)

_WRONG_NAMES: Mapping[str, tuple[str, ...]] = {
    "file_path": ("path", "filepath", "file", "filename", "filePath", "absolute_path", "target_file"),
    "path": ("file_path", "directory", "dir", "dir_path", "directory_path", "folder"),
    "old_string": ("old_str", "oldString", "old_text", "search"),
    "new_string": ("new_str", "newString", "new_text", "replace"),
    "replace_all": ("replaceAll",),
    "content": ("contents", "text", "file_text"),
    "pattern": ("query", "regex", "glob", "glob_pattern"),
    "include": ("glob", "file_pattern", "include_pattern"),
    "literal_text": ("literal", "fixed_strings"),
    "url": ("uri",),
    "active_form": ("activeForm",),
}
"""Wrong argument names that models send, by the correct name."""
_ERROR_PATH = re.compile(r"at `\$([^`]*)`")
_STEP = re.compile(r"\.\w+|\[[^]]*\]")


class BaseTool(ABC, Generic[A]):
    """A tool whose arguments are a struct. Models receive its JSON schema, and an explanation if arguments are invalid.

    Common wrong names are accepted, and so are numbers and lists that are sent as text.
    """

    name: ClassVar[str]
    document: ClassVar[str] = ""
    """Name of the description file, if it differs from the tool's name."""
    is_parallel: ClassVar[bool] = False
    arguments: type[A]

    def __init__(self) -> None:
        self._schema, self._spec = _spec_of(type(self))

    @property
    def spec(self) -> ToolSpec:
        """Name, description and argument schema for models."""
        return self._spec

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        """Validate the arguments and execute the tool. Raises `ToolError`."""
        try:
            typed = msgspec.convert(_correct_arguments(arguments, self._schema), self.arguments, strict=False)
        except msgspec.ValidationError as error:
            raise ToolError(self._validation_message(str(error))) from error
        return await self.act(context, typed)

    @abstractmethod
    async def act(self, context: ToolContext, arguments: A) -> ToolOutcome:
        """Execute the tool with valid arguments."""

    def _validation_message(self, error: str) -> str:
        takes = _list_arguments(self.name, self._schema) + _hint(error, self._schema)
        return f"Wrong arguments for {self.name}: {error}. {takes} Correct them and call again."


def _list_arguments(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    names = [f"{field}{'' if field in required else '?'}" for field in schema["properties"]]
    return f"{name} takes: {', '.join(names)}." if names else f"{name} takes no arguments."


def _hint(error: str, schema: Mapping[str, Any]) -> str:
    """Return the valid values or fields at the position that a validation error names."""
    found = _ERROR_PATH.search(error)
    node, name = schema, ""
    for step in _STEP.findall(found[1] if found else ""):
        if step.startswith("["):
            node = node.get("items", {})
        else:
            name = step[1:]
            node = node.get("properties", {}).get(name, {})
    if "enum" in node:
        return f" {name} is one of: {', '.join(node['enum'])}."
    return f" {_list_arguments(f'Each of {name}', node)}" if name and "properties" in node else ""


@cache
def _spec_of(tool: type[BaseTool[Any]]) -> tuple[dict[str, Any], ToolSpec]:
    """Return schema and specification of a tool. They are the same in every workspace."""
    file = f"{tool.document or tool.name}.md"
    # The file is beside the class that defines the name; a subclass only extends that tool.
    named = next(kind for kind in tool.__mro__ if "name" in vars(kind))
    description = Path(inspect.getfile(named)).with_name(file).read_text("utf-8").strip()
    schema = _schema(tool.arguments)
    return schema, ToolSpec(tool.name, description, json.dumps(schema))


def metadata(**values: object) -> str:
    """Return metadata of a result for screens as JSON text. Values that are None are omitted."""
    return json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)


def _correct_arguments(arguments: Mapping[str, object], schema: Mapping[str, Any]) -> dict[str, object]:
    """Return the arguments with common mistakes corrected."""
    properties: dict[str, dict[str, Any]] = schema["properties"]
    given = {name: value for name, value in arguments.items() if value is not None or name not in properties}
    for name in properties:
        other = next((slip for slip in _WRONG_NAMES.get(name, ()) if slip in given and slip not in properties), None)
        if name not in given and other is not None:
            given[name] = given.pop(other)
    for name, value in given.items():
        given[name] = _correct_value(value, properties.get(name, {}))
    return given


def _correct_value(value: object, schema: Mapping[str, Any]) -> object:
    kind = schema.get("type")
    if kind in ("array", "object") and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    if kind == "array" and isinstance(value, list):
        items = schema.get("items", {})
        return [
            _correct_arguments(item, items) if isinstance(item, dict) and "properties" in items else item
            for item in value
        ]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schema without references, which not every provider supports."""
    _, components = msgspec.json.schema_components([struct], ref_template="{name}")
    return cast(dict[str, Any], _inline_references(components[struct.__name__], components))


def _inline_references(node: object, components: Mapping[str, Any]) -> object:
    if isinstance(node, list):
        return [_inline_references(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline_references(components[node["$ref"]], components)
    is_object = node.get("type") == "object"
    out = {key: _inline_references(value, components) for key, value in node.items() if key != "title" or not is_object}
    if is_object and out.get("description"):
        # The docstring of the struct is not meant for models.
        del out["description"]
    return out
