"""Signals while a run is followed: the first asks to stop, the second leaves, a hang-up lets go."""

import os
import select
import signal
from types import FrameType

__all__ = ["CANCELLED", "DETACHED", "Signals"]

CANCELLED = 130
DETACHED = 129


class Signals:
    """Counts. Before `is_running` there is nothing to cancel, and the first one leaves at once."""

    def __init__(self) -> None:
        self.stops = 0
        self.is_hung_up = False
        self.is_running = False
        self.wake, self._write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """A signal that is ignored stays so: `nohup` and background jobs mean it."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)

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
        if self.stops > 1 or not self.is_running:
            raise SystemExit(CANCELLED)
