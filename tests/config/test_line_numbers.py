"""Line numbers of keys."""

import tomllib

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.line_numbers import TooDeep, json_lines, toml_lines
from holdfast.config.validate import leaves

TOML = """\
# a comment with = and [brackets]
title = "x # no comment"
[models.large]
model = 'a=b' # [no.header]
"quoted key" = 1
a.b . "c.d" = 1979-05-27 07:32:00

[options]
context_paths = [
  "one", # first
  '''two
is long''',
  "three",
]
tui = { compact = true, deep = { er = [1, 2] } }
text = \"\"\"
[not.a.header] = "
\"\"\"
after = 1
[[providers.x.models]]
id = "m1"
[[providers.x.models]]
id = "m2"
[providers.x.models.options]
deep = 1
"""


def test_lines_of_toml() -> None:
    lines = toml_lines(TOML)
    assert lines["title",] == 2
    assert lines["models", "large"] == 3
    assert lines["models", "large", "model"] == 4
    assert lines["models", "large", "quoted key"] == 5
    assert lines["models", "large", "a", "b", "c.d"] == 6
    assert [lines["options", "context_paths", index] for index in range(3)] == [10, 11, 13]
    assert lines["options", "tui", "deep", "er", 1] == 15
    assert (lines["options", "text"], lines["options", "after"]) == (16, 19)
    assert lines["providers", "x", "models", 1, "id"] == 23
    assert lines["providers", "x", "models", 1, "options", "deep"] == 25


def test_every_key_of_toml_has_a_line() -> None:
    lines = toml_lines(TOML)
    assert [path for path, _ in leaves(tomllib.loads(TOML)) if path not in lines] == []


def test_lines_of_json() -> None:
    text = '{\n "a": {"b": [1,\n  {"c\\n": "\\"]}"}]},\n\n "d": null}'
    lines = json_lines(text)
    assert lines["a", "b", 1, "c\n"] == 3
    assert lines["d",] == 5


NAMES = st.text(min_size=1, max_size=5)
TREES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_every_value_of_a_written_file_has_a_line(tree: dict[str, object]) -> None:
    """Written with another library, every value is found again."""
    text = tomlkit.dumps(tree)
    if tomllib.loads(text) != tree:
        return
    lines = toml_lines(text)
    assert [path for path, value in leaves(tree) if value not in ({}, []) and path not in lines] == []


@pytest.mark.parametrize("text", ["a = ", "[a", "a = [1, 2", "= 1", "a = {b", 'a = "x', "\x00", "[[a]", "a = '''"])
def test_invalid_text_ends_the_scan(text: str) -> None:
    assert toml_lines("first = 1\n" + text).get(("first",)) == 1
    json_lines('{"a": ' + text)


@pytest.mark.parametrize(
    "text", ["a=" + "[" * 100_000, ".".join("a" * 100_000) + "=1", "[" + ".".join("a" * 100_000) + "]", "a={" * 70]
)
def test_nesting_that_is_too_deep_is_refused(text: str) -> None:
    with pytest.raises(TooDeep) as caught:
        toml_lines("x = 1\n" + text)
    assert caught.value.line == 2


def test_json_that_is_too_deep_is_refused() -> None:
    with pytest.raises(TooDeep):
        json_lines("[" * 100_000)
