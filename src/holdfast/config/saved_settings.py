"""Settings that clients change over the wire: two JSON documents, of which that of the workspace takes precedence.

A key is a path with dots (`options.tui.compact_mode`); a name that contains dots is quoted. A document is changed as a
whole, and no change of another process or server is lost. In a cluster both are in the store, except keys and tokens of
providers (`providers.NAME.api_key` and `.oauth`), which stay in a file of the node: keys belong to a node.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from holdfast.atomic_files import FILES, MAX_FILE_SIZE, FileUnreadable
from holdfast.config.line_numbers import MAX_DEPTH, TooDeep, json_lines
from holdfast.config.problems import parse_key
from holdfast.domain.documents import Documents
from holdfast.domain.errors import BadRequest

__all__ = ["ConfigStore", "Scope", "add_keys", "merge_trees", "split_keys"]

Scope = Literal[0, 1]
"""0 for the settings of the user, 1 for those of the workspace."""

_SECRETS = ("api_key", "oauth")
"""Fields of a provider that are stored in the file of the keys, if there is one."""


def merge_trees(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Merge objects key by key. Any other value of `upper` replaces that of `lower`."""
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        result[key] = merge_trees(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


class ConfigStore:
    """The client settings of one user and one workspace. Changes block: a server calls them in a thread."""

    def __init__(self, user: str, workspace: str, documents: Documents = FILES, *, keys_file: str = "") -> None:
        self._names = (user, workspace)
        self._documents = documents
        self._keys_file = keys_file

    def read(self) -> dict[str, Any]:
        """Return both documents merged."""
        user, workspace = (self._load(name) for name in self._names)
        return merge_trees(user, workspace)

    def read_scope(self, scope: Scope) -> dict[str, Any]:
        """Return the content of one document."""
        return self._load(self._names[scope])

    def set(self, scope: int, key: str, value: object) -> None:
        """Set a key. Missing objects on its path are created. Raises `BadRequest`."""
        self.change(scope, key, lambda _: value)

    def change(self, scope: int, key: str, new_value: Callable[[object], object]) -> None:
        """Set a key to a value that depends on its present one, which is None if it is not set. Raises `BadRequest`."""
        names = self._check(scope, key)

        def edit(tree: dict[str, Any]) -> bool:
            place = tree
            for name in names[:-1]:
                below = place.get(name)
                if not isinstance(below, dict):
                    below = place[name] = {}
                place = below
            place[names[-1]] = new_value(place.get(names[-1]))
            return True

        self._edit(scope, names, edit)

    def remove(self, scope: int, key: str) -> None:
        """Remove a key, if it is set. Raises `BadRequest`."""
        names = self._check(scope, key)

        def edit(tree: dict[str, Any]) -> bool:
            place: Any = tree
            for name in names[:-1]:
                place = place.get(name)
                if not isinstance(place, dict):
                    return False
            place.pop(names[-1], None)
            return True

        self._edit(scope, names, edit)
        if self._keys_file and names[0] == "providers":
            self._update(self._keys_file, edit)

    def _check(self, scope: int, key: str) -> list[str]:
        """Return the names on the path of a key."""
        if scope not in (0, 1):
            raise BadRequest("The scope is 0 for the settings of the user or 1 for those of the workspace.")
        names = [name for name in parse_key(key) if isinstance(name, str)]
        if len(names) < len(parse_key(key)):
            raise BadRequest("A list is set as a whole: use its key without an index.")
        return names

    def _edit(self, scope: int, names: list[str], edit: Callable[[dict[str, Any]], bool]) -> None:
        if not self._keys_file or names[0] != "providers":
            self._update(self._names[scope], edit)
            return
        secrets: dict[str, Any] = {}

        def edit_without_secrets(tree: dict[str, Any]) -> bool:
            is_changed = edit(tree)
            secrets.clear()
            secrets.update(_take_secrets(tree))
            return is_changed

        self._update(self._names[scope], edit_without_secrets)
        if secrets:
            self._update(self._keys_file, lambda tree: _add(tree, secrets))

    def _update(self, name: str, edit: Callable[[dict[str, Any]], bool]) -> None:
        """Change a document. `edit` changes the tree and returns whether it did."""

        def edit_bytes(data: bytes | None) -> bytes | None:
            tree = {} if data is None else _decode(name, data)
            return _encode(tree) if edit(tree) else None

        try:
            self._documents.update(name, edit_bytes)
        except FileUnreadable as error:
            raise _not_an_object(name) from error

    def _load(self, name: str) -> dict[str, Any]:
        try:
            return _decode(name, self._documents.read(name)[0])
        except FileNotFoundError:
            return {}
        except FileUnreadable as error:
            raise _not_an_object(name) from error


def split_keys(name: str, data: bytes) -> tuple[bytes, dict[str, Any]]:
    """Split a document into the settings and the keys and tokens of providers, which belong to a node.

    Raises `BadRequest` if it is not a JSON object.
    """
    tree = _decode(name, data)
    keys = _take_secrets(tree)
    return (_encode(tree), keys) if keys else (data, {})


def add_keys(keys_file: str, keys: dict[str, Any]) -> None:
    """Add keys and tokens of providers to the file of a node. Those that it contains already stay."""

    def edit(data: bytes | None) -> bytes:
        return _encode(merge_trees(keys, {} if data is None else _decode(keys_file, data)))

    FILES.update(keys_file, edit)


def _add(tree: dict[str, Any], more: dict[str, Any]) -> bool:
    merged = merge_trees(tree, more)
    tree.update(merged)
    return True


def _take_secrets(tree: dict[str, Any]) -> dict[str, Any]:
    """Remove the keys and tokens of providers from the settings and return them. A template is no key."""
    providers = tree.get("providers")
    found: dict[str, Any] = {}
    for name, provider in providers.items() if isinstance(providers, dict) else ():
        for field in _SECRETS if isinstance(provider, dict) else ():
            value = provider.get(field)
            if value and not (isinstance(value, str) and "$" in value):
                found.setdefault(name, {})[field] = provider.pop(field)
    return {"providers": found} if found else {}


def _decode(name: str, data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_an_object(name) from error


def _not_an_object(name: str) -> BadRequest:
    return BadRequest(f"{name} is not a JSON object: correct it or move it away.")


def _encode(whole: dict[str, Any]) -> bytes:
    """Return the content, unless it would be too large or too deep to be read again: it would lose all effect."""
    data = msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
    if len(data) > MAX_FILE_SIZE:
        raise BadRequest(f"The settings would be larger than {MAX_FILE_SIZE // 1024} KiB: nothing was changed.")
    try:
        json_lines(data.decode())
    except (TooDeep, RecursionError) as error:
        raise BadRequest(f"The settings would be deeper than {MAX_DEPTH} levels: nothing was changed.") from error
    return data
