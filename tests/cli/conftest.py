"""Homes for the processes of these tests."""

from collections.abc import Iterator

import pytest

from cli.house import House, house


@pytest.fixture
def alone() -> Iterator[House]:
    """A home without a server: for tests that start, kill or stop one."""
    with house() as made:
        yield made


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """A home with a server that the tests of a module share."""
    with house() as made:
        made.serve()
        yield made
