"""The configuration guide explains every key, and its examples are valid."""

import re
from pathlib import Path

import pytest

from config.settings_files import SettingsFiles
from holdfast.config.json_schema import DESCRIPTIONS

GUIDE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
UNDOCUMENTED = {"Settings", "Models", "RecentModels"}


def test_every_key_is_explained() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", GUIDE, re.MULTILINE))
    keys = {
        (key.partition(".")[2], text) for key, text in DESCRIPTIONS.items() if key.partition(".")[0] not in UNDOCUMENTED
    }
    assert keys - rows == set()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_valid(files: SettingsFiles, example: str) -> None:
    files.write_user(example)
    configuration = files.open()
    assert configuration.problems == ()
    assert configuration.settings.models.large.model or configuration.settings.providers


def test_settings_listed_as_harmless_need_no_trust(files: SettingsFiles) -> None:
    files.write_project(EXAMPLES[-1])
    assert files.open().withheld == ()
