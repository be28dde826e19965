"""The bytes of what several readers take together, made once for all of them. No I/O."""

from collections.abc import Sequence

from holdfast.bus.backlog import merge_deltas
from holdfast.bus.frames import Frame
from holdfast.protocol.sse import frame

__all__ = ["Joiner"]

_FEW = 4
"""So many frames at once are sent as they are: a reader that takes them keeps up."""

_KEPT = 8


class Joiner:
    """Of one workspace. Remembers the last few answers: readers that wait for the same moment ask for the same."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], bytes] = {}

    def clear(self) -> None:
        """Forget what was made: some of it was deleted."""
        self._made.clear()

    def join(self, frames: Sequence[Frame]) -> bytes:
        if len(frames) <= _FEW:
            return b"".join([frame(item.body, item.number) for item in frames])
        first, last = frames[0].index, frames[-1].index
        if not first or last - first + 1 != len(frames):
            # Some of them are for this reader alone, or some are missing.
            return _joined(frames)
        data = self._made.get((first, last))
        if data is None:
            data = self._made[first, last] = _joined(frames)
            if len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
        return data


def _joined(frames: Sequence[Frame]) -> bytes:
    return b"".join([frame(item.body, item.number) for item in merge_deltas(list(frames))])
