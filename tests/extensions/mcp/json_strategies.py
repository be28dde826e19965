"""Strategies for arbitrary JSON that an MCP server may send."""

from typing import Any

from hypothesis import strategies as st

__all__ = ["anything"]


def anything(*names: str) -> st.SearchStrategy[Any]:
    """JSON values whose objects use these names as keys."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(names), inside, max_size=4),
        max_leaves=12,
    )
