"""Merges frames into bytes once for several subscribers. No I/O."""

from collections.abc import Sequence

from holdfast.bus.frames import Frame
from holdfast.bus.shared_backlog import merge_deltas
from holdfast.http11.sse import frame

__all__ = ["FrameCache"]

_MERGE_THRESHOLD = 4
"""Up to this many frames are sent unmerged: a subscriber that takes so few keeps up."""

_CACHE_SIZE = 8


class FrameCache:
    """Caches the last few merged frames of a workspace, because subscribers on the same schedule request the same
    range.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], bytes] = {}

    def clear(self) -> None:
        """Clear the cache: some of its contents were deleted."""
        self._made.clear()

    def join(self, frames: Sequence[Frame]) -> bytes:
        """Return the frames as bytes, merged if there are many."""
        if len(frames) <= _MERGE_THRESHOLD:
            return b"".join([frame(item.body, item.number) for item in frames])
        first, last = frames[0].index, frames[-1].index
        if not first or last - first + 1 != len(frames):
            # Some frames are for this subscriber only, or some are missing.
            return _encode_frames(frames)
        data = self._made.get((first, last))
        if data is None:
            data = self._made[first, last] = _encode_frames(frames)
            # Dicts keep insertion order, so the first key is the oldest.
            if len(self._made) > _CACHE_SIZE:
                del self._made[next(iter(self._made))]
        return data


def _encode_frames(frames: Sequence[Frame]) -> bytes:
    return b"".join([frame(item.body, item.number) for item in merge_deltas(list(frames))])
