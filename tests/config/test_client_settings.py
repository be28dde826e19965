"""Settings that clients change."""

import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.config.load_file import parse
from holdfast.config.saved_settings import ConfigStore, merge_trees
from holdfast.domain.documents import STORE_PREFIX
from holdfast.domain.errors import BadRequest
from shared_documents import shared_nodes

ONLY_FILES = pytest.mark.parametrize("store", ["files"], indirect=True)
ONLY_SHARED = pytest.mark.parametrize("store", ["postgres"], indirect=True)


@pytest.fixture(params=["files", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConfigStore]:
    if request.param == "files":
        yield ConfigStore(str(tmp_path / "config.json"), str(tmp_path / "workspaces" / "w" / "config.json"))
        return
    with shared_nodes() as nodes:
        names = f"{STORE_PREFIX}config.json", f"{STORE_PREFIX}workspaces/w/config.json"
        yield ConfigStore(*names, nodes.node(), keys_file=str(tmp_path / "keys.json"))


def test_workspace_overrides_user_settings(store: ConfigStore) -> None:
    store.set(0, "options.tui.compact_mode", value=True)
    store.set(0, "options.debug", value=True)
    store.set(1, "options.tui.compact_mode", value=False)
    assert store.read() == {"options": {"tui": {"compact_mode": False}, "debug": True}}
    store.remove(1, "options.tui.compact_mode")
    assert store.read()["options"]["tui"] == {"compact_mode": True}
    store.remove(1, "nothing.there.at.all")


def test_name_with_dots_is_quoted_and_stored_unchanged(store: ConfigStore) -> None:
    store.set(0, 'providers."my.own".api_key', "$KEY")
    assert store.read() == {"providers": {"my.own": {"api_key": "$KEY"}}}
    store.remove(0, 'providers."my.own"')
    assert store.read() == {"providers": {}}


@ONLY_FILES
def test_written_file_is_private(store: ConfigStore, tmp_path: Path) -> None:
    store.set(0, "providers.x.api_key", "secret")
    assert stat.S_IMODE((tmp_path / "config.json").stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [tmp_path / "config.json"], "no draft is left"


@pytest.mark.parametrize(
    ("scope", "key"), [(2, "a"), (-1, "a"), (0, ""), (0, "a..b"), (0, ".a"), (0, "x" * 600), (0, "a[0]"), (0, "a[0].b")]
)
def test_invalid_change_is_refused(store: ConfigStore, scope: int, key: str) -> None:
    with pytest.raises(BadRequest):
        store.set(scope, key, 1)
    assert store.read() == {}


@ONLY_FILES
@pytest.mark.parametrize("key", ["options.x", ".".join("x" * 70)])
def test_change_that_could_not_be_read_back_is_refused(store: ConfigStore, tmp_path: Path, key: str) -> None:
    store.set(0, "options.debug", value=True)
    deep: object = 1
    for _ in range(0 if len(key) > 64 else 64):
        deep = {"a": deep}
    with pytest.raises(BadRequest, match="deeper than 64 levels"):
        store.set(0, key, deep)
    store.set(0, "options.progress", value=False)
    assert parse((tmp_path / "config.json").read_bytes(), "json", "config.json")[2] is None
    assert store.read() == {"options": {"debug": True, "progress": False}}


@ONLY_FILES
def test_file_that_is_not_an_object_is_kept(store: ConfigStore, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(BadRequest, match="correct it"):
        store.set(0, "a", 1)
    assert (tmp_path / "config.json").read_text() == "[1, 2"


def test_objects_merge_and_everything_else_replaces() -> None:
    assert merge_trees({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}, "d": {}}) == {
        "a": {"b": 1, "c": [2]},
        "d": {},
    }


@ONLY_SHARED
def test_keys_and_tokens_of_providers_stay_in_a_file_of_the_node(store: ConfigStore, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    store.set(1, "providers.a.api_key", "secret")
    store.set(0, "providers.b", {"api_key": "secret", "base_url": "u", "oauth": {"access_token": "secret"}})
    store.set(0, "providers", {"c": {"api_key": "$KEY"}, "d": {"oauth": {"access_token": "secret"}}, "e": 1})
    assert store.read() == {"providers": {"a": {}, "c": {"api_key": "$KEY"}, "d": {}, "e": 1}}
    assert "secret" not in str(store.read())
    saved = msgspec.json.decode(keys.read_bytes())["providers"]
    assert {name: sorted(item) for name, item in saved.items()} == {
        "a": ["api_key"],
        "b": ["api_key", "oauth"],
        "d": ["oauth"],
    }
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    store.remove(0, "providers.b")
    assert "b" not in msgspec.json.decode(keys.read_bytes())["providers"]


def test_change_depends_on_the_present_value(store: ConfigStore) -> None:
    for number in range(3):
        store.change(1, "permissions.allow", lambda rules, number=number: [*(rules or ()), number])  # type: ignore[misc]
    assert store.read_scope(1) == {"permissions": {"allow": [0, 1, 2]}}
