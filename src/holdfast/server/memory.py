"""Returns memory to the system when workspaces have been closed."""

import ctypes
import gc

__all__ = ["release_memory"]

_libc = ctypes.CDLL(None)


def release_memory() -> None:
    """Free unreachable objects and return free memory to the system.

    A closed workspace is full of reference cycles: without this it stays until the collector has counted enough new
    objects, which in an idle server is never.
    """
    gc.collect()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
