"""Changes of single settings in a TOML file that preserve its comments, order and spacing.

A change that is not valid, or that would alter any other setting, is refused and the file stays as it is.
"""

import copy
import os
import stat
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from holdfast.atomic_files import MAX_FILE_SIZE, Signature, directory_lock, read_file, replace_file
from holdfast.config.line_numbers import KeyPath
from holdfast.config.load_file import parse
from holdfast.config.problems import format_key
from holdfast.config.validate import key_type, validate_tree, value_problems
from holdfast.domain.errors import BadRequest, NotFound

__all__ = ["CannotWrite", "parse_value", "set_value", "unset_value"]


class CannotWrite(BadRequest):
    """The setting cannot be written."""


def parse_value(text: str, path: KeyPath) -> object:
    """Parse a value in TOML syntax. Anything else, and any value of a key that requires text, is taken as text."""
    try:
        read = tomlkit.parse(f"x = {text}\n").unwrap()
    except (TOMLKitError, ValueError, RecursionError):
        return text
    value = read["x"] if list(read) == ["x"] else text
    return text if not _is_valid_value(path, value) and _is_valid_value(path, text) else value


def _is_valid_value(path: KeyPath, value: object) -> bool:
    return not value_problems(path, value)


def set_value(file: str, path: KeyPath, value: object, *, mode: int | None = None) -> None:
    """Set a key in a file. Without `mode`, an existing file keeps its mode. Raises `CannotWrite`."""
    if key_type(path) is None:
        raise CannotWrite(f"{format_key(path)}: {next(iter(value_problems(path, value)), 'is not a known key.')}")
    _change(file, path, value, mode=mode, removes=False)


def unset_value(file: str, path: KeyPath, *, mode: int | None = None) -> None:
    """Remove a key from a file. Raises `NotFound` if the file does not set it, and `CannotWrite`."""
    _change(file, path, None, mode=mode, removes=True)


def _change(file: str, path: KeyPath, value: object, *, mode: int | None, removes: bool) -> None:
    with directory_lock(os.path.dirname(os.path.realpath(file))):
        data, seen = _read_or_empty(file)
        before, lines, problem = parse(data, "toml", file)
        if problem is not None:
            raise CannotWrite(f"{problem} Correct it first: nothing was changed.")
        wanted = _apply_change(before, path, value, file, removes=removes)
        # Existing errors elsewhere in the file are tolerated; the new value has to be valid.
        old = {
            problem.key for problem in validate_tree(before, file, lines).problems if not _is_within(problem.key, path)
        }
        new = [
            found
            for found in validate_tree(wanted, file, {}).problems
            if found.severity == "error" and found.key not in old
        ]
        if new:
            raise CannotWrite(f"{new[0].key}: {new[0].text} Nothing was changed.")
        text = _edit_text(data.decode("utf-8-sig"), path, value, removes=removes)
        whole = text.encode()
        after, _, problem = parse(whole, "toml", file)
        is_same = _without_empty_tables(after) == _without_empty_tables(wanted) if removes else after == wanted
        if problem is not None or not is_same or len(whole) > MAX_FILE_SIZE:
            raise CannotWrite(
                f"{format_key(path)} cannot be changed in {file} as it is written: edit the file by hand."
            )
        replace_file(file, whole, mode=_mode(file, seen, mode))


def _is_within(key: str, path: KeyPath) -> bool:
    return f"{key}.".startswith((f"{format_key(path)}.", f"{format_key(path)}["))


def _without_empty_tables(tree: Any) -> Any:  # noqa: ANN401 - any TOML
    """Return the tree without empty tables: removing the last key of a table may remove the table too."""
    if not isinstance(tree, dict):
        return tree
    pairs = {name: _without_empty_tables(item) for name, item in tree.items()}
    return {name: item for name, item in pairs.items() if item != {}}


def _read_or_empty(file: str) -> tuple[bytes, Signature]:
    try:
        return read_file(file)
    except FileNotFoundError:
        return b"", None


def _mode(file: str, seen: Signature, mode: int | None) -> int:
    if mode is not None:
        return mode
    return 0o644 if seen is None else stat.S_IMODE(os.stat(file).st_mode)


def _apply_change(tree: dict[str, Any], path: KeyPath, value: object, file: str, *, removes: bool) -> dict[str, Any]:
    """Return the tree after the change, against which the edited text is checked."""
    whole = copy.deepcopy(tree)
    place: Any = whole
    for name in path[:-1]:
        if isinstance(place, dict) and name not in place and isinstance(name, str) and not removes:
            place[name] = {}
        place = _item(place, name, path, file)
    last = path[-1]
    if removes or isinstance(last, int):
        _item(place, last, path, file)
    if not isinstance(place, dict | list):
        raise CannotWrite(f"{format_key(path[:-1])} is not a table in {file}, so it cannot contain a key.")
    if removes:
        del place[last]  # type: ignore[arg-type]
    else:
        place[last] = value  # type: ignore[index]
    return whole


def _item(place: Any, name: str | int, path: KeyPath, file: str) -> Any:  # noqa: ANN401 - any TOML
    try:
        return place[name]
    except (KeyError, IndexError, TypeError):
        raise NotFound(f"{format_key(path)} is not set in {file}.") from None


def _edit_text(text: str, path: KeyPath, value: object, *, removes: bool) -> str:
    document = tomlkit.parse(text)
    place: Any = document
    for depth, name in enumerate(path[:-1]):
        if isinstance(name, str) and name not in place:
            is_outer = depth < len(path) - 2 and isinstance(path[depth + 1], str)
            place[name] = tomlkit.table(is_super_table=is_outer)
        place = place[name]
    if removes:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return tomlkit.dumps(document)
