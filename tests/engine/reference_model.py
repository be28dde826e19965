"""What a workspace promises of runs, said as plainly as it can be: the model that the real engine is held against.

It knows nothing of tasks, stores, numbers or effects. It is true of moments at which nothing is on its way: each
session has at most one run that asks its model, and the others wait.
"""

from typing import Literal

import msgspec

from holdfast.domain.runs import Delivery, Outcome

__all__ = ["Known", "Reference", "Refused", "Room"]

Reason = Literal["busy", "folded", "not waiting", "taken", "unknown"]


class Refused(Exception):
    """The reference says no."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Known(msgspec.Struct):
    """A run that was accepted."""

    name: str
    session: int
    text: str
    asked: Delivery
    delivery: Delivery
    position: int
    host: str = ""
    outcome: Outcome | None = None


class Room(msgspec.Struct):
    """One session."""

    head: str = ""
    folded: list[str] = []
    queue: list[str] = []
    heard: list[str] = []
    """Prompts that its model has been given, in order."""


class Reference:
    """Ask the same of it as of the engine, and compare."""

    def __init__(self, sessions: int) -> None:
        self.rooms = [Room() for _ in range(sessions)]
        self.runs: dict[str, Known] = {}
        self.ends: list[str] = []
        """Runs that have ended, in the order of their ends."""

    def submit(self, session: int, name: str, text: str, delivery: Delivery) -> Known:
        room = self.rooms[session]
        if (before := self.runs.get(name)) is not None:
            if (before.session, before.text, before.asked) != (session, text, delivery):
                raise Refused("taken")
            return before
        if delivery == "reject" and room.head:
            raise Refused("busy")
        run = Known(name, session, text, delivery, delivery, position=bool(room.head) + len(room.queue))
        self.runs[name] = run
        if delivery == "interrupt":
            self.cancel(session)
        room.queue.append(name)
        self._go_on(room)
        return run

    def cancel(self, session: int) -> set[str]:
        """Everything that is there, and nothing that comes later."""
        room = self.rooms[session]
        covered = {room.head, *room.folded, *room.queue} - {""}
        waiting, room.queue = room.queue, []
        for name in waiting:
            self._end(name, "cancelled")
        self._end_head(room, "cancelled")
        return covered

    def cancel_run(self, name: str) -> None:
        run = self._known(name)
        room = self.rooms[run.session]
        if name in room.folded:
            raise Refused("folded")
        if name in room.queue:
            room.queue.remove(name)
            self._end(name, "cancelled")
        elif name == room.head:
            self._end_head(room, "cancelled")
            self._go_on(room)

    def clear(self, session: int) -> set[str]:
        room = self.rooms[session]
        waiting, room.queue = room.queue, []
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
        """The model wanted a tool and is asked again: whoever steers joins the turn."""
        self._fold(self.rooms[session])

    def finish(self, session: int, outcome: Outcome) -> None:
        """The turn is over, and whatever came of it the next begins."""
        room = self.rooms[session]
        self._end_head(room, outcome)
        self._go_on(room)

    def restart(self) -> None:
        """In good order or by a kill: what had begun is interrupted, what waited goes on."""
        for room in self.rooms:
            self._end_head(room, "interrupted")
        for room in self.rooms:
            self._go_on(room)

    def _go_on(self, room: Room) -> None:
        if not room.head and room.queue:
            room.head = room.queue.pop(0)
            room.heard.append(self.runs[room.head].text)
            self._fold(room)

    def _fold(self, room: Room) -> None:
        steering = [name for name in room.queue if self.runs[name].delivery == "steer"]
        room.queue = [name for name in room.queue if name not in steering]
        room.folded += steering
        for name in steering:
            self.runs[name].host = room.head
            room.heard.append(self.runs[name].text)

    def _end_head(self, room: Room, outcome: Outcome) -> None:
        """Those who joined the turn share its end."""
        ended, room.head, room.folded = [room.head, *room.folded], "", []
        for name in filter(None, ended):
            self._end(name, outcome)

    def _end(self, name: str, outcome: Outcome) -> None:
        assert self.runs[name].outcome is None, f"{name} would end twice"
        self.runs[name].outcome = outcome
        self.ends.append(name)

    def _known(self, name: str) -> Known:
        if name not in self.runs:
            raise Refused("unknown")
        return self.runs[name]

    def _queue_with(self, name: str) -> list[str]:
        queue = self.rooms[self._known(name).session].queue
        if name not in queue:
            raise Refused("not waiting")
        return queue
