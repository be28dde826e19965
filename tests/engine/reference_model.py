"""Reference model of the runs of a workspace, as simple as possible, to compare the engine against.

It has no tasks, stores, numbers or effects. It describes moments without pending work: each session has at most one run
that waits for its model, and the other runs wait in the queue.
"""

from typing import Literal

import msgspec

from holdfast.domain.runs import Delivery, Outcome

__all__ = ["AcceptedRun", "ReferenceEngine", "ReferenceRefusal", "ReferenceSession"]

Reason = Literal["busy", "folded", "not waiting", "taken", "unknown"]


class ReferenceRefusal(Exception):
    """A refusal of the reference model."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class AcceptedRun(msgspec.Struct):
    """A run that was accepted."""

    name: str
    session: int
    text: str
    requested: Delivery
    delivery: Delivery
    position: int
    host: str = ""
    outcome: Outcome | None = None


class ReferenceSession(msgspec.Struct):
    """One session."""

    head: str = ""
    folded: list[str] = []
    queue: list[str] = []
    received: list[str] = []
    """Prompts that its model has received, in order."""


class ReferenceEngine:
    """Accepts the same inputs as the engine."""

    def __init__(self, sessions: int) -> None:
        self.rooms = [ReferenceSession() for _ in range(sessions)]
        self.runs: dict[str, AcceptedRun] = {}
        self.ends: list[str] = []
        """Runs that have ended, in the order of their ends."""

    def submit(self, session: int, name: str, text: str, delivery: Delivery) -> AcceptedRun:
        state = self.rooms[session]
        if (before := self.runs.get(name)) is not None:
            if (before.session, before.text, before.requested) != (session, text, delivery):
                raise ReferenceRefusal("taken")
            return before
        if delivery == "reject" and state.head:
            raise ReferenceRefusal("busy")
        run = AcceptedRun(name, session, text, delivery, delivery, position=bool(state.head) + len(state.queue))
        self.runs[name] = run
        if delivery == "interrupt":
            self.cancel(session)
        state.queue.append(name)
        self._start_next(state)
        return run

    def cancel(self, session: int) -> set[str]:
        """Cancel every run that was accepted so far, and none that is accepted later."""
        state = self.rooms[session]
        covered = {state.head, *state.folded, *state.queue} - {""}
        waiting, state.queue = state.queue, []
        for name in waiting:
            self._end(name, "cancelled")
        self._end_head(state, "cancelled")
        return covered

    def cancel_run(self, name: str) -> None:
        run = self._find(name)
        state = self.rooms[run.session]
        if name in state.folded:
            raise ReferenceRefusal("folded")
        if name in state.queue:
            state.queue.remove(name)
            self._end(name, "cancelled")
        elif name == state.head:
            self._end_head(state, "cancelled")
            self._start_next(state)

    def clear(self, session: int) -> set[str]:
        state = self.rooms[session]
        waiting, state.queue = state.queue, []
        for name in waiting:
            self._end(name, "cancelled")
        return set(waiting)

    def move(self, name: str, position: int) -> None:
        queue = self._queue_with(name)
        queue.remove(name)
        queue.insert(position, name)

    def redeliver(self, name: str, delivery: Literal["steer", "queue"]) -> None:
        self._queue_with(name)
        self.runs[name].delivery = delivery

    def step(self, session: int) -> None:
        """The model called a tool and receives its next request: steering prompts join the turn."""
        self._fold(self.rooms[session])

    def finish(self, session: int, outcome: Outcome) -> None:
        """The turn is over; the next run starts whatever the outcome was."""
        state = self.rooms[session]
        self._end_head(state, outcome)
        self._start_next(state)

    def restart(self) -> None:
        """A restart, graceful or by a kill: started runs are interrupted, waiting ones continue."""
        for state in self.rooms:
            self._end_head(state, "interrupted")
        for state in self.rooms:
            self._start_next(state)

    def _start_next(self, state: ReferenceSession) -> None:
        if not state.head and state.queue:
            state.head = state.queue.pop(0)
            state.received.append(self.runs[state.head].text)
            self._fold(state)

    def _fold(self, state: ReferenceSession) -> None:
        steering = [name for name in state.queue if self.runs[name].delivery == "steer"]
        state.queue = [name for name in state.queue if name not in steering]
        state.folded += steering
        for name in steering:
            self.runs[name].host = state.head
            state.received.append(self.runs[name].text)

    def _end_head(self, state: ReferenceSession, outcome: Outcome) -> None:
        """End the head; the runs that joined its turn share its end."""
        ended, state.head, state.folded = [state.head, *state.folded], "", []
        for name in filter(None, ended):
            self._end(name, outcome)

    def _end(self, name: str, outcome: Outcome) -> None:
        assert self.runs[name].outcome is None, f"{name} would end twice"
        self.runs[name].outcome = outcome
        self.ends.append(name)

    def _find(self, name: str) -> AcceptedRun:
        if name not in self.runs:
            raise ReferenceRefusal("unknown")
        return self.runs[name]

    def _queue_with(self, name: str) -> list[str]:
        queue = self.rooms[self._find(name).session].queue
        if name not in queue:
            raise ReferenceRefusal("not waiting")
        return queue
