"""A project with one file, and a secret beside it."""

from pathlib import Path

import pytest

from tools.desk import Desk


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    return root


@pytest.fixture
async def desk(project: Path) -> Desk:
    return await Desk(project).open()
