"""A place for every test."""

from pathlib import Path

import pytest

from config.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
