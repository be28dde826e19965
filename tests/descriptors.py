"""A check after each test: no open file, socket or pipe of the test is left to the garbage collector.

An object that is part of a reference cycle is closed by some later garbage collection, and the warning about it fails
the test that happens to run then. A full collection after each of the tests would find the right one and take minutes.
So the descriptors of the process are compared, which takes microseconds, and a collection follows only if the test
left some open.
"""

import gc
import os
import sys

_DIRECTORY = "/proc/self/fd"


def open_descriptors() -> set[tuple[str, str]]:
    """Return each open descriptor of this process with the file that it refers to."""
    found = set()
    for name in os.listdir(_DIRECTORY):
        try:
            found.add((name, os.readlink(f"{_DIRECTORY}/{name}")))
        except FileNotFoundError:  # The descriptor of the list itself, or one that a thread has closed.
            continue
    return found


def collect_garbage() -> list[str]:
    """Collect all garbage and return the warnings of objects that were not closed before."""
    warnings: list[str] = []

    def note(event: "sys.UnraisableHookArgs") -> None:
        warnings.append(str(event.exc_value))

    before, sys.unraisablehook = sys.unraisablehook, note
    try:
        gc.collect()
    finally:
        sys.unraisablehook = before
    return warnings
