"""The state of a PostgreSQL store, for `holdfast doctor`. Does not import asyncpg."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.domain.doctor import Finding

__all__ = ["ReportingLedger", "StoreReport", "findings"]

_AREA = "store"
_SLOW_MS = 5.0


class StoreReport(msgspec.Struct, frozen=True):
    """What PostgreSQL reports about itself. `standbys` are names and their `sync_state`, empty if it is not visible.
    `wake_up_ms` is the time of a notification through LISTEN, None if it did not arrive.
    """

    shown: str
    version: str
    synchronous_commit: str
    is_fsync_on: bool
    standbys: tuple[tuple[str, str], ...]
    latency_ms: float
    has_transaction_pooler: bool
    wake_up_ms: float | None = None


@runtime_checkable
class ReportingLedger(Protocol):
    """A store that describes its database."""

    async def report(self) -> StoreReport:
        """Return the state of the database. Raises `StorageError`."""


def findings(report: StoreReport) -> list[Finding]:
    """Return the state of the store, then its problems."""
    return [_summary(report), *_durability(report), *_standbys(report), *_connection(report)]


def _summary(report: StoreReport) -> Finding:
    safe = [name for name, state in report.standbys if state in {"sync", "quorum"}]
    parts = [
        f"PostgreSQL {report.version}, {report.shown}",
        f"synchronous_commit is {report.synchronous_commit}",
        f"synchronous standby: {', '.join(safe) or 'none'}",
        f"a round trip takes {report.latency_ms:.2g} ms",
    ]
    if report.wake_up_ms is not None:
        parts.append(f"a wake-up of another server {report.wake_up_ms:.2g} ms")
    return Finding(_AREA, "ok", f"{'; '.join(parts)}.")


def _durability(report: StoreReport) -> Iterator[Finding]:
    if not report.is_fsync_on:
        what = "fsync is off in PostgreSQL: a crash of its machine loses prompts that were accepted."
        yield Finding(_AREA, "error", what, "Set fsync = on.")
    if report.synchronous_commit == "off":
        what = "synchronous_commit is off by default; Holdfast turns it on for its own connections."
        yield Finding(_AREA, "note", what, "Set synchronous_commit = on for the role of the store.")


def _standbys(report: StoreReport) -> Iterator[Finding]:
    hidden = [name for name, state in report.standbys if not state]
    if hidden:
        what = f"this role cannot see whether the standby is synchronous ({', '.join(hidden)})."
        yield Finding(_AREA, "note", what, "GRANT pg_read_all_stats TO the role of the store.")
    todo = "Name the standbys in synchronous_standby_names, and set synchronous_commit = on."
    behind = [name for name, state in report.standbys if state in {"async", "potential"}]
    if behind:
        what = f"asynchronous standby ({', '.join(behind)}): a failover to it may lose the latest prompts."
        yield Finding(_AREA, "warning", what, todo)
    elif report.standbys and report.synchronous_commit == "local":
        what = "synchronous_commit is local: a failover to a standby may lose the latest prompts."
        yield Finding(_AREA, "warning", what, todo)


def _connection(report: StoreReport) -> Iterator[Finding]:
    if report.has_transaction_pooler:
        what = "a connection pooler in transaction mode is between the server and PostgreSQL: wake-ups are lost."
        yield Finding(_AREA, "error", what, "Give the address of PostgreSQL itself, or use session mode.")
    elif report.wake_up_ms is None:
        what = (
            "a notification did not arrive (LISTEN): other servers receive events up to a second late,"
            " and evictions are slower."
        )
        todo = "Give the address of PostgreSQL itself, without a proxy that shares connections."
        yield Finding(_AREA, "error", what, todo)
    if report.latency_ms > _SLOW_MS:
        what = f"a round trip takes {report.latency_ms:.1f} ms; each prompt and each step needs two."
        yield Finding(_AREA, "warning", what, "Run the server near PostgreSQL.")
