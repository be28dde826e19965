"""Whatever a server may answer, for tests that must hold for all of it."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["anything", "unhurried"]

unhurried = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
"""A busy machine makes examples slowly, and that says nothing about them."""


def anything(*names: str) -> st.SearchStrategy[Any]:
    """JSON, with these names in its objects."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(names), inside, max_size=4),
        max_leaves=12,
    )
