"""Every setting that a document names exists: dotted names in the text, and keys in TOML blocks."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from holdfast.domain.settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTIONS = tuple(field.name for field in msgspec.structs.fields(Settings))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NAME = re.compile(rf"`((?:{'|'.join(SECTIONS)})\.[\w.<>-]+)(?: = [^`\n]*)?`")


def struct_in(kind: Any) -> Any:  # noqa: ANN401
    """Return the structure of a type that may be optional, or None."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for part in get_args(kind) if (found := struct_in(part)) is not None), None)


def is_setting(path: tuple[str, ...], kind: Any = Settings) -> bool:  # noqa: ANN401
    """Return whether a path of keys leads to a setting. Free keys and values of any type are not checked."""
    if not path:
        return True
    if kind in (Any, object):
        return True
    if get_origin(kind) is dict:
        return is_setting(path[1:], get_args(kind)[1])
    found = struct_in(kind)
    if found is None:
        return False
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(found)}
    return path[0] in fields and is_setting(path[1:], fields[path[0]])


def named_in(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the settings that a document names."""
    for name in _NAME.findall(_FENCE.sub("", text)):
        yield tuple(name.split("."))
    for kind, block in _FENCE.findall(text):
        if kind == "toml":
            yield from ((section, *key) for section, table in tomllib.loads(block).items() for key in keys_of(table))


def keys_of(table: Any) -> Iterator[tuple[str, ...]]:  # noqa: ANN401
    """Yield the paths of the innermost keys of a table."""
    if not isinstance(table, dict) or not table:
        yield ()
        return
    for key, value in table.items():
        yield from ((key, *rest) for rest in keys_of(value))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_setting_exists(document: Path) -> None:
    unknown = sorted({".".join(path) for path in named_in(document.read_text()) if not is_setting(path)})
    assert not unknown, f"{document.name} names settings that do not exist"


def test_the_reader_of_settings_sees_them() -> None:
    """The test above proves nothing if it overlooks them."""
    text = (
        "Set `options.nonsense` or `mcp.NAME.comand`.\n```toml\n[options]\nmax_stebs = 3\n[providers.x]\nkey = 1\n```\n"
    )
    assert [".".join(path) for path in named_in(text) if not is_setting(path)] == [
        "options.nonsense",
        "mcp.NAME.comand",
        "options.max_stebs",
        "providers.x.key",
    ]
    guide = (ROOT / "docs/configuration.md").read_text()
    assert len(list(named_in(guide))) >= 30
