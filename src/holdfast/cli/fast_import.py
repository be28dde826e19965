"""Fast import of msgspec, protected from signals."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

__all__ = ["load_msgspec", "undisturbed"]

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_UNNEEDED = "typing_extensions"


def load_msgspec() -> None:
    """Import msgspec without typing_extensions, which takes longer to import than msgspec itself and provides nothing
    that Python 3.11 lacks. Later imports of typing_extensions still work.
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
    """Block signals. An exception from a signal handler while msgspec analyses a type would cause a
    segmentation fault.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
