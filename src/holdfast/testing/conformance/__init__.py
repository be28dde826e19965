"""The contract of the engine's `Ledger` port, as checks that every implementation passes.

An implementation provides a `Subject` and runs every check of `CHECKS` with a fresh one. The checks use only the port,
so they apply to a store in memory, in one file, or shared by several servers.
"""

from holdfast.testing.conformance import (
    approvals,
    cancels,
    durability,
    inputs,
    log,
    messages,
    ownership,
    queue,
    reads,
    runs,
    sessions,
)
from holdfast.testing.conformance.subject import Check, ManualClock, Subject, WorkspaceOwner, message, run, session

__all__ = ["CHECKS", "SHARED_CHECKS", "Check", "ManualClock", "Subject", "WorkspaceOwner", "message", "run", "session"]

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
"""For every store."""

SHARED_CHECKS: tuple[Check, ...] = inputs.CHECKS
"""For stores that several servers use at once (`SharedLedger`), in addition."""
