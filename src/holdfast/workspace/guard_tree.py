"""A command and all its processes, as the server sees them: orders to the keeper, and what the keeper says."""

import asyncio
import json
import socket
from typing import Any, Protocol

import msgspec

__all__ = ["LOST", "UNPROVEN", "Supervisor", "Tree", "TreeEnd"]

LOST = (
    "[A process that supervises the command was killed while it ran."
    " All that the command had started was killed with it.]"
)
UNPROVEN = (
    "[The command killed the processes that supervise it. What was found of it was killed,"
    " but something that it started may still run.]"
)

_NUDGE = 0.05


class TreeEnd(msgspec.Struct, frozen=True):
    """How it went. `code` is None if the command itself did not end by itself; `left` is what no one may kill.

    `is_lost`: its keeper or the guard was killed while it ran. `is_unproven`: both were. What was found of it was
    killed, but no process that was its parent can tell that nothing is left.
    """

    code: int | None = None
    was_killed: bool = False
    left: tuple[int, ...] = ()
    error: str = ""
    is_lost: bool = False
    is_unproven: bool = False

    @property
    def remark(self) -> str:
        """What there is to say about its supervisors."""
        return UNPROVEN if self.is_unproven else LOST if self.is_lost else ""


class Supervisor(Protocol):
    """What a tree needs of the guard that starts it."""

    @property
    def process_id(self) -> int: ...

    def wake(self) -> None: ...

    def forget(self, tree: "Tree") -> None: ...

    def lost(self, tree: "Tree", end: TreeEnd) -> None: ...


class Tree:
    """A command and everything it has started."""

    def __init__(self, line: socket.socket, guard: "Supervisor", number: int, tag: int) -> None:
        self.number = number
        self.tag = tag
        self.group = guard.process_id
        """The process group of the guard that was asked to start it, and of its keeper."""
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int | None] = loop.create_future()
        """The exit code of the command itself; None if there is none."""
        self.is_lost = False
        """Whether its keeper or the guard was killed while it ran."""
        self.may_run = False
        """Whether its keeper was about to start it."""
        self.has_begun = False
        self.gone: asyncio.Future[TreeEnd] = loop.create_future()
        self._line = line
        self._guard = guard
        self._unread = b""
        self._end = TreeEnd()
        self._is_over = False
        self._is_nudged = False
        loop.add_reader(line, self._hear)

    def stop(self, grace: float) -> None:
        """Ask it to end; after `grace` seconds it is killed. Asking again can only make it sooner."""
        self._order(stop=grace)
        if not self._is_nudged:
            self._is_nudged = True
            self._nudge()

    def keep(self, linger: float | None) -> None:
        """Change how long what the command leaves behind may go on."""
        self._order(linger=linger)

    def cut(self) -> None:
        """Kill it now, and hear no more of it."""
        self._hang_up()
        self.over(TreeEnd(was_killed=True))

    def over(self, end: TreeEnd) -> None:
        if not self.exited.done():
            self.exited.set_result(end.code)
        if not self.gone.done():
            self.gone.set_result(end)

    def _nudge(self) -> None:
        """A command can tell its keeper to pause, more than once: until it is over it is told to go on."""
        if not self._is_over:
            self._guard.wake()
            asyncio.get_running_loop().call_later(_NUDGE, self._nudge)

    def _order(self, **what: float | None) -> None:
        if not self._is_over:
            try:
                self._line.send(json.dumps(what).encode() + b"\n")
            except OSError:
                # It has just gone, or is about to be found gone.
                return

    def _hear(self) -> None:
        try:
            data = self._line.recv(4_096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        if not data and not self._is_over:
            self._hang_up()
            self.is_lost = self.may_run
            self._guard.lost(self, msgspec.structs.replace(self._end, is_lost=self.is_lost))

    def _take(self, said: dict[str, Any]) -> None:
        # An error before anything else comes from a keeper that could not even begin.
        self.may_run = self.may_run or "error" not in said
        self.has_begun = "starting" not in said
        if "error" in said:
            self._end = msgspec.structs.replace(self._end, error=said["error"])
        if "code" in said:
            self._end = msgspec.structs.replace(self._end, code=said["code"])
            if not self._end.error and not self.exited.done():
                self.exited.set_result(said["code"])
        if "gone" in said:
            self._hang_up()
            self.is_lost = said["is_lost"]
            end = msgspec.structs.replace(self._end, was_killed=said["gone"], left=tuple(said["left"]))
            self.over(msgspec.structs.replace(end, is_lost=self.is_lost))

    def _hang_up(self) -> None:
        if not self._is_over:
            self._is_over = True
            asyncio.get_running_loop().remove_reader(self._line)
            self._line.close()
            self._guard.forget(self)
