"""The contract of the engine's `Ledger` port, as checks that every implementation passes.

Whoever writes another store provides a `Subject` and runs all of `CHECKS` against it, each with a fresh one.
The checks only use the port: they hold for a store in memory, for one file, and for one that several servers share.
"""

from holdfast.testing.conformance import (
    approvals,
    cancels,
    durability,
    log,
    messages,
    ownership,
    queue,
    reads,
    runs,
    sessions,
)
from holdfast.testing.conformance.subject import Check, Desk, ManualClock, Subject, message, run, session

__all__ = ["CHECKS", "Check", "Desk", "ManualClock", "Subject", "message", "run", "session"]

CHECKS: tuple[Check, ...] = (
    *queue.CHECKS,
    *runs.CHECKS,
    *cancels.CHECKS,
    *messages.CHECKS,
    *approvals.CHECKS,
    *sessions.CHECKS,
    *log.CHECKS,
    *ownership.CHECKS,
    *durability.CHECKS,
    *reads.CHECKS,
)
