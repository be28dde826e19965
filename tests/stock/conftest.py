"""A server with a model that can be held, and a project for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stock.servers import HeldModel, running
from stock.wire import close_all_connections


@pytest.fixture(autouse=True)
async def disconnect_all() -> AsyncIterator[None]:
    yield
    await close_all_connections()


@pytest.fixture
async def model() -> HeldModel:
    return HeldModel()


@pytest.fixture
async def socket(tmp_path: Path, model: HeldModel) -> AsyncIterator[Path]:
    async with running(tmp_path, model) as socket:
        yield socket


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project
