"""Decides whether a function that reads a few files may run in the event loop. A thread costs more than such a call."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["ShortCalls"]

T = TypeVar("T")

_MAX_PROCESSOR_SECONDS = 0.001
_MAX_SECONDS = 0.003
"""Longer than the processor time, because short waits do not count: in a thread, a scan of 0.2 ms waits for the
interpreter and takes 0.7 ms, and more if the machine is busy. If they counted, it would stay in the thread.
"""


class ShortCalls:
    """Measures the calls of one function."""

    def __init__(self) -> None:
        self.is_short = False
        """Whether the last call used little processor time and waited little for the disk."""

    def measure(self, call: Callable[[], T]) -> T:
        """Call the function and return its result."""
        began, processor = time.perf_counter(), time.thread_time()
        try:
            return call()
        finally:
            is_small = time.thread_time() - processor < _MAX_PROCESSOR_SECONDS
            self.is_short = is_small and time.perf_counter() - began < _MAX_SECONDS
