"""Fixtures: a project with one file, a secret beside it, and a tool runner in the project."""

from pathlib import Path

import pytest

from tools.tool_runner import ToolRunner


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    return root


@pytest.fixture
async def runner(project: Path) -> ToolRunner:
    return await ToolRunner(project).open()
