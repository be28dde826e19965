"""Signals while a run is followed: the first cancels, the second exits, a hang-up detaches."""

import os
import select
import signal
from types import FrameType

__all__ = ["CANCELLED", "DETACHED", "Signals"]

CANCELLED = 130
DETACHED = 129

_CANCEL_GRACE = 0.25
"""Seconds for which a second signal waits for the first one's cancel request to be sent."""


class Signals:
    """Counts signals. Before `is_running` there is nothing to cancel, and the first one exits at once.

    Two signals may arrive together: `timeout` sends each one twice, and users press keys quickly. The second exits at
    once if the server has received the cancel; otherwise it waits for a moment (C-48).
    """

    def __init__(self) -> None:
        self.stops = 0
        self.is_hung_up = False
        self.is_running = False
        self._is_cancel_confirmed = False
        self.wake, self._write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """Install the handlers. An ignored signal stays ignored, as `nohup` and background jobs require."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def confirm_cancel(self) -> None:
        """Record that the server has received the cancel. Exits after a second signal."""
        self._is_cancel_confirmed = True
        if self.stops > 1:
            raise SystemExit(CANCELLED)

    def wait(self, seconds: float) -> None:
        """Sleep until a signal arrives or the time is over."""
        select.select([self.wake], [], [], seconds)
        self.drain()

    def drain(self) -> None:
        """Empty the wake-up pipe."""
        try:
            while os.read(self.wake, 512):
                pass
        except BlockingIOError:
            return

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.is_hung_up = True
            if not self.is_running:
                raise SystemExit(DETACHED)
            return
        self.stops += 1
        if not self.is_running or (self.stops > 1 and self._is_cancel_confirmed) or self.stops > 2:
            raise SystemExit(CANCELLED)
        if self.stops == 2:
            # Exit after a moment even if the cancel request hangs.
            signal.signal(signal.SIGALRM, _exit)
            signal.setitimer(signal.ITIMER_REAL, _CANCEL_GRACE)


def _exit(_number: int, _: FrameType | None) -> None:
    raise SystemExit(CANCELLED)
