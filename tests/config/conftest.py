"""Fixture: the settings files of one test."""

from pathlib import Path

import pytest

from config.settings_files import SettingsFiles


@pytest.fixture
def files(tmp_path: Path) -> SettingsFiles:
    return SettingsFiles(tmp_path)
