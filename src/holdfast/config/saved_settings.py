"""Settings that clients change over the wire: two JSON files, of which that of the workspace takes precedence.

A key is a path with dots (`options.tui.compact_mode`); a name that contains dots is quoted. Files are replaced
atomically, under a lock that excludes other processes.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.atomic_files import MAX_FILE_SIZE, FileUnreadable, directory_lock, read_file, replace_file
from holdfast.config.line_numbers import MAX_DEPTH, TooDeep, json_lines
from holdfast.config.problems import parse_key
from holdfast.domain.errors import BadRequest

__all__ = ["ConfigStore", "Scope", "merge_trees"]

Scope = Literal[0, 1]
"""0 for the settings of the user, 1 for those of the workspace."""


def merge_trees(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Merge objects key by key. Any other value of `upper` replaces that of `lower`."""
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        result[key] = merge_trees(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


class ConfigStore:
    """The client settings of one user and one workspace."""

    def __init__(self, user_file: Path, workspace_file: Path) -> None:
        self._files = (user_file, workspace_file)

    def read(self) -> dict[str, Any]:
        """Return both files merged."""
        user, workspace = (_load(path) for path in self._files)
        return merge_trees(user, workspace)

    def read_scope(self, scope: Scope) -> dict[str, Any]:
        """Return the content of one file."""
        return _load(self._files[scope])

    def set(self, scope: int, key: str, value: object) -> None:
        """Set a key. Missing objects on its path are created. Raises `BadRequest`."""
        self._change(scope, key, value, remove=False)

    def remove(self, scope: int, key: str) -> None:
        """Remove a key, if it is set. Raises `BadRequest`."""
        self._change(scope, key, None, remove=True)

    def _change(self, scope: int, key: str, value: object, *, remove: bool) -> None:
        if scope not in (0, 1):
            raise BadRequest("The scope is 0 for the settings of the user or 1 for those of the workspace.")
        names = [name for name in parse_key(key) if isinstance(name, str)]
        if len(names) < len(parse_key(key)):
            raise BadRequest("A list is set as a whole: use its key without an index.")
        path = self._files[scope]
        with directory_lock(str(path.parent)):
            self._patch(path, names, value, remove=remove)

    def _patch(self, path: Path, names: list[str], value: object, *, remove: bool) -> None:
        whole = _load(path)
        place = whole
        for name in names[:-1]:
            below = place.get(name)
            if not isinstance(below, dict):
                if remove:
                    return
                below = place[name] = {}
            place = below
        if remove:
            place.pop(names[-1], None)
        else:
            place[names[-1]] = value
        _save(path, whole)


def _load(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_file(str(path))[0], type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, RecursionError, FileUnreadable) as error:
        raise BadRequest(f"{path} is not a JSON object: correct it or move it away.") from error


def _save(path: Path, whole: dict[str, Any]) -> None:
    """Write the file, unless it would be too large or too deep to be read again: it would lose all effect."""
    data = msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
    if len(data) > MAX_FILE_SIZE:
        raise BadRequest(f"The settings would be larger than {MAX_FILE_SIZE // 1024} KiB: nothing was changed.")
    try:
        json_lines(data.decode())
    except (TooDeep, RecursionError) as error:
        raise BadRequest(f"The settings would be deeper than {MAX_DEPTH} levels: nothing was changed.") from error
    replace_file(str(path), data)
