"""What every tool here has in common: a name, a description beside the code, typed arguments."""

import json
from abc import ABC, abstractmethod
from importlib import resources
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, cast

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.models import ToolSpec
from holdfast.domain.tools import ToolContext, ToolOutcome

__all__ = ["BaseTool", "inside"]

A = TypeVar("A", bound=msgspec.Struct)


class BaseTool(ABC, Generic[A]):
    """A tool whose arguments are a struct: its JSON schema is what the model sees, and wrong ones are explained."""

    name: ClassVar[str]
    is_parallel: ClassVar[bool] = False
    arguments: type[A]

    def __init__(self) -> None:
        description = resources.files("holdfast.tools").joinpath(f"{self.name}.md").read_text("utf-8").strip()
        self._spec = ToolSpec(self.name, description, json.dumps(_schema(self.arguments)))

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        try:
            typed = msgspec.convert(arguments, self.arguments)
        except msgspec.ValidationError as error:
            raise ToolError(f"Wrong arguments for {self.name}: {error}. Correct them and call again.") from error
        return await self.act(context, typed)

    @abstractmethod
    async def act(self, context: ToolContext, arguments: A) -> ToolOutcome: ...


def inside(context: ToolContext, path: str) -> Path:
    """The real place of a path, which must lie in the workspace: links are followed before it is judged."""
    root = Path(context.workspace_path).resolve()
    place = (root / path).resolve()
    if place != root and root not in place.parents:
        raise ToolError(f"{path} is outside of the workspace {root}. Use a path inside it.")
    return place


def _schema(struct: type[msgspec.Struct]) -> dict[str, object]:
    _, components = msgspec.json.schema_components([struct])
    return cast(dict[str, object], components[struct.__name__])
