"""Loads msgspec without what it does not need, and without being disturbed."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

__all__ = ["load_msgspec", "undisturbed"]

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_UNNEEDED = "typing_extensions"


def load_msgspec() -> None:
    """msgspec asks for typing_extensions, which takes longer to load than msgspec itself, and has nothing for it
    that Python 3.11 has not. Who needs it later still gets it.
    """
    if "msgspec" in sys.modules or _UNNEEDED in sys.modules:
        return
    sys.modules[_UNNEEDED] = None  # type: ignore[assignment] # what Python documents for a module not to be found
    try:
        import_module("msgspec")
    finally:
        del sys.modules[_UNNEEDED]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until it is over. While msgspec gets to know a type, an exception out of a signal's handler would
    end the process with a segmentation fault.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
