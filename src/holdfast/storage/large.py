"""Values that must not stay in memory. Pure."""

from collections.abc import Sized

__all__ = ["may_keep"]

_LARGE = 64 * 1024


def may_keep(*values: Sized) -> bool:
    """Whether a statement may be kept, prepared, with these values bound to it.

    It keeps them until its next use, which may be never. To prepare it again costs little beside a large value.
    """
    return max(map(len, values)) < _LARGE
