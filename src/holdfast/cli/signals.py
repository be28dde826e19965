"""Signals while a run is followed: the first asks to stop, the second leaves, a hang-up lets go."""

import os
import select
import signal
from types import FrameType

__all__ = ["CANCELLED", "DETACHED", "Signals"]

CANCELLED = 130
DETACHED = 129

_LEAVING = 0.25
"""How many seconds whoever asks twice waits for the first wish to be on its way."""


class Signals:
    """Counts. Before `is_running` there is nothing to cancel, and the first one leaves at once.

    Two may come as one: `timeout` sends each of its own twice, and fingers are quick. The second leaves at once
    when the server has heard of the first; else it gives that a moment (C-48).
    """

    def __init__(self) -> None:
        self.stops = 0
        self.is_hung_up = False
        self.is_running = False
        self._is_heeded = False
        self.wake, self._write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """A signal that is ignored stays so: `nohup` and background jobs mean it."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)

    def heeded(self) -> None:
        """The server knows. Who has asked twice leaves."""
        self._is_heeded = True
        if self.stops > 1:
            raise SystemExit(CANCELLED)

    def wait(self, seconds: float) -> None:
        """A pause that a signal ends."""
        select.select([self.wake], [], [], seconds)
        self.drain()

    def drain(self) -> None:
        try:
            while os.read(self.wake, 512):
                pass
        except BlockingIOError:
            return

    def _heard(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.is_hung_up = True
            if not self.is_running:
                raise SystemExit(DETACHED)
            return
        self.stops += 1
        if not self.is_running or (self.stops > 1 and self._is_heeded) or self.stops > 2:
            raise SystemExit(CANCELLED)
        if self.stops == 2:
            signal.signal(signal.SIGALRM, _leave)
            signal.setitimer(signal.ITIMER_REAL, _LEAVING)


def _leave(_number: int, _: FrameType | None) -> None:
    raise SystemExit(CANCELLED)
