"""Settings of all tests: one directory for created files, no settings of the user, and an enforced time limit."""

import atexit
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

from descriptors import collect_garbage, open_descriptors
from scratch import session_directory
from stream_servers import reserve_port

pytest.register_assert_rewrite("holdfast.testing")

# The user of these tests may have hooks for another program: they are not part of any test.
os.environ["CLAUDE_CONFIG_DIR"] = "/nowhere"

# Without compiled files each of the many processes would compile the whole package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The terminal app draws less often and without animation: the final screen is the same.
os.environ |= {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_FPS": "15"}

# Shells start jobs in the background with SIGINT ignored, and nohup ignores SIGHUP. Programs started by tests would
# inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The duration of an example depends on the machine and its load, so it is no reason to fail. The examples of the
# default profile are the same in every run, and a failure is repeated by running its test again. `fresh` draws new
# ones: pytest -m hypothesis --hypothesis-profile=fresh
settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("exact", settings.get_profile("fresh"), derandomize=True)
settings.load_profile("exact")

_session = ExitStack()
_session.enter_context(session_directory())
# Not at pytest's own end: files that other modules remove at the end of the process are in this directory.
atexit.register(_session.close)

_HARD_LIMIT_MARGIN = 10.0
"""Seconds after a test's own limit until its process is ended."""

_stderr = os.dup(2)
"""The real stderr: while a test runs, pytest replaces it."""

_known_descriptors: set[tuple[str, str]] = set()
"""Descriptors that were open after an earlier test, e.g. those of fixtures that several tests share."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported and collected objects from garbage collection: they stay until the end, and they are many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail the test that left an open file or socket to the garbage collector, instead of a later test."""
    result = yield
    left = open_descriptors() - _known_descriptors
    if left:
        # Values of fixtures whose test has ended are garbage, too. Fixtures of wider scope keep their own.
        getattr(item, "funcargs", {}).clear()
        warnings = collect_garbage()
        _known_descriptors.update(open_descriptors())
        if warnings:
            pytest.fail("The test left open: " + "; ".join(warnings), pytrace=False)
    return result


@pytest.fixture
def reserved_port() -> Iterator[int]:
    """A port of this machine for a server of the test. No other process receives it during the test."""
    with reserve_port() as port:
        yield port


def _default_limit(config: pytest.Config) -> float:
    given = config.getoption("timeout", None)
    return float(config.getini("timeout") if given is None else given)
