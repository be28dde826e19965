"""File names: joined, compared, displayed, matched."""

import pytest

from holdfast.domain.errors import ToolError
from holdfast.workspace.files.path_strings import display_path, glob_regex, is_within, join_path, similar_names

NAMES = ("a.py", "src/a.py", "src/x/b.py", "src/x/b.ts", "README.md", ".github/w.yml", "src/x/y/z/b.py")


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.py", ["a.py", "src/a.py", "src/x/b.py", "src/x/y/z/b.py"]),
        ("./*.md", ["README.md"]),
        ("src/*.py", ["src/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/b.py", "src/x/y/z/b.py"]),
        ("**/x/**", ["src/x/b.py", "src/x/b.ts", "src/x/y/z/b.py"]),
        ("**/x/**/b.*", ["src/x/b.py", "src/x/b.ts", "src/x/y/z/b.py"]),
        ("src/*/b.{py,ts}", ["src/x/b.py", "src/x/b.ts"]),
        ("{a,src/{x/b,none}}.py", ["a.py", "src/a.py", "src/x/b.py"]),
        ("?.py", ["a.py", "src/a.py", "src/x/b.py", "src/x/y/z/b.py"]),
        ("[!a].py", ["src/x/b.py", "src/x/y/z/b.py"]),
        ("[a-c].ts", ["src/x/b.ts"]),
        (".github/*", [".github/w.yml"]),
        ("**", list(NAMES)),
        ("r*.md", []),
        ("x", []),
        ("src", []),
    ],
)
def test_globs(pattern: str, wanted: list[str]) -> None:
    assert [name for name in NAMES if glob_regex(pattern).match(name)] == wanted


@pytest.mark.parametrize("name", ["a[b", "a{b", "a+b", "a.b", "a^b", "a b", "a\\b"])
def test_special_characters_are_literal(name: str) -> None:
    assert glob_regex(name.replace("\\", "\\\\")).match(name)
    assert not glob_regex(name).match("axb")


def test_globs_match_in_linear_time() -> None:
    """A backtracking matcher would exceed the time limit of the test."""
    assert not glob_regex("*a" * 40 + "*b").match("a" * 250)
    assert not glob_regex("**/a/" * 20 + "b").match("a/" * 200 + "c")
    assert glob_regex("*a*a*b").match("aaab")
    assert glob_regex("**/a/**/a/b").match("x/a/a/a/b")
    with pytest.raises(ToolError, match="alternatives"):
        glob_regex("{a,b}" * 20)


def test_path_normalisation() -> None:
    assert join_path("/r", "a/./b") == "/r/a/b"
    assert join_path("/r", "/x") == "/x"
    assert join_path("/r", "~/x", "/home/u") == "/home/u/x"
    assert join_path("/r", "~x", "/home/u") == "/r/~x"
    # If `a` is a symlink, only the disk determines the target.
    assert join_path("/r", "a/../b") == "/r/a/../b"
    assert is_within("/r", "/r/a")
    assert is_within("/", "/x")
    assert not is_within("/r", "/rr")
    assert (display_path("/r", "/r/a/b"), display_path("/r", "/r"), display_path("/r", "/x")) == ("a/b", ".", "/x")
    for bad in ("", "  ", "a\0b", "x" * 5_000):
        with pytest.raises(ToolError):
            join_path("/r", bad)


def test_similar_names() -> None:
    names = ["config.py", "config_test.py", "settings.py", "unrelated.md", "conf.py"]
    assert similar_names("Config.py", names)[0] == "config.py"
    assert similar_names("confg.py", names)[0] in ("config.py", "conf.py")
    assert similar_names("zzz", names) == []
    assert len(similar_names("config", [f"config{number}" for number in range(50)])) == 3
