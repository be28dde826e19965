"""Server-side handle of a command and all its processes: sends orders to the keeper and receives its messages."""

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
    """Result of a tree. `code` is None if the command was killed before it exited; `left` are processes that could
    not be killed.

    `is_lost`: its keeper or the guard was killed while it ran. `is_unproven`: both were. The processes found were
    killed, but no parent process exists that could prove that none is left.
    """

    code: int | None = None
    was_killed: bool = False
    left: tuple[int, ...] = ()
    error: str = ""
    is_lost: bool = False
    is_unproven: bool = False

    @property
    def remark(self) -> str:
        """Remark about killed supervisors for the command's output, or empty."""
        return UNPROVEN if self.is_unproven else LOST if self.is_lost else ""


class Supervisor(Protocol):
    """Interface of the guard as used by a tree."""

    @property
    def process_id(self) -> int:
        """Process id of the guard."""
        ...

    def wake(self) -> None:
        """Resume paused supervisors."""
        ...

    def forget(self, tree: "Tree") -> None:
        """Remove a tree that has ended."""
        ...

    def lost(self, tree: "Tree", end: TreeEnd) -> None:
        """Handle a keeper that died without reporting the end of its tree."""
        ...


class Tree:
    """A command and everything it has started."""

    def __init__(self, line: socket.socket, guard: "Supervisor", number: int, tag: int) -> None:
        self.number = number
        self.tag = tag
        self.group = guard.process_id
        """Process group of the guard that starts it, and of its keeper."""
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int | None] = loop.create_future()
        """Exit code of the command itself; None if it has none."""
        self.is_lost = False
        """True if its keeper or the guard was killed while it ran."""
        self.may_run = False
        """True if its keeper may have started it."""
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
        """Stop it: SIGINT, later SIGTERM, and SIGKILL after `grace` seconds. Repeated calls can only
        shorten the time.
        """
        self._order(stop=grace)
        if not self._is_nudged:
            self._is_nudged = True
            self._nudge()

    def keep(self, linger: float | None) -> None:
        """Change how long processes left behind by the command may continue."""
        self._order(linger=linger)

    def cut(self) -> None:
        """Kill it by closing the connection, and ignore all further messages."""
        self._hang_up()
        self.over(TreeEnd(was_killed=True))

    def over(self, end: TreeEnd) -> None:
        """Publish the result."""
        if not self.exited.done():
            self.exited.set_result(end.code)
        if not self.gone.done():
            self.gone.set_result(end)

    def _nudge(self) -> None:
        """Resume the keeper repeatedly until the tree has ended, because a command can pause it more than once."""
        if not self._is_over:
            self._guard.wake()
            asyncio.get_running_loop().call_later(_NUDGE, self._nudge)

    def _order(self, **what: float | None) -> None:
        if not self._is_over:
            try:
                self._line.send(json.dumps(what).encode() + b"\n")
            except OSError:
                # The keeper has just ended; the reader notices it.
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
        # An error as the first message is from a keeper that could not start.
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
