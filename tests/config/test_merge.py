"""Merging of settings files, with the origin of every value."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.config import merge as module
from holdfast.config.line_numbers import KeyPath
from holdfast.config.merge import Layer, merge
from planting import CLAUSES, assert_every_clause_decides


def layer(name: str, tree: dict[str, Any], lines: dict[KeyPath, int] | None = None) -> Layer:
    return Layer(tree, name, lines or {}, may_run=True)


def test_objects_merge_and_scalars_are_replaced() -> None:
    lower = layer("low", {"options": {"debug": True, "max_steps": 1, "tui": {"a": 1}}})
    upper = layer("high", {"options": {"max_steps": 2, "tui": {"b": 2}}})
    tree, origins = merge([lower, upper])
    assert tree == {"options": {"debug": True, "max_steps": 2, "tui": {"a": 1, "b": 2}}}
    assert origins["options", "debug"].file == "low"
    assert origins["options", "max_steps"].file == "high"
    assert lower.tree["options"]["max_steps"] == 1, "the input is not changed"


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


JOINED = [
    ("options", "context_paths"),
    ("options", "global_context_paths"),
    ("options", "skills_paths"),
    ("options", "disabled_tools"),
    ("options", "disabled_skills"),
    ("permissions", "allowed_tools"),
    ("permissions", "allow"),
    ("permissions", "ask"),
    ("permissions", "deny"),
    ("mcp", "m", "disabled_tools"),
    ("mcp", "m", "enabled_tools"),
    ("lsp", "l", "filetypes"),
    ("lsp", "l", "root_markers"),
    ("hooks", "Stop"),
]
REPLACED = [
    ("mcp", "m", "args"),
    ("lsp", "l", "args"),
    ("options", "attribution"),
    ("permissions", "mode"),
    ("hooks", "Stop", "timeouts"),
    ("hooks",),
    ("tools", "allow"),
    ("providers", "models"),
    ("providers", "p", "headers"),
    ("other", "p", "models"),
    ("providers", "p", "extra", "models"),
    ("mcp", "m", "env", "disabled_tools"),
]


def tree_with(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def value_at(tree: dict[str, Any], path: KeyPath) -> Any:  # noqa: ANN401 - any value
    value: Any = tree
    for name in path:
        value = value[name]
    return value


def check_lists() -> None:
    """Check which lists are concatenated and which are replaced."""
    for path in [*JOINED, *REPLACED]:
        first, second = {"id": "x", "n": 1}, {"n": 2, "id": "y"}
        low, high = layer("low", tree_with(path, [first, "a"])), layer("high", tree_with(path, ["b", second]))
        tree, origins = merge([low, high])
        expected = [first, "a", "b", second] if path in JOINED else ["b", second]
        assert value_at(tree, path) == expected, path
        last = len(expected) - 1
        assert {origins[*path, last, name].file for name in ("id", "n")} == {"high"}, path
        assert origins[*path, last - 1].file == "high", path
        # The order of keys does not make another item.
        same = layer("high", tree_with(path, [{"n": 1, "id": "x"}]))
        assert value_at(merge([low, same])[0], path) == ([first, "a"] if path in JOINED else [first]), path


def check_kinds() -> None:
    """Check a value of one kind over a value of each other kind."""
    kinds: list[Any] = [1, "", [], ["a"], {}, {"b": 1}]
    for path in [("options", "disabled_tools"), ("mcp", "m", "args"), ("models",)]:
        for below in kinds:
            for above in kinds:
                lower, upper = layer("low", tree_with(path, below)), layer("high", tree_with(path, above))
                tree, origins = merge([lower, upper])
                joins = isinstance(below, list) and isinstance(above, list) and path in JOINED
                both = isinstance(below, dict) and isinstance(above, dict)
                expected = below if (joins or both) and below else above
                assert value_at(tree, path) == expected, (path, below, above)
                inside = {"b": (*path, "b"), "a": (*path, 0)}
                keys = {inside[name] for name in expected} if isinstance(expected, dict | list) else set()
                # An empty list of a collection adds nothing, so it has no origin.
                whole = set() if expected == [] and path in JOINED else {path}
                assert set(origins) == (keys or whole), (path, below, above)
                from_above = {origin.file for origin in origins.values()} <= {"high"}
                assert from_above or joins or both, (path, below, above)


def check_origins() -> None:
    """Check that each value has the line of its own key, or of the key above it."""
    lines: dict[KeyPath, int] = {("a",): 3, ("a", "b"): 4, ("a", "c", 1): 6, ("a", "c"): 5}
    low = layer("low", {"a": {"b": 1, "c": ["x", "y"], "d": 2, "e": {}, "f": [], "k": [{}, []]}, "g": {"h": 1}}, lines)
    _, origins = merge([low])
    assert {path: str(origin) for path, origin in origins.items()} == {
        ("a", "b"): "low:4",
        ("a", "c", 0): "low:5",
        ("a", "c", 1): "low:6",
        ("a", "d"): "low:3",
        ("a", "e"): "low:3",
        ("a", "f"): "low:3",
        ("a", "k", 0): "low",
        ("a", "k", 1): "low",
        ("g", "h"): "low",
    }
    for may_run in (False, True):
        found = merge([low, Layer({"a": {"b": "$(x)"}}, "high", {}, may_run=may_run)])[1]["a", "b"]
        assert (found.file, found.may_run) == ("high", may_run)
    assert "secret" not in repr(layer("low", {"a": "secret"}))


def check_models() -> None:
    """Check that a model in both files has the fields of both; the higher file wins, the lower is not changed."""
    low = layer("low", {"providers": {"p": {"models": [{"id": "a", "name": "A", "x": 1}]}}})
    high = layer("high", {"providers": {"p": {"models": [{"id": "b"}, {"id": "a", "x": 2, "y": [3]}, {"id": "b"}]}}})
    tree, origins = merge([low, high])
    assert tree["providers"]["p"]["models"] == [{"id": "a", "name": "A", "x": 2, "y": [3]}, {"id": "b"}]
    at: KeyPath = ("providers", "p", "models", 0)
    assert [origins[*at, name].file for name in ("name", "x")] == ["low", "high"]
    assert origins[*at, "y", 0].file == "high"
    assert low.tree["providers"]["p"]["models"] == [{"id": "a", "name": "A", "x": 1}]


CHECKS = [check_lists, check_kinds, check_origins, check_models]


@pytest.mark.parametrize("check", CHECKS)
def test_merge_of_each_kind_of_value(check: Callable[[], None]) -> None:
    check()


def test_every_clause_decides() -> None:
    def check() -> None:
        for each in CHECKS:
            each()

    assert_every_clause_decides(
        module,
        check,
        equivalent={
            "not isinstance(below, dict) or not isinstance(marks.get(name), dict) -> not isinstance(marks.get(name), "
            "dict)": "marks are a dict only where the tree has one",
            "not value and (not tree[name]) -> not tree[name]": "where something was added the tree is not empty",
        },
        kinds=(*CLAUSES, "comparison", "element", "argument", "exit"),
    )
