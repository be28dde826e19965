"""Fast import of msgspec, protected from signals."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

__all__ = ["load_msgspec", "signals_blocked"]

_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SKIPPED_MODULE = "typing_extensions"


def load_msgspec() -> None:
    """Import msgspec without typing_extensions, which takes longer to import than msgspec itself and provides nothing
    that Python 3.11 lacks. Later imports of typing_extensions still work.
    """
    if "msgspec" in sys.modules or _SKIPPED_MODULE in sys.modules:
        return
    # Documented: None in sys.modules makes the import fail, and msgspec treats the module as optional.
    sys.modules[_SKIPPED_MODULE] = None  # type: ignore[assignment]
    try:
        import_module("msgspec")
    finally:
        del sys.modules[_SKIPPED_MODULE]


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals. An exception from a signal handler while msgspec analyses a type would cause a
    segmentation fault.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
