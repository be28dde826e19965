"""Where a numbered thing of a workspace stands: both numbers in one, by which a table can be ordered. Pure."""

__all__ = ["bounds", "number_at", "place"]

_BITS = 40
_LAST = (1 << _BITS) - 1
"""The largest number a workspace can give: a thousand a second last for thirty years."""


def place(workspace: int, number: int) -> int:
    """Numbers that were never given are brought within the workspace: the next one begins after its last place."""
    return workspace << _BITS | min(max(number, 0), _LAST)


def number_at(where: int) -> int:
    return where & _LAST


def bounds(workspace: int) -> tuple[int, int]:
    """The first and the last place of a workspace."""
    return place(workspace, 0), place(workspace, _LAST)
