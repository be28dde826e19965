"""Returns memory to the system when workspaces have been closed."""

import ctypes
import gc

__all__ = ["release_memory"]

_libc = ctypes.CDLL(None)


def release_memory() -> None:
    """Free unreachable objects and return free memory to the system.

    A closed workspace contains many reference cycles. Without this it stays until the collector has counted enough new
    objects, which never happens in an idle server.
    """
    gc.collect()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
