"""The state of a PostgreSQL store, for `holdfast doctor`. Does not import asyncpg."""

from typing import Protocol, runtime_checkable

import msgspec

from holdfast.domain.doctor import Finding

__all__ = ["ReportingLedger", "StoreReport", "findings"]

_AREA = "store"
_SLOW_MS = 5.0


class StoreReport(msgspec.Struct, frozen=True):
    """What PostgreSQL reports about itself. `standbys` are names and their `sync_state`, empty if it is not visible."""

    shown: str
    version: str
    synchronous_commit: str
    is_fsync_on: bool
    standbys: tuple[tuple[str, str], ...]
    latency_ms: float
    has_transaction_pooler: bool


@runtime_checkable
class ReportingLedger(Protocol):
    """A store that describes its database."""

    async def report(self) -> StoreReport:
        """Return the state of the database. Raises `StorageError`."""


def findings(report: StoreReport) -> list[Finding]:
    """Return the problems of the store, or that there are none."""
    found: list[Finding] = []
    if not report.is_fsync_on:
        what = "fsync is off in PostgreSQL: a crash of its machine loses prompts that were accepted."
        found.append(Finding(_AREA, "error", what, "Set fsync = on."))
    if report.synchronous_commit == "off":
        what = "synchronous_commit is off by default; Holdfast turns it on for its own connections."
        found.append(Finding(_AREA, "note", what, "Set synchronous_commit = on for the role of the store."))
    hidden = [name for name, state in report.standbys if not state]
    if hidden:
        what = f"whether {', '.join(hidden)} is a synchronous standby is not visible to this role."
        found.append(Finding(_AREA, "note", what, "GRANT pg_read_all_stats TO the role of the store."))
    behind = [name for name, state in report.standbys if state in {"async", "potential"}]
    if behind or (report.standbys and report.synchronous_commit == "local"):
        what = f"{', '.join(behind) or 'no standby'} is asynchronous: a failover to it loses what was accepted last."
        todo = "Name the standbys in synchronous_standby_names, and set synchronous_commit = on."
        found.append(Finding(_AREA, "warning", what, todo))
    if report.has_transaction_pooler:
        what = "a connection pooler in transaction mode is between the server and PostgreSQL: wake-ups are lost."
        found.append(Finding(_AREA, "error", what, "Give the address of PostgreSQL itself, or use session mode."))
    if report.latency_ms > _SLOW_MS:
        what = f"a round trip takes {report.latency_ms:.1f} ms; each prompt and each step needs two."
        found.append(Finding(_AREA, "warning", what, "Run the server near PostgreSQL."))
    if not found:
        what = f"PostgreSQL {report.version}, {report.shown}; a round trip takes {report.latency_ms:.1f} ms."
        found.append(Finding(_AREA, "ok", what))
    return found
