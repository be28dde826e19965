"""Paths of settings: names for tables, indexes for lists, at every level of every setting."""

import pytest

from config.test_settings import NAMES
from holdfast.config.line_numbers import KeyPath
from holdfast.config.validate import key_type


@pytest.mark.parametrize("name", NAMES)
def test_index_of_a_table_and_name_in_a_list_are_no_keys(name: str) -> None:
    path = NAMES[name]
    assert key_type(path) is not None
    for at, step in enumerate(path):
        other: KeyPath = (*path[:at], "0" if isinstance(step, int) else 0, *path[at + 1 :])
        assert key_type(other) is None, other
