"""Lines that one clause of the rules decides: the verdict on each, and the rule that "always allow" would save.

`verdicts.txt` lists them under the settings that apply; both use Python's escapes.
"""

from pathlib import Path

import pytest
from msgspec import structs

from holdfast.domain.settings import PermissionSettings
from permissions.fake_disk import CONFIGURATIONS, judge_line, rules_of, summary_of


def _unescape(text: str) -> str:
    return text.encode("ascii").decode("unicode_escape")


def _tables() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for raw in (Path(__file__).parent / "verdicts.txt").read_text("ascii").splitlines():
        if raw.startswith("## "):
            heading = raw[3:]
            found[heading] = {}
        else:
            line, _, expected = raw.partition("\t")
            assert _unescape(line) not in found[heading], f"{line} is listed twice"
            found[heading][_unescape(line)] = _unescape(expected)
    return found


TABLES = _tables()


@pytest.mark.parametrize("heading", CONFIGURATIONS)
def test_every_line_gets_its_verdict(heading: str) -> None:
    rules = rules_of(CONFIGURATIONS[heading])
    directory = "/w/src" if heading == "below" else "/w"
    found = {line: summary_of(judge_line(rules, line, directory)) for line in TABLES[heading]}
    assert found == TABLES[heading]


@pytest.mark.parametrize("heading", CONFIGURATIONS)
def test_saved_rule_allows_the_same_line_unless_denied(heading: str) -> None:
    settings = CONFIGURATIONS[heading]
    directory = "/w/src" if heading == "below" else "/w"
    for line, expected in TABLES[heading].items():
        saves = tuple(expected.partition(" => ")[2].split(" | ")) if " => " in expected else ()
        if saves and "|" not in line:
            rules = rules_of(PermissionSettings(allow=(*settings.allow, *saves)))
            assert judge_line(rules, line, directory).decision == "allow", line


@pytest.mark.parametrize("heading", [heading for heading, settings in CONFIGURATIONS.items() if settings.deny])
def test_a_rule_that_asks_weakens_no_other(heading: str) -> None:
    """A denial stays one, and a line that a denial may concern asks in a way that no auto-approval answers."""
    settings = CONFIGURATIONS[heading]
    rules = rules_of(structs.replace(settings, ask=(*settings.ask, "bash")))
    for line, expected in TABLES[heading].items():
        before = expected.partition(" => ")[0]
        assert summary_of(judge_line(rules, line)).partition(" => ")[0] == (
            before if before in ("deny", "ask!") else "ask"
        ), line
