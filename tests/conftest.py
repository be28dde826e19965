"""Settings of all tests: assertion rewriting for the shipped test helpers, no hooks of the user, a limit that acts."""

import faulthandler
import os
from collections.abc import Generator

import pytest

pytest.register_assert_rewrite("holdfast.testing")

# Whoever runs these tests may have hooks of their own for another program: they are not part of any test.
os.environ["CLAUDE_CONFIG_DIR"] = "/nowhere"

_HARD_LIMIT_MARGIN = 10.0
"""Seconds after a test's own limit until its process is ended."""

_stderr = os.dup(2)
"""The real one: while a test runs, pytest has another in its place."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process of a test that its own limit did not end.

    pytest-timeout raises from a signal handler. Event loops written in C swallow that exception, and code that never
    returns to the interpreter never sees it; a thread of the C library ends both.
    """
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0]) if marker is not None and marker.args else _default_limit(item.config)
    faulthandler.dump_traceback_later(limit + min(limit, _HARD_LIMIT_MARGIN), exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _default_limit(config: pytest.Config) -> float:
    given = config.getoption("timeout", None)
    return float(config.getini("timeout") if given is None else given)
