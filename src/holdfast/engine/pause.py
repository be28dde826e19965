"""The pause of an engine: no more runs are started, because another server is going to own the workspace."""

import asyncio

from holdfast.domain.ids import RunId, SessionId, is_subagent_session
from holdfast.engine.run_lifecycle import Lane

__all__ = ["Pause"]


class Pause:
    """Whether the engine is paused, which runs are held back, and when it is quiet."""

    def __init__(self) -> None:
        self._quiet: asyncio.Future[None] | None = None
        self._held_back: dict[SessionId, RunId] = {}

    def begin(self) -> asyncio.Future[None]:
        """Pause. Returns a future that `note` completes."""
        self._quiet = self._quiet or asyncio.get_running_loop().create_future()
        return self._quiet

    def note(self, *, is_quiet: bool) -> None:
        """Complete the future of `begin` if no run is active and no end is being stored."""
        if is_quiet and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def holds_back(self, session: SessionId, run: RunId, lane: Lane) -> bool:
        """Hold back a run that is about to start, unless it is a sub-agent's or is cancelled already."""
        is_accepted = lane.head is not None and lane.head.phase == "accepted"
        if self._quiet is None or is_subagent_session(session) or not is_accepted:
            return False
        self._held_back[session] = run
        return True

    def release(self, session: SessionId, lane: Lane) -> RunId | None:
        """After a change of the lane, return the run that was held back and is cancelled now: it must start in order to
        end. A run that was parked is forgotten.
        """
        if session not in self._held_back or (lane.head is not None and lane.head.phase == "accepted"):
            return None
        run = self._held_back.pop(session)
        return run if lane.head is not None and lane.head.run == run else None
