"""Fixtures: isolated home directories for the processes of these tests."""

from collections.abc import Iterator

import pytest

from cli.isolated_home import IsolatedHome, isolated_home


@pytest.fixture
def alone() -> Iterator[IsolatedHome]:
    """A home without a server: for tests that start, kill or stop one."""
    with isolated_home() as made:
        yield made


@pytest.fixture(scope="module")
def home() -> Iterator[IsolatedHome]:
    """A home with a server that the tests of a module share."""
    with isolated_home() as made:
        made.serve()
        yield made
