"""Merge of settings trees, with the origin of each value. Pure.

Objects are merged and scalars replaced. Lists that are sets are joined without duplicates; lists whose order matters,
such as the arguments of a command, are replaced. Models are merged by their ids.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.config.line_numbers import KeyPath

__all__ = ["Layer", "SettingOrigin", "merge"]

_COLLECTIONS = {
    "options": {"context_paths", "global_context_paths", "skills_paths", "disabled_tools", "disabled_skills"},
    "permissions": {"allowed_tools", "allow", "ask", "deny"},
    "mcp": {"disabled_tools", "enabled_tools"},
    "lsp": {"filetypes", "root_markers"},
}


class SettingOrigin(msgspec.Struct, frozen=True):
    """File and line of a value. `may_run` is true if a `$(command)` in it is executed."""

    file: str
    line: int
    may_run: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Layer(msgspec.Struct, frozen=True):
    """The tree of one file, with the lines of its keys."""

    tree: dict[str, Any]
    file: str
    lines: dict[KeyPath, int]
    may_run: bool

    def __repr__(self) -> str:
        return f"Layer({self.file!r})"

    def origin(self, path: KeyPath) -> SettingOrigin:
        """Return the origin of a key. A key without a line has that of its parent."""
        line = self.lines.get(path) or self.lines.get(path[:-1], 0)
        return SettingOrigin(self.file, line, self.may_run)


OriginTree: TypeAlias = Any
"""A tree of the same shape as the settings, with an origin in place of each value."""


def merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[KeyPath, SettingOrigin]]:
    """Merge layers, lowest precedence first. Return the tree and the origin of each of its values."""
    tree: dict[str, Any] = {}
    marks: dict[str, OriginTree] = {}
    for layer in layers:
        _overlay(tree, marks, layer, layer.tree, ())
    origins: dict[KeyPath, SettingOrigin] = {}
    _flatten(marks, (), origins)
    return tree, origins


def _overlay(
    tree: dict[str, Any], marks: dict[str, OriginTree], layer: Layer, upper: dict[str, Any], path: KeyPath
) -> None:
    for name, value in upper.items():
        at = (*path, name)
        below = tree.get(name)
        if isinstance(value, dict):
            if not isinstance(below, dict) or not isinstance(marks.get(name), dict):
                tree[name], marks[name] = {}, {}
            _overlay(tree[name], marks[name], layer, value, at)
            if not value and not tree[name]:
                marks[name] = layer.origin(at)
        elif isinstance(value, list) and (identity := _identity(at)) is not None:
            kept = below if isinstance(below, list) else []
            known_origins = marks[name] if kept else []
            tree[name], marks[name] = _join_lists(kept, known_origins, layer, value, at, identity)
        else:
            tree[name], marks[name] = value, _origins_of(value, layer, at)


def _identity(path: KeyPath) -> Callable[[Any], Any] | None:
    """Return the function that identifies equal items of the list at `path`; None if the list is replaced."""
    if len(path) == 2 and path[0] == "hooks":
        return _encode
    if len(path) == 3 and path[0] == "providers" and path[2] == "models":
        return _model_id
    if len(path) in (2, 3) and path[-1] in _COLLECTIONS.get(str(path[0]), ()):
        return _encode
    return None


def _encode(item: object) -> bytes:
    return msgspec.json.encode(item, order="deterministic")


def _model_id(item: dict[str, Any]) -> object:
    return item.get("id")


def _join_lists(
    kept: list[Any],
    known_origins: list[OriginTree],
    layer: Layer,
    upper: list[Any],
    path: KeyPath,
    identity: Callable[[Any], Any],
) -> tuple[list[Any], list[OriginTree]]:
    items, marks = list(kept), list(known_origins)
    places = {identity(item): index for index, item in enumerate(items)}
    for index, item in enumerate(upper):
        place = places.setdefault(identity(item), len(items))
        if place == len(items):
            items.append(item)
            marks.append(_origins_of(item, layer, (*path, index)))
        elif isinstance(item, dict):
            merge_trees, origins = dict(items[place]), dict(marks[place])
            for name, value in item.items():
                merge_trees[name], origins[name] = value, _origins_of(value, layer, (*path, index, name))
            items[place], marks[place] = merge_trees, origins
    return items, marks


def _origins_of(value: object, layer: Layer, path: KeyPath) -> OriginTree:
    if isinstance(value, dict) and value:
        return {name: _origins_of(item, layer, (*path, name)) for name, item in value.items()}
    if isinstance(value, list) and value:
        return [_origins_of(item, layer, (*path, index)) for index, item in enumerate(value)]
    return layer.origin(path)


def _flatten(marks: OriginTree, path: KeyPath, origins: dict[KeyPath, SettingOrigin]) -> None:
    if isinstance(marks, dict):
        for name, below in marks.items():
            _flatten(below, (*path, name), origins)
    elif isinstance(marks, list):
        for index, below in enumerate(marks):
            _flatten(below, (*path, index), origins)
    else:
        origins[path] = marks
