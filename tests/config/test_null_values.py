"""Null in a settings file: the same as a missing key, for every setting."""

from typing import Any

import pytest
from msgspec import inspect

from config.test_settings import NAMES
from holdfast.config.line_numbers import KeyPath
from holdfast.config.problems import format_key
from holdfast.config.validate import validate_tree
from holdfast.domain.settings import Settings


def required_fields(kind: inspect.Type, path: KeyPath = ()) -> set[KeyPath]:
    """Return the path of every required field."""
    match kind:
        case inspect.StructType():
            own = {(*path, field.encode_name) for field in kind.fields if field.required}
            return own.union(*(required_fields(field.type, (*path, field.encode_name)) for field in kind.fields))
        case inspect.DictType():
            return required_fields(kind.value_type, (*path, "Stop" if path == ("hooks",) else "p"))
        case inspect.VarTupleType():
            return required_fields(kind.item_type, (*path, 0))
        case inspect.UnionType():
            return set[KeyPath]().union(*(required_fields(part, path) for part in kind.types))
        case _:
            return set()


REQUIRED = sorted(required_fields(inspect.type_info(Settings)), key=str)


def tree_of(path: KeyPath, value: object) -> dict[str, Any]:
    tree: Any = value
    for name in reversed(path):
        tree = [tree] if isinstance(name, int) else {name: tree}
    whole: dict[str, Any] = tree
    return whole


def value_at(tree: Any, path: KeyPath) -> Any:  # noqa: ANN401 - any JSON
    for name in path:
        tree = tree[name]
    return tree


@pytest.mark.parametrize("name", [name for name, path in NAMES.items() if path not in REQUIRED])
def test_null_is_the_same_as_a_missing_key(name: str) -> None:
    *above, last = path = NAMES[name]
    tree = tree_of(path, None)
    if needed := [field[-1] for field in REQUIRED if field[:-1] == tuple(above)]:
        value_at(tree, tuple(above))[needed[0]] = "good"
    found = validate_tree(tree, "/file", {})
    assert found.problems == ()
    assert value_at(found.tree, tuple(above)).get(last) is None


@pytest.mark.parametrize("path", REQUIRED, ids=format_key)
def test_required_field_that_is_missing_null_or_of_another_type(path: KeyPath) -> None:
    """The item is left out with one problem, which names the item or the field; the items beside it are kept."""
    *above, _, name = path
    cases: list[tuple[dict[str, Any], KeyPath, str]] = [
        ({}, path[:-1], f"{name} is missing."),
        ({str(name): None}, path[:-1], f"{name} is missing."),
        ({str(name): 1}, path, "expected text"),
    ]
    for item, place, text in cases:
        tree = tree_of(tuple(above), [item, {str(name): "good"}])
        found = validate_tree(tree, "/file", {})
        assert [(problem.severity, problem.key) for problem in found.problems] == [("error", format_key(place))], item
        assert text in found.problems[0].text
        assert value_at(found.tree, tuple(above)) == [{str(name): "good"}]
