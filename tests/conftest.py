"""What holds for all tests: assertions that ship with Holdfast are explained, and no hook of the user's own is run."""

import os

import pytest

pytest.register_assert_rewrite("holdfast.testing")

# Whoever runs these tests may have hooks of their own for another program: they are not part of any test.
os.environ["CLAUDE_CONFIG_DIR"] = "/nowhere"
