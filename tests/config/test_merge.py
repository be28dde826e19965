"""Several files become one, and nobody forgets who said what."""

from typing import Any

from holdfast.config.lines import KeyPath
from holdfast.config.merge import Layer, merge


def layer(name: str, tree: dict[str, Any], lines: dict[KeyPath, int] | None = None) -> Layer:
    return Layer(tree, name, lines or {}, may_run=True)


def test_objects_merge_and_scalars_are_replaced() -> None:
    lower = layer("low", {"options": {"debug": True, "max_steps": 1, "tui": {"a": 1}}})
    upper = layer("high", {"options": {"max_steps": 2, "tui": {"b": 2}}})
    tree, origins = merge([lower, upper])
    assert tree == {"options": {"debug": True, "max_steps": 2, "tui": {"a": 1, "b": 2}}}
    assert origins["options", "debug"].file == "low"
    assert origins["options", "max_steps"].file == "high"
    assert lower.tree["options"]["max_steps"] == 1, "what was read stays as it is"


def test_collections_are_joined_without_duplicates() -> None:
    low = layer("low", {"permissions": {"deny": ["a", "b", "a"]}}, {("permissions", "deny", 1): 7})
    high = layer("high", {"permissions": {"deny": ["b", "c"]}}, {("permissions", "deny", 1): 9})
    tree, origins = merge([low, high])
    assert tree["permissions"]["deny"] == ["a", "b", "c"]
    assert str(origins["permissions", "deny", 1]) == "low:7"
    assert str(origins["permissions", "deny", 2]) == "high:9"


def test_hooks_are_joined_and_arguments_are_replaced() -> None:
    low = layer("low", {"hooks": {"Stop": [{"command": "a"}]}, "mcp": {"m": {"args": ["-e", "1", "-e", "2"]}}})
    high = layer("high", {"hooks": {"Stop": [{"command": "a"}, {"command": "b"}]}, "mcp": {"m": {"args": ["x"]}}})
    tree, _ = merge([low])
    assert tree["mcp"]["m"]["args"] == ["-e", "1", "-e", "2"], "the number of arguments means something"
    tree, origins = merge([low, high])
    assert tree["hooks"]["Stop"] == [{"command": "a"}, {"command": "b"}]
    assert tree["mcp"]["m"]["args"] == ["x"]
    assert ("mcp", "m", "args", 1) not in origins


def test_models_are_merged_by_their_ids() -> None:
    low = layer("low", {"providers": {"p": {"models": [{"id": "a", "name": "A"}, {"id": "b"}]}}})
    high = layer("high", {"providers": {"p": {"models": [{"id": "b", "context_window": 5}, {"id": "c"}]}}})
    tree, origins = merge([low, high])
    assert tree["providers"]["p"]["models"] == [{"id": "a", "name": "A"}, {"id": "b", "context_window": 5}, {"id": "c"}]
    assert origins["providers", "p", "models", 1, "context_window"].file == "high"
    assert origins["providers", "p", "models", 0, "name"].file == "low"


def test_an_empty_table_has_an_origin_too() -> None:
    tree, origins = merge([layer("low", {"mcp": {}}), layer("high", {"mcp": {"m": {"command": "x"}}})])
    assert tree == {"mcp": {"m": {"command": "x"}}}
    assert set(origins) == {("mcp", "m", "command")}
