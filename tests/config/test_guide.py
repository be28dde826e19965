"""The guide tells of every key, and its examples work."""

import re
from pathlib import Path

import pytest

from config.place import Place
from holdfast.config.json_schema import DESCRIPTIONS

GUIDE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
UNSAID = {"Settings", "Models", "RecentModels"}


def test_every_key_is_explained() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \| .* \| (.+) \|$", GUIDE, re.MULTILINE))
    keys = {(key.partition(".")[2], text) for key, text in DESCRIPTIONS.items() if key.partition(".")[0] not in UNSAID}
    assert keys - rows == set()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_valid(place: Place, example: str) -> None:
    place.user(example)
    configuration = place.open()
    assert configuration.problems == ()
    assert configuration.settings.models.large.model or configuration.settings.providers


def test_what_needs_no_trust_needs_none(place: Place) -> None:
    place.shared(EXAMPLES[-1])
    assert place.open().withheld == ()
