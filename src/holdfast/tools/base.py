"""What every tool here has in common: a name, a description beside the code, typed arguments."""

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
from holdfast.domain.models import ToolSpec
from holdfast.domain.tools import ToolContext, ToolOutcome

__all__ = ["BaseTool", "metadata"]

A = TypeVar("A", bound=msgspec.Struct)

_SLIPS: Mapping[str, tuple[str, ...]] = {
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
"""Names that models use for ours."""
_WHERE = re.compile(r"at `\$([^`]*)`")
_STEP = re.compile(r"\.\w+|\[[^]]*\]")


class BaseTool(ABC, Generic[A]):
    """A tool whose arguments are a struct: its JSON schema is what the model sees, and wrong ones are explained.

    Names that models mix up are understood, and so are numbers and lists that come as text.
    """

    name: ClassVar[str]
    document: ClassVar[str] = ""
    """The name of the description's file, if it is another one than the tool's."""
    is_parallel: ClassVar[bool] = False
    arguments: type[A]

    def __init__(self) -> None:
        self._schema, self._spec = _told(type(self))

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        try:
            typed = msgspec.convert(_mended(arguments, self._schema), self.arguments, strict=False)
        except msgspec.ValidationError as error:
            raise ToolError(self._explained(str(error))) from error
        return await self.act(context, typed)

    @abstractmethod
    async def act(self, context: ToolContext, arguments: A) -> ToolOutcome: ...

    def _explained(self, error: str) -> str:
        takes = _taken(self.name, self._schema) + _hint(error, self._schema)
        return f"Wrong arguments for {self.name}: {error}. {takes} Correct them and call again."


def _taken(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    names = [f"{field}{'' if field in required else '?'}" for field in schema["properties"]]
    return f"{name} takes: {', '.join(names)}." if names else f"{name} takes no arguments."


def _hint(error: str, schema: Mapping[str, Any]) -> str:
    """What fits at the place inside that an error names: the values there are, or the fields."""
    found = _WHERE.search(error)
    node, name = schema, ""
    for step in _STEP.findall(found[1] if found else ""):
        if step.startswith("["):
            node = node.get("items", {})
        else:
            name = step[1:]
            node = node.get("properties", {}).get(name, {})
    if "enum" in node:
        return f" {name} is one of: {', '.join(node['enum'])}."
    return f" {_taken(f'Each of {name}', node)}" if name and "properties" in node else ""


@cache
def _told(tool: type[BaseTool[Any]]) -> tuple[dict[str, Any], ToolSpec]:
    """What models are told of a tool: the same in every workspace."""
    file = f"{tool.document or tool.name}.md"
    # Beside the class that has the name: another may only add something to it.
    named = next(kind for kind in tool.__mro__ if "name" in vars(kind))
    description = Path(inspect.getfile(named)).with_name(file).read_text("utf-8").strip()
    schema = _schema(tool.arguments)
    return schema, ToolSpec(tool.name, description, json.dumps(schema))


def metadata(**values: object) -> str:
    """What screens draw from, as JSON text. None is left out."""
    return json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)


def _mended(arguments: Mapping[str, object], schema: Mapping[str, Any]) -> dict[str, object]:
    """The arguments with common slips undone."""
    properties: dict[str, dict[str, Any]] = schema["properties"]
    given = {name: value for name, value in arguments.items() if value is not None or name not in properties}
    for name in properties:
        other = next((slip for slip in _SLIPS.get(name, ()) if slip in given and slip not in properties), None)
        if name not in given and other is not None:
            given[name] = given.pop(other)
    for name, value in given.items():
        given[name] = _mended_value(value, properties.get(name, {}))
    return given


def _mended_value(value: object, schema: Mapping[str, Any]) -> object:
    kind = schema.get("type")
    if kind in ("array", "object") and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    if kind == "array" and isinstance(value, list):
        items = schema.get("items", {})
        return [_mended(item, items) if isinstance(item, dict) and "properties" in items else item for item in value]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """One schema without references, which not every provider follows."""
    _, components = msgspec.json.schema_components([struct], ref_template="{name}")
    return cast(dict[str, Any], _inlined(components[struct.__name__], components))


def _inlined(node: object, components: Mapping[str, Any]) -> object:
    if isinstance(node, list):
        return [_inlined(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(components[node["$ref"]], components)
    is_object = node.get("type") == "object"
    out = {key: _inlined(value, components) for key, value in node.items() if key != "title" or not is_object}
    if is_object and out.get("description"):
        # The docstring of the struct is for us.
        del out["description"]
    return out
