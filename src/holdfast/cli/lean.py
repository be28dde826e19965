"""Loads msgspec without what it does not need."""

import sys
from importlib import import_module

__all__ = ["load_msgspec"]

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
