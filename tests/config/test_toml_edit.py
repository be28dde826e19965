"""Change of one setting: the rest of the file stays as written."""

import stat
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.problems import BadKey, format_key, parse_key
from holdfast.config.toml_edit import CannotWrite, parse_value, set_value, unset_value
from holdfast.domain.errors import HoldfastError, NotFound

EXISTING = """\
# My settings.   Keep this.

[models.large]        # the big one
model    = "old"      # was better

[providers.local]
base_url = "http://x"
models = [
  {id = "a"},   # first
]

[options]
tui.compact_mode = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "holdfast" / "config.toml"
    path.parent.mkdir()
    path.write_text(EXISTING)
    return path


def change(file: Path, key: str, value: object) -> dict[str, Any]:
    set_value(str(file), parse_key(key), value, mode=0o600)
    return tomllib.loads(file.read_text())


def test_comments_and_layout_are_kept(file: Path) -> None:
    change(file, "models.large.model", "new")
    assert file.read_text() == EXISTING.replace('"old"', '"new"')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("models.small.model", "s"),
        ("models.large.temperature", 0.5),
        ("options.max_steps", 3),
        ("options.tui.diff_mode", "split"),
        ("options.tui", {"x": 1}),
        ("options.disabled_tools", ["bash", "Edit"]),
        ('providers."my.own".type', "openai-compat"),
        ("providers.local.models[0].context_window", 100),
        ("providers.local.extra_headers.X-Title", "t"),
        ("env.A", "1"),
        ("hooks.Stop", [{"command": "x"}]),
        ("permissions.deny", []),
    ],
)
def test_only_the_given_setting_changes(file: Path, key: str, value: object) -> None:
    before = tomllib.loads(EXISTING)
    found: Any = change(file, key, value)
    for name in parse_key(key):
        found = found[name]
    assert found == value
    assert "# was better" in file.read_text()
    after = tomllib.loads(file.read_text())
    assert set(before) <= set(after)
    assert after["models"]["large"]["model"] == "old"


def test_missing_file_is_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    assert change(path, "models.large.model", "m") == {"models": {"large": {"model": "m"}}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_text() == '[models.large]\nmodel = "m"\n'


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("options.max_steps", "many", "expected a whole number"),
        ("options.max_stepz", 3, "did you mean max_steps"),
        ("opts.x", 3, "is not a known key"),
        ("models.large", "gpt", "expected a table"),
        ("models.large.model.x", "gpt", "expected text, found a table"),
        ("mcp.m.type", "carrier pigeon", "expected one of"),
        ("hooks.Stop", [{"name": "x"}], "command is missing"),
        ("providers.local.models[7].name", "x", "is not set in"),
    ],
)
def test_invalid_value_changes_nothing(file: Path, key: str, value: object, says: str) -> None:
    before = file.stat()
    with pytest.raises(HoldfastError, match=says):
        change(file, key, value)
    assert file.read_text() == EXISTING
    assert file.stat().st_mtime_ns == before.st_mtime_ns


def test_other_mistakes_in_the_file_are_ignored(file: Path) -> None:
    file.write_text("[options]\ndebug = 3\n")
    assert change(file, "options.max_steps", 4)["options"] == {"debug": 3, "max_steps": 4}


def test_invalid_value_is_not_replaced_by_another(file: Path) -> None:
    file.write_text("[options]\nmax_steps = 'x'\n")
    with pytest.raises(CannotWrite, match="expected a whole number"):
        change(file, "options.max_steps", "y")
    assert change(file, "options.max_steps", 3) == {"options": {"max_steps": 3}}


@pytest.mark.parametrize("text", ["[options", "\x00", "a = 1\na = 2\n"])
def test_broken_file_is_kept(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(CannotWrite, match="Correct it first"):
        change(file, "options.max_steps", 4)
    assert file.read_text() == text


def test_unset(file: Path) -> None:
    unset_value(str(file), parse_key("options.tui.compact_mode"))
    unset_value(str(file), parse_key("models.large"))
    after = tomllib.loads(file.read_text())
    assert "large" not in after.get("models", {})
    assert after["options"].get("tui", {}) == {}
    assert "# My settings.   Keep this." in file.read_text()
    with pytest.raises(NotFound, match=r"models\.large is not set"):
        unset_value(str(file), parse_key("models.large"))
    with pytest.raises(NotFound):
        unset_value(str(file), parse_key("a.b.c"))


def test_link_is_kept_and_project_file_keeps_its_mode(tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles" / "real.toml"
    kept.parent.mkdir()
    kept.write_text("")
    kept.chmod(0o664)
    link = tmp_path / "holdfast.toml"
    link.symlink_to(kept)
    set_value(str(link), ("options", "debug"), value=True)
    assert link.is_symlink()
    assert tomllib.loads(kept.read_text()) == {"options": {"debug": True}}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o664
    assert [path.name for path in kept.parent.iterdir()] == ["real.toml"]


def test_concurrent_changes_are_all_kept(tmp_path: Path) -> None:
    """The lock is on the open file, so threads represent processes."""
    path = str(tmp_path / "config.toml")
    threads = [
        threading.Thread(target=set_value, args=(path, ("env", f"V{number}"), str(number))) for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tomllib.loads(Path(path).read_text()) == {"env": {f"V{number}": str(number) for number in range(6)}}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("options.debug", "true", True),
        ("options.max_steps", "12", 12),
        ("models.large.temperature", "0.5", 0.5),
        ("options.disabled_tools", '["bash", "edit"]', ["bash", "edit"]),
        ("providers.x", '{type = "openai"}', {"type": "openai"}),
        ("models.large.model", "gpt-5", "gpt-5"),
        ("models.large.model", '"quoted"', "quoted"),
        ("models.large.model", "2024-01-01", "2024-01-01"),
        ("models.large.model", "12", "12"),
        ("models.large.model", "true", "true"),
        ("models.large.model", "1\ny = 2", "1\ny = 2"),
        ("models.large.model", "", ""),
        ("models.large.model", "1 # not a comment", "1 # not a comment"),
        ("options.max_steps", "many", "many"),
        ("options.tui.x", "5", 5),
    ],
)
def test_command_line_values_are_parsed(key: str, text: str, value: object) -> None:
    assert parse_value(text, parse_key(key)) == value


@settings(max_examples=50)
@given(st.lists(st.text(min_size=1, max_size=8) | st.integers(0, 99), min_size=1, max_size=5))
def test_a_key_can_be_written_and_read(names: list[str | int]) -> None:
    path = ("first", *names)
    assert parse_key(format_key(path)) == path


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", 'a."b', "a b", "a[x]", "x" * 600, "[1]", "a]"])
def test_invalid_keys_are_refused(text: str) -> None:
    with pytest.raises(BadKey):
        parse_key(text)
