"""Assertions in the checks that ship with Holdfast are explained like those of the tests."""

import pytest

pytest.register_assert_rewrite("holdfast.testing")
