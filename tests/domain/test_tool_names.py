"""The tool names listed for the settings, compared with the existing tools."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast.extensions
import holdfast.tools
from holdfast.domain.tools import TOOLS, TOOLS_WITHOUT_REQUESTS, canonical_tool_name, is_known_tool, suggest
from holdfast.tools.base import BaseTool


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def test_every_tool_is_listed_and_no_other() -> None:
    for package in (holdfast.tools, holdfast.extensions):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    kinds = [kind for kind in _below(BaseTool) if kind.__module__.startswith("holdfast.")]
    names = {kind.name for kind in kinds if isinstance(getattr(kind, "name", None), str)}
    assert names == set(TOOLS)
    assert set(TOOLS) >= TOOLS_WITHOUT_REQUESTS


@pytest.mark.parametrize(
    "name", ["bash", "Bash", "mcp_a_b", "mcp__a__b", "mcp__a", "mcp_a_*", "*", "l*", "NotebookEdit"]
)
def test_known_tool_names_are_accepted(name: str) -> None:
    assert is_known_tool(name)


@pytest.mark.parametrize("name", ["bahs", "", "mcp", "mcp_", "mcp_a", "b sh", "x*"])
def test_unknown_tool_names_are_reported(name: str) -> None:
    assert not is_known_tool(name)


def test_similar_tool_names_are_suggested() -> None:
    assert suggest("bahs") == "; did you mean bash?"
    assert suggest("x" * 100) == suggest("qqqqq") == "."
    assert canonical_tool_name("VIEW") == "view"
