"""The conformance suite, for every ledger. On PostgreSQL each batch is also applied with a stale epoch first."""

from pathlib import Path

import pytest

from holdfast.testing.conformance import CHECKS, SHARED_CHECKS, Check
from storage.conformance_subjects import SHARED_SUBJECTS, SUBJECTS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("kind", SUBJECTS)
async def test_ledger_passes_the_conformance_check(kind: str, check: Check, tmp_path: Path) -> None:
    async with SUBJECTS[kind](tmp_path, check.retention) as subject:
        await check.run(subject)


@pytest.mark.parametrize("check", SHARED_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("kind", SHARED_SUBJECTS)
async def test_shared_ledger_passes_the_conformance_check(kind: str, check: Check, tmp_path: Path) -> None:
    async with SUBJECTS[kind](tmp_path, check.retention) as subject:
        await check.run(subject)


def test_every_check_is_run_once() -> None:
    names = [check.name for check in (*CHECKS, *SHARED_CHECKS)]
    assert len(set(names)) == len(names)
