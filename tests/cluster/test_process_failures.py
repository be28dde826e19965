"""R1, R2, R5, R6: processes of a cluster and its PostgreSQL fail under load, and clients lose nothing.

Each test starts a cluster of three nodes with the real lease times. `scripts/long --cluster COUNT` repeats the same
faults as often as wanted.
"""

from collections.abc import Sequence

import pytest

from trials.client_log_rules import NODE_FAULTS, FaultKind
from trials.cluster_failures import DISK_FAULTS, POSTGRES_FAULTS, Report, try_failures

_TIMES = 3


async def _try(kinds: Sequence[FaultKind]) -> None:
    report = Report()
    await try_failures(tuple(kinds) * _TIMES, 21, report)
    assert {kind: len(found) for kind, found in report.seconds.items()} == dict.fromkeys(kinds, _TIMES)


@pytest.mark.timeout(240)
async def test_nodes_are_killed_paused_and_cut_off() -> None:
    await _try(NODE_FAULTS)


@pytest.mark.timeout(240)
async def test_postgresql_crashes_and_fails_over() -> None:
    await _try(POSTGRES_FAULTS)


@pytest.mark.timeout(240)
async def test_the_disk_of_postgresql_is_full() -> None:
    """Needs a mount namespace; `scripts/test` leaves it out, and names it, where none can be made."""
    await _try(DISK_FAULTS)
