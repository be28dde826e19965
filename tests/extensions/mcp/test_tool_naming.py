"""Names of MCP tools for models."""

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.mcp.tool_naming import is_enabled, prompt_command, tool_name, tool_names


def test_tool_name_contains_server_and_tool() -> None:
    assert tool_name("git", "git_status") == "mcp_git_git_status"
    assert tool_name("my.server", "a b/c") == "mcp_my_server_a_b_c"
    assert prompt_command("git", "review") == "git:review"


@given(st.text(max_size=80), st.lists(st.text(max_size=120), max_size=12))
def test_names_are_valid_for_providers_and_unique(server: str, tools: list[str]) -> None:
    names = tool_names(server, tools)
    assert set(names) == set(tools)
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names.values())
    assert names == tool_names(server, tools), "a name stays what it is"


def test_long_names_keep_their_beginning() -> None:
    names = tool_names("s", ["x" * 100, "x" * 101])
    assert all(name.startswith("mcp_s_xxxx") for name in names.values())


def test_enabled_and_disabled_tool_lists() -> None:
    assert is_enabled("a", (), ())
    assert not is_enabled("a", (), ("a",))
    assert is_enabled("a", ("a",), ())
    assert not is_enabled("b", ("a",), ())
    assert not is_enabled("a", ("a",), ("a",)), "what is forbidden stays forbidden"


def test_colliding_names_get_numeric_suffix() -> None:
    fits, long = "x" * 58, "x" * 59
    assert tool_name("s", fits) == f"mcp_s_{fits}", "64 characters are taken"
    cut = tool_name("s", long)
    assert len(cut) == 64
    assert re.fullmatch(r"mcp_s_x{51}_[0-9a-f]{6}", cut)
    names = tool_names("s", ["a b", "a_b", "a b", "a.b"])
    assert list(names) == ["a b", "a_b", "a.b"], "each once"
    assert names["a b"] == "mcp_s_a_b", "the first has the plain one"
    assert all(re.fullmatch(r"mcp_s_a_b_[0-9a-f]{6}", names[name]) for name in ("a_b", "a.b"))
    assert tool_names("s", ["b", "a"]) == {"b": "mcp_s_b", "a": "mcp_s_a"}
